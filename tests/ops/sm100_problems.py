"""Block-scaled problems whose sums are exact, with scales in every form, and their meaning in float64.

Decodes by tables of its own and packs by hand, so that layouts of the package are judged and not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from reference import exact_factor

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Factor:
    """Data [rows, k], or [rows, k/2] of 4-bit codes, its values, one scale byte per granule, and what those mean."""

    data: torch.Tensor
    values: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    gran: tuple[int, int]

    @property
    def wide(self) -> torch.Tensor:
        """The numbers in float64."""
        rows, k = self.values.shape
        spread = self.scales.repeat_interleave(self.gran[0], 0)[:rows].repeat_interleave(self.gran[1], 1)[:, :k]
        return self.values * spread

    @property
    def fp32(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Data and fp32 scales."""
        return self.data, self.scales.float()

    @property
    def words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Data and int32 words as kernels read them: NaN in bytes beyond k and in rows between columns."""
        rows, blocks = self.codes.shape
        filled = torch.full((rows, -(-blocks // 4) * 4), 0xFF, dtype=torch.int64)
        filled[:, :blocks] = self.codes.long()
        packed = sum(filled[:, byte::4] << (8 * byte) for byte in range(4))
        room = torch.full((packed.shape[1], -(-rows // 4) * 4), -1, dtype=torch.int32)  # type: ignore[union-attr]
        room[:, :rows] = packed.T.to(torch.int32)  # type: ignore[union-attr]
        return self.data, room.T[:rows]

    @property
    def e8m0(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Data and one-byte powers of two."""
        return self.data, self.codes.view(torch.float8_e8m0fnu)


def scale_bytes(rows: int, blocks: int, seed: int) -> torch.Tensor:
    """UE8M0 bytes of 1/4 to 2."""
    return torch.randint(125, 129, (rows, blocks), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def fp8(rows: int, k: int, gran: tuple[int, int] = (1, 128), seed: int = 0) -> Factor:
    """Whole numbers in e4m3."""
    data = exact_factor(rows, k, torch.float8_e4m3fn, seed)
    return _scaled(data, data.double(), gran, seed)


def fp4(rows: int, k: int, gran: tuple[int, int] = (1, 32), seed: int = 0) -> Factor:
    """All sixteen codes, two a byte, the even one in the low half."""
    codes = torch.randint(0, 16, (rows, k), generator=torch.Generator().manual_seed(seed + 50))
    data = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    table = torch.tensor([*FP4_VALUES, *(-value for value in FP4_VALUES)], dtype=torch.float64)
    return _scaled(data, table[codes], gran, seed)


def nvfp4(rows: int, k: int, seed: int = 0) -> Factor:
    """4-bit codes with UE4M3 scales of 16: 0.5, 1, 1.5 or 2."""
    plain = fp4(rows, k, (1, 16), seed)
    codes = torch.tensor([0x30, 0x38, 0x3C, 0x40], dtype=torch.uint8)[(plain.codes - 125).long()]
    values = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)[(plain.codes - 125).long()]
    return Factor(plain.data, plain.values, codes, values, (1, 16))


def _scaled(data: torch.Tensor, values: torch.Tensor, gran: tuple[int, int], seed: int) -> Factor:
    rows, k = values.shape
    codes = scale_bytes(-(-rows // gran[0]), -(-k // gran[1]), seed + 100)
    return Factor(data, values, codes, torch.exp2(codes.double() - 127), gran)


def product(a: Factor, b: Factor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """a . b^T, rounded once: sums are exact in fp32."""
    exact = a.wide @ b.wide.T
    assert torch.equal(exact.float().double(), exact)
    return exact.float().to(dtype)
