"""Products whose result is quantised in the epilogue, as users call them: what the next product reads, in one launch.

Knows argument conventions; the chains are ordinary epilogues, and ``fuse`` makes operators of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from gemmgen import catalog
from gemmgen.ir import Epilogue
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import Pair, Recipe, pair
from gemmgen.ops.fused_op import MADE, fuse
from gemmgen.ops.hot_call import hot
from gemmgen.ops.quantise.layout import has_mn_major_strides

Quantised = tuple[torch.Tensor, torch.Tensor]


@hot(pairs=("a", "b"), tensors=("d_fp8", "d_sf"))
def fp8_gemm_nt_mxfp8out(
    a: Pair,
    b: Pair,
    d_fp8: torch.Tensor | None = None,
    d_sf: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
) -> Quantised:
    """:func:`fp8_gemm_nt` into MXFP8: e4m3 data with one power of two for 32 columns of a row, both returned.

    The fp32 sums are quantised, not bf16 numbers made of them, by the rule of ``cast_to_mxfp8`` and bit for bit.
    a, b, recipe, recipe_a, recipe_b: as fp8_gemm_nt takes them.
    d_fp8: e4m3 [m, n] to write to; allocated when left out.
    d_sf: scales to write to: ``float8_e8m0fnu`` [m, ceil(n/32)] row by row, or int32 [m, ceil(n/128)], four a word,
        contiguous along m with columns 16 bytes apart, as sm100 and sm120 read the scales of a next product's ``a``.
        Left out: words where tensor cores apply scales, bytes elsewhere.
    """
    data, _ = pair("a", a)
    run = MADE[mxfp8_name("fp8_gemm_nt", packed_scales(data, d_sf))].apply
    return _both(run(a, b, d_fp8=d_fp8, d_sf=d_sf, recipe=recipe, recipe_a=recipe_a, recipe_b=recipe_b))


@hot(tensors=("a", "b", "d_fp8", "d_sf"))
def bf16_gemm_nt_mxfp8out(
    a: torch.Tensor, b: torch.Tensor, d_fp8: torch.Tensor | None = None, d_sf: torch.Tensor | None = None
) -> Quantised:
    """:func:`bf16_gemm_nt` into MXFP8; outputs are those of :func:`fp8_gemm_nt_mxfp8out`."""
    return _both(MADE[mxfp8_name("bf16_gemm_nt", packed_scales(a, d_sf))].apply(a, b, d_fp8=d_fp8, d_sf=d_sf))


@hot(pairs=("a", "b"), tensors=("d_fp8", "d_sf"))
def fp8_gemm_nt_fp8out(
    a: Pair,
    b: Pair,
    d_fp8: torch.Tensor | None = None,
    d_sf: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
) -> Quantised:
    """:func:`fp8_gemm_nt` into e4m3 with one fp32 scale for 128 columns of a row, both returned.

    The fp32 sums are quantised by the rule of ``per_token_cast_to_fp8`` with ``use_ue8m0=False``, bit for bit.
    a, b, recipe, recipe_a, recipe_b: as fp8_gemm_nt takes them.
    d_fp8: e4m3 [m, n] to write to; allocated when left out.
    d_sf: fp32 scales [m, ceil(n/128)] to write to, contiguous along n, or along m as sm90 reads the scales of a next
        product's ``a``; left out, they lie along m, columns 16 bytes apart.
    """
    run = MADE[_fp8("fp8_gemm_nt", _major(d_sf))].apply
    return _both(run(a, b, d_fp8=d_fp8, d_sf=d_sf, recipe=recipe, recipe_a=recipe_a, recipe_b=recipe_b))


@hot(tensors=("a", "b", "d_fp8", "d_sf"))
def bf16_gemm_nt_fp8out(
    a: torch.Tensor, b: torch.Tensor, d_fp8: torch.Tensor | None = None, d_sf: torch.Tensor | None = None
) -> Quantised:
    """:func:`bf16_gemm_nt` into e4m3 with one fp32 scale for 128 columns, as :func:`fp8_gemm_nt_fp8out`."""
    return _both(MADE[_fp8("bf16_gemm_nt", _major(d_sf))].apply(a, b, d_fp8=d_fp8, d_sf=d_sf))


def packed_scales(a: object, d_sf: torch.Tensor | None) -> bool:
    """Whether MXFP8 scales are words of four: as they are given, else as the next product reads them."""
    return d_sf.dtype == torch.int32 if isinstance(d_sf, torch.Tensor) else scales_blocks(a)


def _major(d_sf: torch.Tensor | None) -> str:
    """How fp32 scales lie: along m unless they are given and lie along n alone, where a single one has any stride."""
    if not isinstance(d_sf, torch.Tensor) or d_sf.dim() != 2:
        return "m"
    along_n = d_sf.stride(1) == 1 or d_sf.shape[1] == 1
    return "n" if along_n and not has_mn_major_strides(d_sf) else "m"


def mxfp8_name(operator: str, words: bool) -> str:
    """The registered name of an operator into MXFP8."""
    return _fused(operator, catalog.mxfp8_output, words)


def _fp8(operator: str, major: str) -> str:
    return _fused(operator, catalog.fp8_output, major)


# Compilers do not look into how specs are made.
mxfp8_name = torch.compiler.assume_constant_result(mxfp8_name)
_fp8 = torch.compiler.assume_constant_result(_fp8)


@cache
def _fused(operator: str, epilogue: Callable[[Any], Epilogue], choice: Any) -> str:
    return fuse(operator, epilogue(choice)).name


def _both(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> Quantised:
    assert isinstance(outputs, tuple)
    return outputs[0], outputs[1]
