"""Problems of the grouped suites: random factors on the GPU, layouts of groups, outputs to write to, and references.

Groups have between 0.7 and 1.3 times the mean of rows (or of k), as routed tokens have, and rows of no group hold NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from inputs import Scaled, mn_major, quantise_blocks, quantise_rows, worst_tile

ALIGNMENT = 128
"""Rows or k that padded groups have multiples of."""
UNEVEN = 0.3
CAPACITY = 4096
"""Rows of a group's matrix where every group has its own."""

Factor = torch.Tensor | Scaled


@dataclass(frozen=True)
class Case:
    """One row of the suite. ``form``: contiguous (padded, by ids), masked, or k; ``rows`` are all rows, or all k."""

    form: str
    kind: str
    groups: int
    rows: int
    n: int
    k: int
    published_us: float
    """DeepGEMM main 54e2261 on an H100 80GB HBM3, CUDA events, L2 flushed by a write."""

    def counts(self) -> list[int]:
        """Real rows (or k) of every group, the same in every run."""
        draw = random.Random(str(self))
        unit = 1 if self.form == "masked" else ALIGNMENT
        shares = [1 + draw.uniform(-UNEVEN, UNEVEN) for _ in range(self.groups)]
        units = [max(1, int(self.rows / unit * share / sum(shares))) for share in shares]
        for index in range(self.rows // unit - sum(units)):
            units[index % self.groups] += 1
        short = [draw.randrange(ALIGNMENT) if self.form == "contiguous" else 0 for _ in units]
        return [each * unit - less for each, less in zip(units, short, strict=True)]


@dataclass
class Problem:
    """Factors of a case. ``a`` is [rows, k] or [groups, capacity, k], ``b`` [groups, n, k]."""

    case: Case
    counts: list[int]
    starts: list[int]
    a: torch.Tensor
    b: torch.Tensor
    layout: torch.Tensor
    sfa: torch.Tensor | None = None
    sfb: torch.Tensor | None = None

    @classmethod
    def random(cls, case: Case, padded: bool = True) -> Problem:
        """Normal numbers, quantised for fp8. Without ``padded`` groups lie right behind one another, by offsets."""
        counts = case.counts()
        own = case.form == "masked"
        starts, end = [], 0
        for count in counts:
            starts.append(0 if own else end)
            end += -(-count // ALIGNMENT) * ALIGNMENT if padded else count
        lead = (case.groups, CAPACITY) if own else (end,)
        fp8 = case.kind == "fp8"
        dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        a = torch.full((*lead, case.k), math.nan, device="cuda").to(dtype)
        b = torch.empty(case.groups, case.n, case.k, device="cuda", dtype=dtype)
        blocks = -(-case.k // 128)
        sfa = torch.full((*lead, blocks), math.nan, device="cuda") if fp8 else None
        sfb = torch.empty(case.groups, -(-case.n // 128), blocks, device="cuda") if fp8 else None
        for group, (start, count) in enumerate(zip(starts, counts, strict=True)):
            where = (group, slice(count)) if own else slice(start, start + count)
            rows, weights = (torch.randn(each, case.k, device="cuda") for each in (count, case.n))
            if sfa is None or sfb is None:
                a[where], b[group] = rows.to(dtype), weights.to(dtype)
            else:
                (a[where], sfa[where]), _ = quantise_rows(rows)
                (b[group], sfb[group]), _ = quantise_blocks(weights)
        if sfa is not None:
            sfa = torch.stack([mn_major(each) for each in sfa]) if own else mn_major(sfa)
            if own:
                sfa = sfa.mT.contiguous().mT
        layout = cls._layout(case, counts, starts, end, padded)
        return cls(case, counts, starts, a, b, layout, sfa, sfb)

    @staticmethod
    def _layout(case: Case, counts: list[int], starts: list[int], end: int, padded: bool) -> torch.Tensor:
        if case.form == "masked":
            return torch.tensor(counts, dtype=torch.int32, device="cuda")
        if not padded:
            ends = [start + count for start, count in zip(starts, counts, strict=True)]
            return torch.tensor(ends, dtype=torch.int32, device="cuda")
        ids = torch.full((end,), -1, dtype=torch.int32, device="cuda")
        for group, (start, count) in enumerate(zip(starts, counts, strict=True)):
            ids[start : start + count] = group
        return ids

    def output(self) -> torch.Tensor:
        """bf16, full of NaN."""
        return torch.full((*self.a.shape[:-1], self.case.n), math.nan, device="cuda", dtype=torch.bfloat16)

    def rows(self, tensor: torch.Tensor, group: int) -> torch.Tensor:
        """A group's rows of a, sfa or d."""
        count = self.counts[group]
        if self.case.form == "masked":
            return tensor[group, :count]
        return tensor[self.starts[group] :][:count]

    def expected(self) -> Iterator[torch.Tensor]:
        """Each group's product in fp32, of what its factors stand for."""
        for group in range(self.case.groups):
            a, b = self.rows(self.a, group).float(), self.b[group].float()
            if self.sfa is not None and self.sfb is not None:
                a = a * widened(self.rows(self.sfa, group), 1, self.case.k)
                b = b * widened(self.sfb[group].repeat_interleave(128, 0)[: self.case.n], 1, self.case.k)
            yield a @ b.t()

    def worst(self, d: torch.Tensor) -> float:
        """The worst tile's error of any group."""
        return max(worst_tile(self.rows(d, group), each) for group, each in enumerate(self.expected()))


def widened(scales: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """A scale for 128 elements, one for each."""
    return scales.repeat_interleave(128, axis).narrow(axis, 0, size)


@dataclass
class KProblem:
    """Factors of a case of groups of k: flat [m, k] of every group for fp8, [k, m] and [k, n] for bf16.

    Scales are [m, k/128], contiguous along m: DeepGEMM takes the other order for its own, too, and turns it in vain.
    """

    case: Case
    counts: list[int]
    a: Factor
    b: Factor
    values: list[tuple[torch.Tensor, torch.Tensor]]
    layout: torch.Tensor

    @classmethod
    def random(cls, case: Case) -> KProblem:
        """``n`` and ``k`` of the case are the rows of the factors; gradients are [groups, n, k]."""
        counts = case.counts()
        layout = torch.tensor(counts, dtype=torch.int32, device="cuda")
        factors, values = [], []
        for rows in (case.n, case.k):
            parts = [torch.randn(rows, count, device="cuda") for count in counts]
            if case.kind == "bf16":
                data = [part.bfloat16() for part in parts]
                factors.append(torch.cat([part.mT for part in data]).contiguous())
                values.append([part.float() for part in data])
                continue
            pairs = [quantise_rows(part) for part in parts]
            flat = torch.cat([part.flatten() for (part, _), _ in pairs])
            factors.append((flat, torch.cat([scale.mT for (_, scale), _ in pairs]).contiguous().mT))
            values.append([value for _, value in pairs])
        return cls(case, counts, factors[0], factors[1], list(zip(*values, strict=True)), layout)

    def sums(self) -> torch.Tensor:
        """fp32 [groups, n, k] to add to, normal."""
        return torch.randn(self.case.groups, self.case.n, self.case.k, device="cuda")

    def worst(self, d: torch.Tensor, before: torch.Tensor) -> float:
        """The worst tile's error of any group, of what was added."""
        return max(
            worst_tile(each, start + a @ b.t()) for each, start, (a, b) in zip(d, before, self.values, strict=True)
        )
