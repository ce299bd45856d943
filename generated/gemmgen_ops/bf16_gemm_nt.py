"""d[M, N] = a @ b^T (+ c) for bf16 a [M, K] and b [N, K], summed in fp32.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


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
    """d[M, N] = a @ b^T (+ c) for bf16 a [M, K] and b [N, K], summed in fp32.

    Arguments:
        a: bf16 [M, K], one dimension contiguous, the other's pitch a multiple of 16 bytes.
        b: bf16 [N, K], one dimension contiguous, the other's pitch a multiple of 16 bytes.
        d: bf16 or fp32 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned either way.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        out_dtype: type of a d that is allocated: c's when there is a c, else bf16.
        bias: bf16 or fp32 [N], added to every row in fp32.
        activation: relu, squared_relu, gelu, gelu_tanh or silu, of the sum with c and bias, in fp32 before rounding.
        gate: interleaved or halves: b's rows are gate and up, 8 of each in turn or all of gate first; d [M, N/2] is
            activation(gate) * up, silu if none is named; bias is added before, c is refused.

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

    Source: 154 kernels in this package as kernels/sm100/sm100_bf16_gemm_nt_*.cu, kernels/sm120/sm120_bf16_gemm_nt_*.cu,
        kernels/sm90/sm90_bf16_gemm_nt_*.cu, each beside its spec (.json).
    """
    return ops.bf16_gemm_nt(a, b, d, c, compiled_dims, out_dtype=out_dtype, bias=bias, activation=activation, gate=gate)
