"""The operators of row groups as users call them: rows of ``a`` are shared out among groups, each with a ``b``.

States what a layout holds; everything about tensors and scales is checked further in. Layouts stay on the device:
nothing waits for them, and numbers that break their rules reach no memory that is not the call's.
"""

from __future__ import annotations

import torch

from gemmgen.ops import grouped_call
from gemmgen.ops.api_fused import Quantised, mxfp8_name, packed_scales
from gemmgen.ops.call_arguments import Pair, Recipe, check_compiled_dims, pair, transposed, transposed_pair
from gemmgen.ops.groups import contiguous, masked

FP8, MIXED, BF16 = (f"m_grouped_{product}_gemm_nt" for product in ("fp8", "fp8_fp4", "bf16"))


def m_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """``d[rows of g] = (a[rows of g] * sfa) . (b[g] * sfb[g])^T``, each group's rows one behind the other in ``a``.

    a: pair of data [m, k] and scales, as :func:`fp8_gemm_nt` takes them; on sm100 and sm120 a and b may be of 4 bits,
        as :func:`fp8_fp4_gemm_nt` has it.
    b: pair of data [groups, n, k] and scales, one more dimension than there; with ``transform_sf_into_required_layout``
        beforehand they are read as they lie, otherwise brought to that form in every call.
    d: bf16 or fp32 [m, n] to write to; allocated for None. Returned either way. Rows of no group are left as they are.
    grouped_layout: int32, contiguous, on a's device. One of three:
        [m], for every row its group, or -1 for padding: groups start at multiples of
        ``get_mk_alignment_for_contiguous_layout()``, and -1 follows their rows;
        [groups] with ``use_psum_layout``, for every group the row behind its last: a group starts where the one before
        ended, rounded up to that alignment;
        [groups] with ``offsets``, likewise without any alignment or padding, as ``torch._grouped_mm`` has it.
        ``GEMMGEN_CHECK_GROUPS=1`` has its numbers looked at, which waits for the GPU.
    recipe, recipe_a, recipe_b, disable_ue8m0_cast: as fp8_gemm_nt takes them.
    compiled_dims: accepted for compatibility; extents are run-time values.
    ensure_zero_padding: with ``use_psum_layout``, the rows of d between groups become 0.
    expected_m_for_psum_layout: rows that a group will have, about; it may change which tile is taken and nothing else.
    out_dtype: type of an allocated d; bf16 by default.
    bias: bf16 or fp32 [groups, n], added to every row in fp32.
    activation, gate: as fp8_gemm_nt takes them.
    """
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, expected_m_for_psum_layout)
    operator, scales = f"{FP8}_contiguous", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    return grouped_call.scaled(a, b, d, grouped_layout, operator, groups, *scales, out_dtype, bias, activation, gate)


def m_grouped_fp8_gemm_nn_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_fp8_gemm_nt_contiguous` for ``b`` [groups, k, n] and its scales likewise."""
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, None)
    operator, scales = f"{FP8}_contiguous", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    b = transposed_pair("b", b, 3)
    return grouped_call.scaled(a, b, d, grouped_layout, operator, groups, *scales, out_dtype)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_fp8_gemm_nt_contiguous` by the name that says 4 bits; both take the same factors."""
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, expected_m_for_psum_layout)
    operator, scales = f"{MIXED}_contiguous", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    return grouped_call.scaled(a, b, d, grouped_layout, operator, groups, *scales, out_dtype, bias, activation, gate)


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_fp8_fp4_gemm_nt_contiguous` for ``b`` [groups, k, n] and its scales likewise."""
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, None)
    operator, scales = f"{MIXED}_contiguous", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    b = transposed_pair("b", b, 3)
    return grouped_call.scaled(a, b, d, grouped_layout, operator, groups, *scales, out_dtype)


def m_grouped_bf16_gemm_nt_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_fp8_gemm_nt_contiguous` for bf16 ``a`` [m, k] and ``b`` [groups, n, k], summed in fp32."""
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, expected_m_for_psum_layout)
    operator = f"{BF16}_contiguous"
    return grouped_call.bf16(a, b, d, grouped_layout, operator, groups, out_dtype, bias, activation, gate)


def m_grouped_bf16_gemm_nn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_bf16_gemm_nt_contiguous` for ``b`` [groups, k, n]."""
    check_compiled_dims(compiled_dims)
    groups = contiguous(use_psum_layout, offsets, ensure_zero_padding, None)
    return grouped_call.bf16(a, transposed("b", b, 3), d, grouped_layout, f"{BF16}_contiguous", groups, out_dtype)


def m_grouped_fp8_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    masked_m: torch.Tensor,
    expected_m: int | None = None,
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
    """``d[g] = (a[g] * sfa[g]) . (b[g] * sfb[g])^T`` in the first ``masked_m[g]`` rows of every group; others stay.

    a: pair of data [groups, m, k] and scales of one dimension more than :func:`fp8_gemm_nt` takes; read as they lie
        when contiguous along k, or along m with columns 16 bytes apart, strides (k/128 * align(m, 4), 1, align(m, 4)).
        On sm100 and sm120 a and b may be of 4 bits, as :func:`fp8_fp4_gemm_nt` has it.
    b: pair of data [groups, n, k] and scales, likewise.
    d: bf16 or fp32 [groups, m, n] to write to; allocated for None. Returned either way.
    masked_m: int32 [groups], contiguous, on a's device.
    expected_m: rows that a group will have, about; it may change which tile is taken and nothing else.
    recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, out_dtype, bias, activation, gate: as
        :func:`m_grouped_fp8_gemm_nt_contiguous`.
    """
    check_compiled_dims(compiled_dims)
    operator, scales = f"{FP8}_masked", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    groups = masked(expected_m)
    return grouped_call.scaled(a, b, d, masked_m, operator, groups, *scales, out_dtype, bias, activation, gate)


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    masked_m: torch.Tensor,
    expected_m: int | None = None,
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
    """:func:`m_grouped_fp8_gemm_nt_masked` by the name that says 4 bits; both take the same factors."""
    check_compiled_dims(compiled_dims)
    operator, scales = f"{MIXED}_masked", (recipe, recipe_a, recipe_b, disable_ue8m0_cast)
    groups = masked(expected_m)
    return grouped_call.scaled(a, b, d, masked_m, operator, groups, *scales, out_dtype, bias, activation, gate)


def m_grouped_bf16_gemm_nt_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None,
    masked_m: torch.Tensor,
    expected_m: int | None = None,
    compiled_dims: str = "nk",
    *,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """:func:`m_grouped_fp8_gemm_nt_masked` for bf16 ``a`` [groups, m, k] and ``b`` [groups, n, k], summed in fp32."""
    check_compiled_dims(compiled_dims)
    groups = masked(expected_m)
    return grouped_call.bf16(a, b, d, masked_m, f"{BF16}_masked", groups, out_dtype, bias, activation, gate)


def m_grouped_fp8_gemm_nt_contiguous_mxfp8out(
    a: Pair,
    b: Pair,
    d_fp8: torch.Tensor | None,
    d_sf: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    use_psum_layout: bool = False,
    expected_m_for_psum_layout: int | None = None,
    *,
    offsets: bool = False,
) -> Quantised:
    """:func:`m_grouped_fp8_gemm_nt_contiguous` into MXFP8, as :func:`fp8_gemm_nt_mxfp8out` has it.

    a, b, grouped_layout, recipe, recipe_a, recipe_b, use_psum_layout, expected_m_for_psum_layout, offsets: as there.
    d_fp8: e4m3 [m, n] to write to; allocated for None.
    d_sf: scales to write to: ``float8_e8m0fnu`` [m, ceil(n/32)] row by row, or int32 [m, ceil(n/128)], four a word, as
        sm100 and sm120 read the scales of a next product's ``a``. For None: words there, bytes elsewhere.
    """
    data, _ = pair("a", a)
    groups = contiguous(use_psum_layout, offsets, False, expected_m_for_psum_layout)
    operator = mxfp8_name(f"{FP8}_contiguous", packed_scales(data, d_sf))
    return grouped_call.quantised(a, b, d_fp8, d_sf, grouped_layout, operator, groups, recipe, recipe_a, recipe_b)


fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked
