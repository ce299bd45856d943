"""The operators as users call them: names, argument order and meanings of the field.

Arguments are checked further in; calls that were made before are repeated in front (``hot``).
"""

from __future__ import annotations

import torch

from gemmgen.ops import dense_call, library, prenorm
from gemmgen.ops.call_arguments import Pair, Recipe, check_tensors, transposed, transposed_pair
from gemmgen.ops.hot_call import hot


@hot(pairs=("a", "b"), tensors=("d", "c", "bias"))
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

    On sm100 and sm120 it is :func:`fp8_fp4_gemm_nt`, whose factors may be of 4 bits and whose scales of other kinds,
    which sm90 refuses. On sm90, with k contiguous in both:
    a: pair of data and fp32 scales [m, ceil(k/128)], read as they lie when contiguous along m with columns 16 bytes
        apart, or when row-major. Many that are row-major are turned first, by one small kernel more, as then both take
        less time than a kernel that gathers them; others are copied.
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
        "halves" need k of b contiguous, unless b is turned first: 4-bit numbers on sm100 and sm120, FP8 on sm120.
    """
    recipes, finish = (recipe, recipe_a, recipe_b), (bias, activation, gate)
    return dense_call.fp8(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype, finish)


@hot(pairs=("a", "b"), tensors=("d", "c"))
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
    return dense_call.fp8(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
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
    return dense_call.fp8(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(pairs=("a", "b"), tensors=("d", "c"))
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
    return dense_call.fp8(a, b, d, c, recipes, compiled_dims, disable_ue8m0_cast, out_dtype)


@hot(tensors=("a", "b", "d", "c", "bias"))
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
        "halves" need k of b contiguous.
    """
    return dense_call.bf16(a, b, d, c, compiled_dims, out_dtype, (bias, activation, gate))


@hot(tensors=("a", "b", "d", "c"))
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
    return dense_call.bf16(a, transposed("b", b), d, c, compiled_dims, out_dtype)


@hot(tensors=("a", "b", "d", "c"))
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
    return dense_call.bf16(transposed("a", a), transposed("b", b), d, c, compiled_dims, out_dtype)


@hot(tensors=("a", "b", "d", "c"))
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
    return dense_call.bf16(transposed("a", a), b, d, c, compiled_dims, out_dtype)


@hot(tensors=("a", "b", "d", "sqr_sum"))
def tf32_hc_prenorm_gemm(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sqr_sum: torch.Tensor, num_splits: int | None = None
) -> None:
    """``d[m, n] = a . b^T`` for bf16 ``a`` [m, k] and fp32 ``b`` [n, k], and ``sqr_sum[m]``, the sum of a's squares.

    ``a`` is cast exactly to tf32 on its way to the tensor core, ``b`` is rounded to it; sums are fp32. k is contiguous
    in both and a multiple of 64, n a multiple of 8, at most 32 on sm90 and 128 on sm120.
    d, sqr_sum: fp32 [m, n] and [m] to write to; sqr_sum is contiguous.
    num_splits: with a number of them, k is cut into so many parts, and d [num_splits, m, n] and sqr_sum
        [num_splits, m] receive a partial sum for each, to be added up. Where it is cut is the kernel's: parts are whole
        blocks of 64, or of 128 on sm90 while num_splits * ceil(m / 64) CTAs have an SM each, and may be empty.
    """
    check_tensors(a=a, b=b, d=d, sqr_sum=sqr_sum)
    if d is None:
        raise TypeError("d: is a NoneType; must be a torch.Tensor to write to, such as torch.empty(m, n)")
    run = library.prenorm_gemm if library.is_direct((a, b, d, sqr_sum)) else library.tf32_hc_prenorm_gemm
    run(a, b, d, sqr_sum, prenorm.stated_splits(num_splits))
