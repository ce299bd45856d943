"""Small problems of row groups whose sums are exact: NaN where no group has a row, and what every row must become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from reference import exact_factor, exact_scales

N, K = 72, 160
SENTINEL = 776.0
"""What outputs hold before a call."""


@dataclass(frozen=True)
class Layout:
    """What a call is given as layout, the extent of m, and each group's rows: first and count, in its own matrix."""

    given: torch.Tensor
    m: int
    spans: tuple[tuple[int, int], ...]
    own: bool = False

    def rows_of(self, matrix: torch.Tensor, group: int) -> torch.Tensor:
        """A group's rows of a matrix of all groups, or of a stack of one for each."""
        start, count = self.spans[group]
        return (matrix[group] if self.own else matrix)[start : start + count]


def _int32(numbers: Sequence[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def ids(counts: Sequence[int], alignment: int, tail: int = 0) -> Layout:
    """Groups at multiples of an alignment, with ``tail`` blocks of padding behind the last."""
    given: list[int] = []
    spans = []
    for group, count in enumerate(counts):
        spans.append((len(given), count))
        given += [group] * count + [-1] * (-count % alignment)
    given += [-1] * (tail * alignment)
    return Layout(_int32(given), len(given), tuple(spans))


def ends(counts: Sequence[int], alignment: int = 1, tail: int = 0) -> Layout:
    """Groups right behind one another, or at multiples of an alignment; ``tail`` rows behind the last."""
    spans, end = [], 0
    for count in counts:
        start = -(-end // alignment) * alignment
        spans.append((start, count))
        end = start + count
    return Layout(_int32([start + count for start, count in spans]), end + tail, tuple(spans))


def counts_of(counts: Sequence[int], m: int) -> Layout:
    """Every group the first rows of its own m."""
    return Layout(_int32(counts), m, tuple((0, count) for count in counts), own=True)


@dataclass(frozen=True)
class Problem:
    """Factors, scales if any, and the float64 product of every group's rows, in an otherwise sentinel-filled matrix."""

    a: Any
    b: Any
    product: torch.Tensor
    layout: Layout

    def output(self, dtype: torch.dtype = torch.bfloat16, columns: int | None = None) -> torch.Tensor:
        """An output that has the sentinel everywhere."""
        shape = (*self.product.shape[:-1], columns or self.product.shape[-1])
        return torch.full(shape, SENTINEL).to(dtype)


def bf16_problem(layout: Layout, n: int = N, k: int = K) -> Problem:
    return _problem(layout, n, k, torch.bfloat16, 0)


def fp8_problem(layout: Layout, n: int = N, k: int = K, sfa: str = "k", columns: int = 128) -> Problem:
    """Scales of A contiguous along ``sfa``; one of B for 128 or 1 of its rows."""
    problem = _problem(layout, n, k, torch.float8_e4m3fn, columns)
    data, scales = problem.a
    return Problem((data, along_m(scales) if sfa == "m" else scales), problem.b, problem.product, layout)


def along_m(scales: torch.Tensor) -> torch.Tensor:
    """The same scales contiguous along m, columns 16 bytes apart, NaN between."""
    *groups, m, columns = scales.shape
    room = torch.full((*groups, columns, -(-m // 4) * 4), torch.nan)
    room[..., :m] = scales.mT
    return room[..., :m].mT


def _problem(layout: Layout, n: int, k: int, dtype: torch.dtype, columns: int) -> Problem:
    groups, blocks, shape = len(layout.spans), -(-k // 128), (layout.m,)
    rows = (groups, layout.m) if layout.own else shape
    a = torch.full((*rows, k), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(dtype)
    sfa = torch.full((*rows, blocks), torch.nan)
    b = torch.stack([exact_factor(n, k, dtype, 100 + group) for group in range(groups)])
    per = -(-n // columns) if columns else 1
    sfb = torch.stack([exact_scales(per, blocks, 200 + group) for group in range(groups)])
    product = torch.full((*rows, n), SENTINEL, dtype=torch.float64)
    for group, (_, count) in enumerate(layout.spans):
        layout.rows_of(a, group).copy_(exact_factor(count, k, dtype, 300 + group))
        layout.rows_of(sfa, group).copy_(exact_scales(count, blocks, 400 + group))
        left, right = layout.rows_of(a, group).double(), b[group].double()
        if columns:
            left = left * _spread(layout.rows_of(sfa, group), 1, k)
            right = right * _spread(sfb[group], columns, k)[:n]
        layout.rows_of(product, group).copy_(left @ right.T)
    return Problem((a, sfa), (b, sfb), product, layout) if columns else Problem(a, b, product, layout)


def _spread(scales: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    return scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)[:, :k]
