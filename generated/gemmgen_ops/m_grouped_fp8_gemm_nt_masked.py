"""d[g] = (a[g] * sfa[g]) @ (b[g] * sfb[g])^T in the first masked_m[g] rows of each group; others stay.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def m_grouped_fp8_gemm_nt_masked(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor | None,
    masked_m: torch.Tensor,
    expected_m: int | None = None,
    recipe: tuple[int, ...] | None = None,
    recipe_a: tuple[int, ...] | None = None,
    recipe_b: tuple[int, ...] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """d[g] = (a[g] * sfa[g]) @ (b[g] * sfb[g])^T in the first masked_m[g] rows of each group; others stay.

    Arguments:
        a: pair of data [G, M, K] and scales, one more dimension than fp8_gemm_nt takes.
        b: pair of data [G, N, K] and scales, one more dimension than fp8_gemm_nt takes.
        d: bf16 or fp32 [G, M, N] to write to; None allocates it; returned either way.
        masked_m: int32 [G], contiguous, where a is: how many rows each group has.
        expected_m: rows that a group will have, about: may change which tile is taken, and nothing else.
        recipe: (rows a scale of a, of b, elements of K a scale of both), as fp8_fp4_gemm_nt.
        recipe_a: (rows, elements of K) a scale of a, together with recipe_b, instead of recipe.
        recipe_b: (rows, elements of K) a scale of b, together with recipe_a, instead of recipe.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        disable_ue8m0_cast: accepted for compatibility; refused with fp32 scales on sm100 and sm120.
        out_dtype: type of a d that is allocated: bf16 if left out.
        bias: bf16 or fp32 [G, N], each group's added to its rows in fp32.
        activation: relu, squared_relu, gelu, gelu_tanh or silu, of the sum with bias, in fp32 before rounding.
        gate: interleaved or halves: rows of each b are gate and up, 8 of each in turn or all of gate first; d has N/2
            columns, activation(gate) * up, silu if none is named.

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
    return ops.m_grouped_fp8_gemm_nt_masked(
        a,
        b,
        d,
        masked_m,
        expected_m,
        recipe,
        recipe_a,
        recipe_b,
        compiled_dims,
        disable_ue8m0_cast,
        out_dtype=out_dtype,
        bias=bias,
        activation=activation,
        gate=gate,
    )
