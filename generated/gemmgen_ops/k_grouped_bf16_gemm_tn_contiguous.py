"""d[g] = a_g^T @ b_g (+ c[g]) for every group's rows of bf16 a [K, M] and b [K, N], summed in fp32.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def k_grouped_bf16_gemm_tn_contiguous(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    ks_cpu: list[int] | tuple[int, ...] | None,
    grouped_layout: torch.Tensor,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> torch.Tensor:
    """d[g] = a_g^T @ b_g (+ c[g]) for every group's rows of bf16 a [K, M] and b [K, N], summed in fp32.

    Arguments:
        a: bf16 [K of all groups, M], M contiguous, rows a multiple of 16 bytes apart.
        b: bf16 [K of all groups, N], likewise.
        d: bf16 or fp32 [G, M, N] to write to, rows contiguous; returned. A group without any of K has c, or zeros.
        ks_cpu: K of each group on the host, checked against the shapes; None or [] where nobody knows them.
        grouped_layout: int32 [G] on the device: K of each group, or with use_psum_layout where each ends.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        use_psum_layout: grouped_layout has the end of each group's K; groups start at the next multiple of
            get_mk_alignment_for_contiguous_layout(), and what lies between them may be anything.

    M, N, G and every group's K may be any size, 0 too.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm90")`` or ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 13 kernels in this package as kernels/sm100/sm100_k_grouped_bf16_gemm_tn_*.cu,
        kernels/sm120/sm120_k_grouped_bf16_gemm_tn_*.cu, kernels/sm90/sm90_k_grouped_bf16_gemm_tn_*.cu, each beside its
        spec (.json).
    """
    return ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks_cpu, grouped_layout, c, compiled_dims, use_psum_layout)
