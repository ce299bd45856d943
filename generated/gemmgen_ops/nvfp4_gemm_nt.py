"""d[M, N] = alpha * (a * sfa) @ (b * sfb)^T (+ c) for 4-bit e2m1 factors at the full rate, summed in fp32.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def nvfp4_gemm_nt(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """d[M, N] = alpha * (a * sfa) @ (b * sfb)^T (+ c) for 4-bit e2m1 factors at the full rate, summed in fp32.

    Arguments:
        a: data [M, K/2], K contiguous and two along K a byte, the even one in the low half, int8 or float4_e2m1fn_x2;
            and UE4M3 scales [M, ceil(K/16)]: float8_e4m3fn, int32 words of four, or Blocked128x4; third, if any, the
            scale of the whole tensor as a number.
        b: data [N, K/2] and scales, likewise.
        d: bf16 or fp32 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned either way.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        alpha: a number that multiplies the product, beside the scales of both tensors.
        out_dtype: type of a d that is allocated: c's when there is a c, else bf16.

    M, N and K may be any size: M or N of 0 launches nothing, K of 0 gives c or zeros.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm100")`` or ``gemmgen.simulate("sm120")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 33 kernels in this package as kernels/sm100/sm100_nvfp4_gemm_nt_*.cu,
        kernels/sm120/sm120_nvfp4_gemm_nt_*.cu, each beside its spec (.json).
    """
    return ops.nvfp4_gemm_nt(a, b, d, c, alpha, out_dtype=out_dtype)
