"""d[M, N] = a @ b^T in tf32 for bf16 a and fp32 b, and sqr_sum[M], the sums of the squares of a's rows.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def tf32_hc_prenorm_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    sqr_sum: torch.Tensor,
    num_splits: int | None = None,
) -> None:
    """d[M, N] = a @ b^T in tf32 for bf16 a and fp32 b, and sqr_sum[M], the sums of the squares of a's rows.

    Arguments:
        a: bf16 [M, K], K contiguous and a multiple of 64, rows a multiple of 16 bytes apart; exact in tf32.
        b: fp32 [N, K], likewise, rounded to tf32 as it is read; N a multiple of 8, at most 32 on sm90, 128 on sm120.
        d: fp32 [M, N] to write to, rows contiguous; [num_splits, M, N] with num_splits.
        sqr_sum: fp32 [M] to write to, contiguous; [num_splits, M] with num_splits.
        num_splits: cut K into so many parts, where the kernel likes, and write a partial sum for each, to be added up;
            by default the call adds up by itself, in a fixed order.

    M may be any size: M of 0 launches nothing.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm90")`` or ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 40 kernels in this package as kernels/sm100/sm100_tf32_hc_prenorm_gemm_*.cu,
        kernels/sm120/sm120_tf32_hc_prenorm_gemm_*.cu, kernels/sm90/sm90_tf32_hc_prenorm_gemm_*.cu, each beside its spec
        (.json).
    """
    ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
