"""Makes the launches of `stress_plan` on corners of the same factors, and says how wrong a result is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from stress_plan import COLUMNS, LENGTH, ROWS, Launch, spec_of

import gemmgen
from gemmgen import ops


@dataclass(frozen=True)
class Factors:
    """Factors of which every problem takes a corner, so that a thousand shapes need no more memory than one."""

    a: torch.Tensor
    b: torch.Tensor
    a8: torch.Tensor
    b8: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor

    @classmethod
    def random(cls, device: str, rows: int = ROWS, columns: int = COLUMNS, length: int = LENGTH) -> Factors:
        """Normal data; scales that are no powers of two, those of A contiguous along m."""

        def normal(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.randn(count, length, device=device).to(dtype)

        return cls(
            normal(rows, torch.bfloat16),
            normal(columns, torch.bfloat16),
            normal(rows, torch.float8_e4m3fn),
            normal(columns, torch.float8_e4m3fn),
            (torch.rand(length // 128, rows, device=device) + 0.5).T,
            torch.rand(columns // 128, length // 128, device=device) + 0.5,
        )


def call(launch: Launch, factors: Factors, d: torch.Tensor) -> None:
    """One launch into ``d``: through the operator, or of the kernel that is named."""
    m, n, k, blocks = launch.m, launch.n, launch.k, -(-launch.k // 128)
    if launch.fp8:
        a, b = factors.a8[:m, :k], factors.b8[:n, :k]
        sfa, sfb = factors.sfa[:m, :blocks], factors.sfb[: -(-n // 128), :blocks]
        if launch.kernel is None:
            ops.fp8_gemm_nt((a, sfa), (b, sfb), d)
        else:
            _op(launch.kernel, launch.early)(a=a, sfa=sfa, b=b, sfb=sfb, d=d)
        return
    a, b = factors.a[:m, :k], factors.b[:n, :k]
    if launch.kernel is None:
        ops.bf16_gemm_nt(a, b, d)
    else:
        _op(launch.kernel, launch.early)(a=a, b=b, d=d)


@cache
def _op(kernel: str, early: bool) -> Any:
    """By name, so that what is between launches is short."""
    return gemmgen.op(spec_of(kernel, early))


def expected(launch: Launch, factors: Factors) -> torch.Tensor:
    """The product in float32 of what the factors stand for."""
    m, n, k = launch.m, launch.n, launch.k
    if not launch.fp8:
        return factors.a[:m, :k].float() @ factors.b[:n, :k].float().T
    a = factors.a8[:m, :k].float() * _spread(factors.sfa[:m], 1)[:, :k]
    return a @ (factors.b8[:n, :k].float() * _spread(factors.sfb, 128)[:n, :k]).T


def _spread(scales: torch.Tensor, rows: int) -> torch.Tensor:
    return scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)


def worst_tile(d: torch.Tensor, wanted: torch.Tensor, k: int) -> float:
    """The largest error of a 64x64 tile, relative to it or to a third of what sums of k have; NaN where an element is.

    A tile may be a single sum that happens to be near zero; terms have a variance of at least one.
    """

    def per_tile(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 64, 0, -x.shape[0] % 64))
        return padded.unflatten(1, (-1, 64)).unflatten(0, (-1, 64)).square().sum((1, 3))

    size = torch.maximum(per_tile(wanted), per_tile(torch.ones_like(wanted)) * k / 9)
    return float((per_tile(d.float() - wanted) / size).sqrt().max())
