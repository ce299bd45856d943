"""One problem of the dense suites: random factors on the GPU, what they stand for, outputs to write to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from inputs import mn_major, quantise_blocks, quantise_rows

KINDS = ("fp8", "bf16")


@dataclass(frozen=True)
class Problem:
    """a [m, k] and b [n, k] in e4m3 with fp32 scales per 1x128 and 128x128, or in bf16 without; both k-contiguous."""

    kind: str
    a: torch.Tensor
    b: torch.Tensor
    sfa: torch.Tensor | None = None
    sfb: torch.Tensor | None = None
    values: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def random(cls, kind: str, m: int, n: int, k: int) -> Problem:
        """Normal numbers, quantised for fp8; a's scales are m-contiguous already."""
        if kind == "bf16":
            return cls(kind, *(torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n)))
        (a, sfa), a_value = quantise_rows(torch.randn(m, k, device="cuda"))
        (b, sfb), b_value = quantise_blocks(torch.randn(n, k, device="cuda"))
        return cls(kind, a, b, mn_major(sfa), sfb, (a_value, b_value))

    @cached_property
    def expected(self) -> torch.Tensor:
        """In fp32, of what the factors stand for."""
        if self.values is None:
            return self.raw
        return self.values[0] @ self.values[1].t()

    @cached_property
    def raw(self) -> torch.Tensor:
        """In fp32, of the codes alone: what one scale of 1 a tensor gives."""
        return self.a.float() @ self.b.float().t()

    def output(self) -> torch.Tensor:
        """bf16 [m, n] full of NaN."""
        shape = self.a.shape[0], self.b.shape[0]
        return torch.full(shape, math.nan, device="cuda", dtype=torch.bfloat16)
