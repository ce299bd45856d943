"""fp8_gemm_nt whose columns leave a gap in the middle of every head of d, which is not written.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def fp8_gemm_nt_skip_head_mid(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor,
    head_splits: tuple[int, int, int],
    recipe: tuple[int, ...] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> torch.Tensor:
    """fp8_gemm_nt whose columns leave a gap in the middle of every head of d, which is not written.

    Arguments:
        a: sm90: pair of e4m3 data [M, K], K contiguous, and fp32 scales [M, ceil(K/128)], either order in memory; sm100
            and sm120: as fp8_fp4_gemm_nt.
        b: sm90: pair of e4m3 data [N, K], K contiguous, fp32 scales [ceil(N/128), ceil(K/128)] or [N, ceil(K/128)];
            sm100 and sm120: as fp8_fp4_gemm_nt.
        d: bf16 or fp32 [M, N + N/(left + right)*mid] to write to, rows contiguous, any pitch; returned.
        head_splits: (left, mid, right): column n goes to n + (n + right) // (left + right) * mid; left and right even,
            N whole heads of left + right.
        recipe: (1, 128, 128) or (1, 1, 128): confirms what the shape of b's scales says; others also take 32s.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        disable_ue8m0_cast: sm90 uses fp32 scales exactly as they are; others refuse it with fp32 scales.

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

    Source: 207 kernels in this package as kernels/sm100/sm100_fp8_gemm_nt_*.cu, kernels/sm120/sm120_fp8_gemm_nt_*.cu,
        kernels/sm90/sm90_fp8_gemm_nt_*.cu, each beside its spec (.json).
    """
    return ops.fp8_gemm_nt_skip_head_mid(a, b, d, head_splits, recipe, compiled_dims, disable_ue8m0_cast)
