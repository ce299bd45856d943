"""d_fp8[M, N], d_sf = bf16_gemm_nt quantised in the epilogue, from the fp32 sums: an fp32 scale for 128 columns.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def bf16_gemm_nt_fp8out(
    a: torch.Tensor,
    b: torch.Tensor,
    d_fp8: torch.Tensor | None = None,
    d_sf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """d_fp8[M, N], d_sf = bf16_gemm_nt quantised in the epilogue, from the fp32 sums: an fp32 scale for 128 columns.

    Arguments:
        a: as bf16_gemm_nt takes it.
        b: as bf16_gemm_nt takes it.
        d_fp8: e4m3 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned as well.
        d_sf: fp32 [M, ceil(N/128)], along N, or along M as sm90 reads the scales of a next product's a; allocated when
            left out, returned either way.

    M, N and K may be any size: M or N of 0 launches nothing, K of 0 gives c or zeros.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm90")`` or ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 4 kernels in this package as kernels/sm100/sm100_bf16_gemm_nt_fp8out_*.cu,
        kernels/sm120/sm120_bf16_gemm_nt_fp8out_*.cu, kernels/sm90/sm90_bf16_gemm_nt_fp8out_*.cu, each beside its spec
        (.json).
    """
    return ops.bf16_gemm_nt_fp8out(a, b, d_fp8, d_sf)
