"""d[rows of g] = (a * sfa)[those rows] @ (b[g] * sfb[g]) for each of G groups of rows.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def m_grouped_fp8_gemm_nn_contiguous(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: tuple[int, ...] | None = None,
    recipe_a: tuple[int, ...] | None = None,
    recipe_b: tuple[int, ...] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    *,
    offsets: bool = False,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """d[rows of g] = (a * sfa)[those rows] @ (b[g] * sfb[g]) for each of G groups of rows.

    Arguments:
        a: pair of data [M, K] and scales, as fp8_gemm_nt takes them.
        b: pair of data [G, K, N] and scales, one more dimension than fp8_gemm_nn takes.
        d: bf16 or fp32 [M, N] to write to; None allocates it; returned either way. Rows of no group stay.
        grouped_layout: int32, contiguous, where a is: [M], each row's group or -1, groups at multiples of
            get_mk_alignment_for_contiguous_layout(); or [G], the row behind each group's last.
        recipe: (rows a scale of a, of b, elements of K a scale of both), as fp8_fp4_gemm_nt.
        recipe_a: (rows, elements of K) a scale of a, together with recipe_b, instead of recipe.
        recipe_b: (rows, elements of K) a scale of b, together with recipe_a, instead of recipe.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        disable_ue8m0_cast: accepted for compatibility; refused with fp32 scales on sm100 and sm120.
        use_psum_layout: grouped_layout is [G], groups start where the one before ended, rounded up to the alignment.
        ensure_zero_padding: with use_psum_layout, rows of d between groups become 0.
        offsets: grouped_layout is [G], groups start where the one before ended, without any padding.
        out_dtype: type of a d that is allocated: bf16 if left out.

    M, N, K and G may be any size: without rows, columns or groups nothing is launched, and groups may be empty.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm90")`` or ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 78 kernels in this package as kernels/sm100/sm100_m_grouped_fp8_gemm_*.cu,
        kernels/sm120/sm120_m_grouped_fp8_gemm_*.cu, kernels/sm90/sm90_m_grouped_fp8_gemm_*.cu, each beside its spec
        (.json).
    """
    return ops.m_grouped_fp8_gemm_nn_contiguous(
        a,
        b,
        d,
        grouped_layout,
        recipe,
        recipe_a,
        recipe_b,
        compiled_dims,
        disable_ue8m0_cast,
        use_psum_layout,
        ensure_zero_padding,
        offsets=offsets,
        out_dtype=out_dtype,
    )
