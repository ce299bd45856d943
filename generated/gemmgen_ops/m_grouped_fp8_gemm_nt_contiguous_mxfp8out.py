"""d_fp8[M, N], d_sf = m_grouped_fp8_gemm_nt_contiguous quantised in the epilogue: a power of two for 32 columns.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def m_grouped_fp8_gemm_nt_contiguous_mxfp8out(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d_fp8: torch.Tensor | None,
    d_sf: torch.Tensor | None,
    grouped_layout: torch.Tensor,
    recipe: tuple[int, ...] | None = None,
    recipe_a: tuple[int, ...] | None = None,
    recipe_b: tuple[int, ...] | None = None,
    use_psum_layout: bool = False,
    expected_m_for_psum_layout: int | None = None,
    *,
    offsets: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """d_fp8[M, N], d_sf = m_grouped_fp8_gemm_nt_contiguous quantised in the epilogue: a power of two for 32 columns.

    Arguments:
        a: pair of data [M, K] and scales, as fp8_gemm_nt takes them.
        b: pair of data [G, N, K] and scales, one more dimension than fp8_gemm_nt takes.
        d_fp8: e4m3 [M, N] to write to, rows contiguous, any pitch; None allocates it; returned as well.
        d_sf: float8_e8m0fnu [M, ceil(N/32)], or int32 [M, ceil(N/128)], four a word along M, as sm100 and sm120 read
            the scales of a next product's a; None allocates it; returned either way.
        grouped_layout: int32, contiguous, where a is: [M], each row's group or -1, groups at multiples of
            get_mk_alignment_for_contiguous_layout(); or [G], the row behind each group's last.
        recipe: (rows a scale of a, of b, elements of K a scale of both), as fp8_fp4_gemm_nt.
        recipe_a: (rows, elements of K) a scale of a, together with recipe_b, instead of recipe.
        recipe_b: (rows, elements of K) a scale of b, together with recipe_a, instead of recipe.
        use_psum_layout: grouped_layout is [G], groups start where the one before ended, rounded up to the alignment.
        expected_m_for_psum_layout: rows that a group will have, about: may change which tile is taken, and nothing
            else.
        offsets: grouped_layout is [G], groups start where the one before ended, without any padding.

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
    return ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(
        a,
        b,
        d_fp8,
        d_sf,
        grouped_layout,
        recipe,
        recipe_a,
        recipe_b,
        use_psum_layout,
        expected_m_for_psum_layout,
        offsets=offsets,
    )
