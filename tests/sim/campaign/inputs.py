"""Operands of a problem: exact ones, whose sums fp32 holds, and wide ones of any finite codes.

Scales differ from row to row and block to block and reach bytes 1 and 254; whatever lies beyond k, between rows or
behind them is NaN. Decides by the element types of a spec's operands alone, so that it serves every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from planted.inputs import PADDING, SCALE_WORDS, TORCH_TYPES, laid_out

from gemmgen.ir import DType, KernelSpec, Operand, split_axis

SPAN = 128
"""Elements of k that share a scale at most: A's scales may be huge where B's are tiny, block by block of this."""
FAR = (0, 126, -126)
"""How far A's exponents are moved up and B's down, span after span: bytes 253 and 254 meet 1 and 2."""
NARROW = torch.tensor([0x28, 0x2C, 0x30, 0x34, 0x38, 0x3C, 0x40, 0x44])
"""UE4M3 numbers of two significant bits from 0.25 to 3."""
FINITE = {DType.E4M3: 0x7F, DType.E5M2: 0x7C}
"""The first magnitude that is no finite number."""
SCALAR = 0.5
TF32_MASK = -(1 << 13)

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Draw:
    """Where one problem's numbers come from: a seed for all operands, and whether sums must be exact."""

    seed: int
    exact: bool

    def operands(self, spec: KernelSpec, sizes: Mapping[str, int]) -> tuple[Tensors, dict[str, float]]:
        """Tensors and host scalars of everything but the output."""
        tensors: Tensors = {}
        for place, operand in enumerate(spec.operands):
            if operand.is_scalar or operand.name == spec.output.name:
                continue
            generator = torch.Generator().manual_seed(100 * self.seed + place)
            tensors[operand.name] = laid_out(self._values(operand, sizes, generator), operand)
        return tensors, {each.name: SCALAR for each in spec.operands if each.is_scalar}

    def _values(self, operand: Operand, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        shape = [-(-sizes[name] // divisor) for name, divisor in map(split_axis, operand.box)]
        if operand.dtype in SCALE_WORDS:
            return self._words(operand, sizes, generator)
        if operand.dtype == DType.E2M1:
            shape[operand.box.index(operand.inner)] //= 2
            return torch.randint(0, 256, shape, generator=generator).to(torch.uint8).view(torch.int8)
        if operand.dtype == DType.F32 and any("/" in axis for axis in operand.box):
            return self._fp32_scales(shape, generator)
        if self.exact:
            return torch.randint(-4, 5, shape, generator=generator).float().to(TORCH_TYPES[operand.dtype])
        return _any_number(operand.dtype, shape, generator)

    def _fp32_scales(self, shape: list[int], generator: torch.Generator) -> torch.Tensor:
        if self.exact:
            return torch.exp2(torch.randint(-1, 2, shape, generator=generator).float())
        return torch.rand(shape, generator=generator) * 0.02 + 0.0003

    def _words(self, operand: Operand, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        """Four scales a word in the order of the operand's box; those beyond k are NaN."""
        divisors = dict(map(split_axis, operand.box))
        (rows, gran_rows), span = next(each for each in divisors.items() if each[0] != "k"), divisors["k"]
        block = span // 4
        shape = -(-sizes[rows] // gran_rows), -(-sizes["k"] // block)
        codes = torch.full((shape[0], 4 * -(-sizes["k"] // span)), PADDING[operand.dtype], dtype=torch.int64)
        ue8m0 = operand.dtype == DType.UE8M0X4
        made = self._exponents(shape, block, rows, generator) if ue8m0 else self._narrow(shape, generator)
        codes[:, : shape[1]] = made
        words = sum(codes[:, byte::4] << 8 * byte for byte in range(4)).to(torch.int32)  # type: ignore[union-attr]
        return words if operand.axes[-1] == "k" else words.T

    def _exponents(self, shape: tuple[int, int], block: int, rows: str, generator: torch.Generator) -> torch.Tensor:
        """UE8M0 bytes: near 127, or in some spans of k near 254 for A and near 1 for B, or the other way round."""
        spans = torch.arange(shape[1]) * block // SPAN
        far = torch.tensor(FAR)[(spans + self.seed) % len(FAR)]
        near = torch.randint(-2, 2, shape, generator=generator)
        near = torch.where(far == 0, near, near & 1) if self.exact else 3 * near
        return (127 + near + far * (1 if rows == "m" else -1)).clamp(1, 254)

    def _narrow(self, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
        """UE4M3 bytes: any finite one, or such that products stay exact."""
        if not self.exact:
            return torch.randint(0, PADDING[DType.UE4M3X4], shape, generator=generator)
        return NARROW[torch.randint(0, len(NARROW), shape, generator=generator)]


def _any_number(dtype: DType, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Every finite code of an 8-bit type; normal numbers of a wider one, as the tensor core reads them."""
    if dtype in FINITE:
        magnitude = torch.randint(0, FINITE[dtype], shape, generator=generator)
        sign = torch.randint(0, 2, shape, generator=generator) << 7
        return (magnitude | sign).to(torch.uint8).view(TORCH_TYPES[dtype])
    values = torch.randn(shape, generator=generator)
    if dtype == DType.F32:  # factors are read as tf32, with 13 bits less; what is added may have as few
        values = (values.view(torch.int32) & TF32_MASK).view(torch.float32)
    return values.to(TORCH_TYPES[dtype])
