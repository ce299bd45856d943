"""A plain product in Triton, as a user would write it: block pointers, a software pipeline, one of three tiles by m.

No peer's best: Triton is here to show what a short kernel without tuning gives. fp8 is block-scaled like ours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from problem import Problem

TILES = {64: (64, 64, 4, 4), 128: (128, 64, 4, 4)}
LARGE = (128, 128, 8, 4)
"""Rows, columns, warps and stages, for m up to so many and beyond; K blocks are 128 bytes."""
GROUP = 8


@triton.jit
def _kernel(
    a,
    b,
    d,
    sfa,
    sfb,
    m,
    n,
    k,
    sfa_column,
    sfb_row,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STRIP: tl.constexpr,
    SCALED: tl.constexpr,
):
    rows, columns = tl.cdiv(m, M), tl.cdiv(n, N)
    strip = tl.program_id(0) // (STRIP * columns)
    height = min(rows - strip * STRIP, STRIP)
    place = tl.program_id(0) % (STRIP * columns)
    at_m = (strip * STRIP + place % height) * M + tl.arange(0, M)
    at_n = place // height * N + tl.arange(0, N)
    at_k = tl.arange(0, K)
    a_at = a + at_m.to(tl.int64)[:, None] * k + at_k[None, :]
    b_at = b + at_n.to(tl.int64)[None, :] * k + at_k[:, None]
    inside_m, inside_n = at_m < m, at_n < n
    total = tl.zeros((M, N), dtype=tl.float32)
    for block in range(tl.cdiv(k, K)):
        inside_k = at_k < k - block * K
        x = tl.load(a_at, mask=inside_m[:, None] & inside_k[None, :], other=0.0)
        y = tl.load(b_at, mask=inside_n[None, :] & inside_k[:, None], other=0.0)
        if SCALED:
            scale_a = tl.load(sfa + block * sfa_column + at_m, mask=inside_m, other=0.0)
            scale_b = tl.load(sfb + at_n // 128 * sfb_row + block, mask=inside_n, other=0.0)
            total += tl.dot(x, y) * scale_a[:, None] * scale_b[None, :]
        else:
            total = tl.dot(x, y, total)
        a_at += K
        b_at += K
    d_at = d + at_m.to(tl.int64)[:, None] * n + at_n[None, :]
    tl.store(d_at, total.to(tl.bfloat16), mask=inside_m[:, None] & inside_n[None, :])


def gemm(problem: Problem, d: torch.Tensor) -> None:
    """Launch on the current stream."""
    m, n, k = problem.a.shape[0], *problem.b.shape
    rows, columns, warps, stages = TILES[min(size for size in TILES if m <= size)] if m <= max(TILES) else LARGE
    scaled = problem.sfa is not None and problem.sfb is not None
    sfa = problem.sfa if problem.sfa is not None else d
    sfb = problem.sfb if problem.sfb is not None else d
    _kernel[(triton.cdiv(m, rows) * triton.cdiv(n, columns),)](
        problem.a,
        problem.b,
        d,
        sfa,
        sfb,
        m,
        n,
        k,
        sfa.stride(1),
        sfb.stride(0),
        rows,
        columns,
        128 // problem.a.element_size(),
        GROUP,
        scaled,
        num_warps=warps,
        num_stages=stages,
    )
