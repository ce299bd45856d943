"""The operators of tensor cores that scale blocks, as users call them: mixed FP8 and FP4, MXFP4 and NVFP4.

Checks Python-level arguments; everything about tensors and scales is checked further in.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmgen.ops import dense_call, scaled_call
from gemmgen.ops.call_arguments import Pair, Recipe, check_compiled_dims, check_tensors, pair, transposed_pair
from gemmgen.ops.hot_call import hot
from gemmgen.ops.scaled_call import FP4, FP8_OR_FP4


@hot(pairs=("a", "b"), tensors=("d", "c"))
def fp8_fp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``d[m, n] = (a * sfa) . (b * sfb)^T (+ c)`` for ``a`` [m, k] and ``b`` [n, k], each e4m3 or e2m1, summed in fp32.

    a, b: pair of data and scales. Data is ``float8_e4m3fn`` or 4-bit, contiguous along k or along rows. 4-bit data is
        ``int8`` (or ``float4_e2m1fn_x2``), two neighbours along the contiguous dimension in a byte, the one of even
        index in the low half: [rows, k/2], or [rows/2, k] with strides (1, ..); beside an 8-bit factor k must be a
        multiple of 128, or each row be cut from one of whole 64 bytes; so must it on sm100 with two 4-bit factors that
        have a scale for 128. 4-bit data along rows, on sm120 8-bit too, is turned to lie along k by one kernel more.
        Scales are powers of two, one per row, or 32, 128 or any number of them, and per 32 or 128 of k: ``int32``
        [rows, ceil(k/gran/4)], four UE8M0 bytes a word, one per row, contiguous along rows with columns 16 bytes apart,
        are read as they lie. fp32, and ``float8_e8m0fnu`` or words that lie row by row, are brought to that form first,
        by one kernel more; others, as ``Blocked128x4(scales)``, by a few small ones, with
        ``transform_sf_into_required_layout``.
        fp32 scales must be powers of two and are never rounded, as the data was quantised with them. Others are refused
        on the CPU; on a GPU, where a look at them would wait for it, they count as NaN and so do the rows or columns of
        d that they belong to. ``GEMMGEN_CHECK_SCALES=1`` refuses there too; ``requantise_to_ue8m0`` is the way out.
    d: bf16 or fp32 [m, n] to write to; allocated when left out. Returned either way.
    c: added, of d's type and shape; may be d itself.
    recipe: (rows per scale of a, of b, k per scale of both), or recipe_a and recipe_b (rows, k). By default 128 of k,
        one scale per row of a, and for b one per row or per 128 as their number says; scales of any type but fp32 and
        int32 need one.
    compiled_dims: accepted for compatibility; extents are run-time values.
    disable_ue8m0_cast: refused with fp32 scales, which tensor cores cannot keep.
    out_dtype: type of an allocated d; c's or bf16 by default.

    Two 4-bit factors with scales per 32 of k run at the full 4-bit rate. Two 8-bit ones are :func:`fp8_gemm_nt`.
    """
    return _fp8_fp4(a, b, d, c, (recipe, recipe_a, recipe_b), compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
def fp8_fp4_gemm_nn(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`fp8_fp4_gemm_nt` for ``b`` given as [k, n] and its scales likewise; 4-bit data as there."""
    b = transposed_pair("b", b)
    recipes = recipe, recipe_a, recipe_b
    return _fp8_fp4(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
def fp8_fp4_gemm_tn(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`fp8_fp4_gemm_nt` for ``a`` as [k, m] and ``b`` as [k, n], scales likewise; 4-bit data as there."""
    a, b = transposed_pair("a", a), transposed_pair("b", b)
    recipes = recipe, recipe_a, recipe_b
    return _fp8_fp4(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
def fp8_fp4_gemm_tt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`fp8_fp4_gemm_nt` for ``a`` given as [k, m] and its scales likewise; 4-bit data as there."""
    a = transposed_pair("a", a)
    recipes = recipe, recipe_a, recipe_b
    return _fp8_fp4(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
def mxfp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``d[m, n] = (a * sfa) . (b * sfb)^T (+ c)`` for e2m1 factors with a power of two per row and 32 of k.

    a, b: pair of 4-bit data, k contiguous, and scales in any form that :func:`fp8_fp4_gemm_nt` takes.
    d, c, out_dtype: as there.
    """
    (a_data, _), (b_data, _) = pair("a", a), pair("b", b)
    check_tensors(a=a_data, b=b_data)
    scaled_call.check_types("mxfp4_gemm_nt", a_data, b_data, FP4)
    return scaled_call.ue8m0(a, b, d, c, (None, (1, 32), (1, 32)), out_dtype)


def nvfp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``d[m, n] = alpha * (a * sfa) . (b * sfb)^T (+ c)`` for e2m1 factors with UE4M3 scales per row and 16 of k.

    a, b: 4-bit data, k contiguous, and scales: ``float8_e4m3fn`` [rows, ceil(k/16)], the same in ``Blocked128x4``, or
        int32 [rows, ceil(k/64)] with four bytes a word. A third item is the scale of the whole tensor, a number:
        :func:`cast_to_nvfp4` returns all three.
    alpha: multiplies the product, beside the scales of both tensors.
    d, c, out_dtype: as in :func:`fp8_fp4_gemm_nt`.
    """
    a, scale_a = _without_tensor_scale("a", a)
    b, scale_b = _without_tensor_scale("b", b)
    (a_data, _), (b_data, _) = pair("a", a), pair("b", b)
    check_tensors(a=a_data, b=b_data)
    scaled_call.check_types("nvfp4_gemm_nt", a_data, b_data, FP4)
    return scaled_call.ue4m3(a, b, d, c, _number("alpha", alpha) * scale_a * scale_b, out_dtype)


def _fp8_fp4(
    a: Any,
    b: Any,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    recipes: scaled_call.Recipes,
    compiled_dims: str,
    disable_ue8m0_cast: bool,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    (a_data, _), (b_data, _) = pair("a", a), pair("b", b)
    check_compiled_dims(compiled_dims)
    check_tensors(a=a_data, b=b_data)
    scaled_call.check_types("fp8_fp4_gemm_nt", a_data, b_data, FP8_OR_FP4)
    return dense_call.fp8(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


def _without_tensor_scale(name: str, value: Any) -> tuple[Any, float]:
    if not isinstance(value, tuple | list) or len(value) != 3:
        return value, 1.0
    return value[:2], _number(f"{name}[2]", value[2])


def _number(name: str, value: Any) -> float:
    """A host number, also from a tensor whose value the host has."""
    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
        raise TypeError(
            f"{name}: is a tensor of {value.numel()} on {value.device}; it is passed to the kernel as a number, and "
            "reading it on each call would wait for the GPU; pass float(scale), read once"
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)  # asked first: compilers know of their numbers' types, not of their methods
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: is a {type(value).__name__}; must be a number")
    return float(value)
