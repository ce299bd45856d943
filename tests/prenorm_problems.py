"""Problems of ``tf32_hc_prenorm_gemm`` and what it must give, for tests on the simulator and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from reference import exact_factor

from gemmgen.ops.choice_prenorm import prenorm_spec


@dataclass(frozen=True)
class Framed:
    """An output of NaN inside a larger buffer of sentinels."""

    buffer: torch.Tensor
    view: torch.Tensor

    def intact(self) -> bool:
        """Whether every sentinel is still there and no element was left out."""
        frame, places = self.buffer.clone(), torch.zeros_like(self.buffer, dtype=torch.bool)
        inside = places.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        inside.fill_(True)
        return bool((frame[~places] == 77.0).all()) and not bool(self.view.isnan().any())


def framed(*shape: int, pad: int = 0, device: str = "cpu") -> Framed:
    """Rows are ``pad`` elements further apart than need be."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    pitch = shape[-1] + pad
    buffer = torch.full((rows * pitch + 24,), 77.0, device=device)
    view = buffer[8:].as_strided(shape, _strides(shape, pitch), 8)
    view.fill_(torch.nan)
    return Framed(buffer, view)


def _strides(shape: tuple[int, ...], pitch: int) -> tuple[int, ...]:
    strides = [1, pitch]
    for size in reversed(shape[1:-1]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(shape)]))


def exact(m: int, n: int, k: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Small whole numbers, whose sums are exact: a in bf16, b in fp32."""
    return (
        exact_factor(m, k, torch.bfloat16, m + k, device),
        exact_factor(n, k, torch.float32, n + k, device),
    )


def normal(m: int, n: int, k: int, device: str = "cpu", seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal numbers: b has bits that tf32 has not."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    return a.to(torch.bfloat16).to(device), b.to(device)


def in_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the nearest number with 10 bits behind the first, ties to even."""
    bits = x.contiguous().view(torch.int32)
    return (bits + 0xFFF + (bits >> 13 & 1) & ~0x1FFF).view(torch.float32)


def parts(k: int, splits: int, block: int) -> list[slice]:
    """The shares of k: whole blocks, the remainder one each to the first."""
    blocks, start, found = -(-k // block), 0, []
    for index in range(splits):
        count = blocks // splits + (index < blocks % splits)
        found.append(slice(start * block, min(k, (start + count) * block)))
        start += count
    return found


def expected(
    a: torch.Tensor, b: torch.Tensor, splits: int = 1, arch: str = "sm90", sms: int = 132
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products and sums of squares in float64, a slice for each split, of blocks as the kernel has them there."""
    (m, k), n = a.shape, b.shape[0]
    shares = parts(k, splits, prenorm_spec(m, n, sms, arch, splits if splits > 1 else None).tile.k)
    wide, narrow = a.double(), in_tf32(b).double()
    products = [wide[:, part] @ narrow[:, part].T for part in shares]
    return torch.stack(products), torch.stack([wide[:, part].square().sum(1) for part in shares])


def allowed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far fp32 sums of a's and b's products may be off, whatever their order."""
    step = 2.0**-23 * (a.shape[1] / 8 + 16)
    wide = a.double()
    return wide.abs() @ b.double().abs().T * step, wide.square().sum(1) * step
