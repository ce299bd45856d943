"""The operators as users call them: names, argument order and meanings of the field, on top of ``library``.

Checks Python-level arguments (pairs, recipes, output types); everything about tensors is checked further in.
"""

from __future__ import annotations

import torch

from gemmgen.ops import dense, library, prenorm, scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import (
    Pair,
    Recipe,
    check_compiled_dims,
    check_recipe,
    check_tensors,
    output_dtype,
    pair,
    transposed,
    transposed_pair,
)
from gemmgen.ops.finish import finished
from gemmgen.ops.launch import relaunch


def fp8_gemm_nt(
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
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """``d[m, n] = (a * sfa) . (b * sfb)^T (+ c)`` for e4m3 ``a`` [m, k] and ``b`` [n, k], summed in fp32.

    On sm90, with k contiguous in both (on sm100 and sm120 see :func:`fp8_fp4_gemm_nt`):
    a: pair of data and fp32 scales [m, ceil(k/128)], read as they lie when row-major, or when contiguous along m with
        columns 16 bytes apart; scales that lie otherwise are copied first, by one small kernel more.
    b: pair of data and fp32 scales [ceil(n/128), ceil(k/128)] or, one per row, [n, ceil(k/128)]; likewise.
    d: bf16 or fp32 [m, n] to write to; allocated when left out. Returned either way.
    c: added, of d's type and shape; may be d itself.
    recipe: (1, 128, 128) or (1, 1, 128), or recipe_a (1, 128) with recipe_b (128, 128) or (1, 128); by default the
        shape of b's scales decides.
    compiled_dims, disable_ue8m0_cast: accepted for compatibility; extents are run-time values, scales are exact.
    out_dtype: type of an allocated d; c's or bf16 by default.
    bias: bf16 or fp32 [n], added to every row in fp32.
    activation: relu, squared_relu, gelu, gelu_tanh or silu, of the sum with c and bias, in fp32 before rounding.
    gate: "interleaved" or "halves": b's rows are those of gate and up, 8 of each in turn or all of gate first; d is
        [m, n/2], activation(gate) * up, with silu if no activation is named. bias [n] is added before; c is refused.
    """
    (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
    if bias is not None or activation is not None or gate is not None:
        check_compiled_dims(compiled_dims)
        recipes = {"recipe": recipe, "recipe_a": recipe_a, "recipe_b": recipe_b}
        return finished("fp8_gemm_nt", a, b, d, c, out_dtype, bias, activation, gate, **recipes)
    stated = recipe is not None or recipe_a is not None or recipe_b is not None
    if stated and not scales_blocks(a_data):
        check_tensors(b=b_data, sfb=sfb)
        check_recipe(b_data, sfb, recipe, recipe_a, recipe_b)
    check_compiled_dims(compiled_dims)
    if d is not None and out_dtype is None:
        slots = (a_data, sfa, b_data, sfb, d) if c is None else (a_data, sfa, b_data, sfb, c, d)
        if library.is_plain(slots) and relaunch(dense.PREPARED, slots):
            library.written(d)
            return d
    if scales_blocks(a_data):
        check_tensors(a=a_data, b=b_data)
        scaled_call.check_types("fp8_gemm_nt", a_data, b_data, (torch.float8_e4m3fn,))
        return scaled_call.ue8m0(a, b, d, c, (recipe, recipe_a, recipe_b), out_dtype, keeps_fp32=disable_ue8m0_cast)
    check_tensors(a=a_data, sfa=sfa, b=b_data, sfb=sfb, c=c, d=d)
    dtype = output_dtype(d, c, out_dtype)
    if d is not None:
        library.fp8_gemm_nt_out(a_data, sfa, b_data, sfb, c, d)
        return d
    if library.is_direct((a_data, sfa, b_data, sfb)):
        return dense.fp8_gemm(a_data, sfa, b_data, sfb, c, dense.empty(a_data, b_data, dtype))
    return library.fp8_gemm_nt(a_data, sfa, b_data, sfb, c, dtype)


def fp8_gemm_nn(
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
    """:func:`fp8_gemm_nt` for ``b`` given as [k, n] and its scales likewise; sm90 needs k contiguous."""
    b = transposed_pair("b", b)
    recipes = recipe, recipe_a, recipe_b
    return fp8_gemm_nt(a, b, d, c, *recipes, compiled_dims, disable_ue8m0_cast, out_dtype=out_dtype)


def fp8_gemm_tn(
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
    """:func:`fp8_gemm_nt` for ``a`` as [k, m] and ``b`` as [k, n], scales likewise; sm90 needs k contiguous."""
    a, b = transposed_pair("a", a), transposed_pair("b", b)
    recipes = recipe, recipe_a, recipe_b
    return fp8_gemm_nt(a, b, d, c, *recipes, compiled_dims, disable_ue8m0_cast, out_dtype=out_dtype)


def fp8_gemm_tt(
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
    """:func:`fp8_gemm_nt` for ``a`` given as [k, m] and its scales likewise; sm90 needs k contiguous."""
    a = transposed_pair("a", a)
    recipes = recipe, recipe_a, recipe_b
    return fp8_gemm_nt(a, b, d, c, *recipes, compiled_dims, disable_ue8m0_cast, out_dtype=out_dtype)


def bf16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    *,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """``d[m, n] = a . b^T (+ c)`` for bf16 ``a`` [m, k] and ``b`` [n, k], summed in fp32.

    Both may be transposed views.
    d: bf16 or fp32 [m, n] to write to; allocated when left out. Returned either way.
    c: added, of d's type and shape; may be d itself.
    compiled_dims: accepted for compatibility; extents are run-time values.
    out_dtype: type of an allocated d; c's or bf16 by default.
    bias: bf16 or fp32 [n], added to every row in fp32.
    activation: relu, squared_relu, gelu, gelu_tanh or silu, of the sum with c and bias, in fp32 before rounding.
    gate: "interleaved" or "halves": b's rows are those of gate and up, 8 of each in turn or all of gate first; d is
        [m, n/2], activation(gate) * up, with silu if no activation is named. bias [n] is added before; c is refused.
    """
    check_compiled_dims(compiled_dims)
    if bias is not None or activation is not None or gate is not None:
        return finished("bf16_gemm_nt", a, b, d, c, out_dtype, bias, activation, gate)
    if d is not None and out_dtype is None:
        slots = (a, b, d) if c is None else (a, b, c, d)
        if library.is_plain(slots) and relaunch(dense.PREPARED, slots):
            library.written(d)
            return d
    check_tensors(a=a, b=b, c=c, d=d)
    dtype = output_dtype(d, c, out_dtype)
    if d is not None:
        library.bf16_gemm_nt_out(a, b, c, d)
        return d
    if library.is_direct((a, b)):
        return dense.bf16_gemm(a, b, c, dense.empty(a, b, dtype))
    return library.bf16_gemm_nt(a, b, c, dtype)


def bf16_gemm_nn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``b`` given as [k, n]."""
    return bf16_gemm_nt(a, transposed("b", b), d, c, compiled_dims, out_dtype=out_dtype)


def bf16_gemm_tn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``a`` given as [k, m] and ``b`` as [k, n]."""
    return bf16_gemm_nt(transposed("a", a), transposed("b", b), d, c, compiled_dims, out_dtype=out_dtype)


def bf16_gemm_tt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``a`` given as [k, m]."""
    return bf16_gemm_nt(transposed("a", a), b, d, c, compiled_dims, out_dtype=out_dtype)


def tf32_hc_prenorm_gemm(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None = None
) -> None:
    """``d[m, n] = a . b^T`` for bf16 ``a`` [m, k] and fp32 ``b`` [n, k], and ``sqr_sum[m]``, the sum of a's squares.

    ``a`` is cast exactly to tf32 on its way to the tensor core, ``b`` is rounded to it; sums are fp32. k is contiguous
    in both and a multiple of 64, n a multiple of 8, at most 32 on sm90 and 128 on sm120.
    d, sqr_sum: fp32 [m, n] and [m] to write to; sqr_sum is contiguous.
    num_splits: with a number of them, k is cut into so many parts of whole blocks of 64, the remainder one each to
        the first, and d [num_splits, m, n] and sqr_sum [num_splits, m] receive a partial sum for each.
    """
    check_tensors(a=a, b=b, d=d, sqr_sum=sqr_sum)
    if d is None:
        raise TypeError("d: is a NoneType; must be a torch.Tensor to write to, such as torch.empty(m, n)")
    slots = prenorm.slots(a, b, d, sqr_sum, num_splits)
    if slots is not None and library.is_plain(slots) and relaunch(prenorm.PREPARED, slots):
        library.written(d)
        library.written(sqr_sum)
        return
    library.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
