"""Random problems of groups on a GPU whose sums are exact: what is launched, and every byte that it must leave.

Numbers are small and whole, scales powers of two, so that any tile and any order of sums gives the same bits. What no
group owns holds NaN in factors and a sentinel in outputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from grouped_launch import ALIGNMENT, CUDA
from grouped_problems import SENTINEL, Layout, along_m, counts_of, ends, ids

from gemmgen import ops

FORMS = ("ids", "psum", "psum_zeros", "offsets", "masked")
KINDS = ("fp8", "bf16")


def counts_drawn(draw: random.Random) -> list[int]:
    """Rows of up to eight groups: none, a few, or several tiles of them, and at times none at all."""
    few = draw.choice([0, 1, 40, 400])
    return [
        draw.choice([0, 1, draw.randint(0, few), draw.randint(0, 300)]) if few else 0 for _ in range(draw.randint(1, 8))
    ]


def layout_drawn(form: str, draw: random.Random) -> Layout:
    """Groups of drawn sizes, with rows of nobody behind them."""
    counts, tail = counts_drawn(draw), draw.randint(0, 2)
    if form == "ids":
        return ids(counts, ALIGNMENT, tail or not any(counts))
    if form == "masked":
        return counts_of(counts, max(1, max(counts) + 40 * tail))
    return ends(counts, 1 if form == "offsets" else ALIGNMENT, max(1, 40 * tail))


def whole(*shape: int) -> torch.Tensor:
    """Numbers from -4 to 4 in fp32."""
    return torch.randint(-4, 5, shape, device=CUDA).float()


def powers(*shape: int) -> torch.Tensor:
    """Scales from 1/4 to 4."""
    return torch.exp2(torch.randint(-2, 3, shape, device=CUDA).float())


def spread(scales: torch.Tensor, rows: int, columns: int, extent: tuple[int, int]) -> torch.Tensor:
    """A scale for a block, as one for each element."""
    wide = scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return wide[..., : extent[0], : extent[1]]


@dataclass
class Rows:
    """Groups of rows: factors, the fp32 product of every row with every group's ``b``, and the layout in use."""

    form: str
    kind: str
    layout: Layout
    given: torch.Tensor
    a: Any
    b: Any
    products: torch.Tensor
    """[groups, m, n], or [groups, m, n] of each group's own rows."""

    @classmethod
    def drawn(cls, form: str, kind: str, layout: Layout, n: int, k: int, poisoned: bool = True) -> Rows:
        """Random factors for a layout; rows of nobody hold NaN unless a layout that moves may need them."""
        groups, own = len(layout.spans), layout.own
        lead = (groups, layout.m) if own else (layout.m,)
        a, b = whole(*lead, k), whole(groups, n, k)
        left, right, blocks = a, b, -(-k // 128)
        sfa, sfb = powers(*lead, blocks), powers(groups, -(-n // 128), blocks)
        if kind == "fp8":
            left = a * spread(sfa, 1, 128, (layout.m, k))
            right = b * spread(sfb, 128, 128, (n, k))
        products = left @ right.mT if own else torch.stack([left @ each.T for each in right])
        if poisoned:
            nobody = torch.ones(lead, dtype=torch.bool, device=CUDA)
            for group in range(groups):
                layout.rows_of(nobody, group).fill_(False)
            a[nobody] = sfa[nobody] = torch.nan
        if kind == "bf16":
            factors: tuple[Any, Any] = a.bfloat16(), b.bfloat16()
        else:
            data = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            factors = (data[0], along_m(sfa.cpu()).to(CUDA) if not own else sfa), (data[1], sfb)
        return cls(form, kind, layout, layout.given.to(CUDA), *factors, products)

    def output(self) -> torch.Tensor:
        """bf16 full of the sentinel."""
        shape = (*self.products.shape[:-1],) if self.layout.own else (self.layout.m,)
        return torch.full((*shape, self.products.shape[-1]), SENTINEL, device=CUDA, dtype=torch.bfloat16)

    def launch(self, d: torch.Tensor, hint: int | None = None) -> None:
        """The public op."""
        op = getattr(ops, f"m_grouped_{self.kind}_gemm_nt_{'masked' if self.form == 'masked' else 'contiguous'}")
        if self.form == "masked":
            op(self.a, self.b, d, self.given, hint)
            return
        psum = {"psum": (True, False), "psum_zeros": (True, True)}.get(self.form, (False, False))
        options = {"use_psum_layout": psum[0], "ensure_zero_padding": psum[1], "offsets": self.form == "offsets"}
        op(self.a, self.b, d, self.given, **options, **({"expected_m_for_psum_layout": hint} if psum[0] else {}))

    def expected(self, layout: Layout | None = None) -> torch.Tensor:
        """What a launch over ``output`` leaves, everywhere."""
        layout = layout or self.layout
        d = self.output()
        for group, (start, count) in enumerate(layout.spans):
            rows = self.products[group, start : start + count]
            layout.rows_of(d, group).copy_(rows)
            if self.form == "psum_zeros" and count:
                d[start + count : -(-(start + count) // ALIGNMENT) * ALIGNMENT] = 0
        return d


@dataclass
class Ks:
    """Groups of k: factors, sums to add to, and the products."""

    launch: Callable[[torch.Tensor], object]
    before: torch.Tensor
    products: torch.Tensor

    @classmethod
    def drawn(cls, kind: str, psum: bool, counts: list[int], m: int, n: int) -> Ks:
        """Random factors; what lies between groups holds NaN."""
        layout = ends(counts, ALIGNMENT if psum else 1)
        given = layout.given if psum else torch.tensor(counts, dtype=torch.int32)
        parts = [(whole(count, m), whole(count, n)) for count in counts]
        before = whole(len(counts), m, n)
        if kind == "bf16":
            a, b = (torch.full((max(1, layout.m), each), torch.nan, device=CUDA) for each in (m, n))
            for group, (left, right) in enumerate(parts):
                layout.rows_of(a, group).copy_(left)
                layout.rows_of(b, group).copy_(right)
            factors: tuple[Any, Any] = a.bfloat16()[: layout.m], b.bfloat16()[: layout.m]
            products = torch.stack([left.T @ right for left, right in parts])
            run, sizes = ops.k_grouped_bf16_gemm_tn_contiguous, {"use_psum_layout": psum}
        else:
            scales = [(powers(count // 128, m), powers(count // 128, n)) for count in counts]
            flat = [torch.cat([each[i].T.reshape(-1) for each in parts]).to(torch.float8_e4m3fn) for i in (0, 1)]
            factors = tuple((data, torch.cat([each[i] for each in scales])) for i, data in enumerate(flat))
            wide = [
                [x * s.repeat_interleave(128, 0) for x, s in zip(part, scale, strict=True)]
                for part, scale in zip(parts, scales, strict=True)
            ]
            products = torch.stack([left.T @ right for left, right in wide])
            run, sizes = ops.k_grouped_fp8_gemm_nt_contiguous, {}
        on_device = given.to(CUDA)
        return cls(lambda d: run(*factors, d, counts, on_device, d, **sizes), before, products)

    def expected(self) -> torch.Tensor:
        """What a launch over ``before`` leaves."""
        return self.before + self.products
