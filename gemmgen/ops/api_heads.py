"""``fp8_gemm_nt_skip_head_mid`` as users call it: a product whose columns leave gaps in the middle of heads.

Knows argument conventions; the chain is an ordinary epilogue, and ``fuse`` makes an operator of it for given heads.
"""

from __future__ import annotations

from functools import cache

import torch

from gemmgen import catalog
from gemmgen.ir import DType, HeadSplit
from gemmgen.ops import scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import (
    Pair,
    Recipe,
    check_compiled_dims,
    check_tensors,
    checked_head_splits,
    output_dtype,
    pair,
)
from gemmgen.ops.fused_op import MADE, fuse
from gemmgen.ops.hot_call import hot


@hot(pairs=("a", "b"), tensors=("d",))
def fp8_gemm_nt_skip_head_mid(
    a: Pair,
    b: Pair,
    d: torch.Tensor,
    head_splits: tuple[int, int, int],
    recipe: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> torch.Tensor:
    """:func:`fp8_gemm_nt` whose columns leave a gap in the middle of every head: what goes there is written by others.

    d: bf16 or fp32 [m, n + n / (left + right) * mid], written but for the gaps, and returned.
    head_splits: (left, mid, right); column n goes to n + (n + right) // (left + right) * mid. n is whole heads of
        left + right, which are even. The kernel is made for them at the first call. It stores by TMA where left and
        right are multiples of 64 columns (32 in fp32) and mid is one of 8 (4); else from registers.
    a, b, recipe, compiled_dims, disable_ue8m0_cast: as in :func:`fp8_gemm_nt`.
    """
    (data, sfa), (_, sfb) = pair("a", a), pair("b", b)
    check_compiled_dims(compiled_dims)
    splits = checked_head_splits(head_splits)
    if d is None:
        raise TypeError("d: is missing; pass the tensor whose gaps hold, or will hold, something else")
    check_tensors(d=d)
    if disable_ue8m0_cast and scales_blocks(data):
        scaled_call.refuse_fp32(sfa, sfb)
    wide = output_dtype(d, None, None) == torch.float32
    MADE[_operator(wide, *splits)].apply(a, b, d=d, recipe=recipe)
    return d


def _operator(wide: bool, left: int, mid: int, right: int) -> str:
    return _fused(wide, left, mid, right)


_operator = torch.compiler.assume_constant_result(_operator)  # compilers do not look into how specs are made


@cache
def _fused(wide: bool, left: int, mid: int, right: int) -> str:
    heads = HeadSplit(left=left, mid=mid, right=right)
    return fuse("fp8_gemm_nt", catalog.head_split_output(DType.F32 if wide else DType.BF16, heads)).name
