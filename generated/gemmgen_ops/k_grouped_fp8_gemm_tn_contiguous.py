"""d[g] = (a_g * sfa_g)^T @ (b_g * sfb_g) (+ c[g]) for every group's rows of e4m3 factors.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def k_grouped_fp8_gemm_tn_contiguous(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor,
    ks_cpu: list[int] | tuple[int, ...] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: tuple[int, ...] | None = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """d[g] = (a_g * sfa_g)^T @ (b_g * sfb_g) (+ c[g]) for every group's rows of e4m3 factors.

    Arguments:
        a: pair of e4m3 data [K of all groups, M] and powers of two, for every group one for 32 or 128 of its K, rounded
            up: fp32 or float8_e8m0fnu [scales, M], or int32 words of four, each group's own.
        b: pair of e4m3 data [K of all groups, N] and scales, likewise.
        d: bf16 or fp32 [G, M, N] to write to, rows contiguous; returned. A group without any of K has c, or zeros.
        ks_cpu: K of each group on the host, checked against the shapes; None or [] where nobody knows them; multiples
            of 32.
        grouped_layout: int32 [G] on the device: K of each group, or with use_psum_layout where each ends.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        recipe: (1, 1, 128) or (1, 1, 32): the last number is how much of K shares a scale.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        use_psum_layout: grouped_layout has the end of each group's K; groups start at the next multiple of
            get_mk_alignment_for_contiguous_layout(), and what lies between them may be anything.

    M, N, G and every group's K may be any size, 0 too.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 10 kernels in this package as kernels/sm100/sm100_k_grouped_fp8_gemm_*.cu,
        kernels/sm120/sm120_k_grouped_fp8_gemm_*.cu, each beside its spec (.json).
    """
    return ops.k_grouped_fp8_gemm_tn_contiguous(
        a, b, d, ks_cpu, grouped_layout, c, recipe, compiled_dims, use_psum_layout
    )
