"""d[M, N] = (a * sfa) @ (b * sfb)^T (+ c), each factor e4m3 or e2m1 with block scales, summed in fp32.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def fp8_fp4_gemm_nt(
    a: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    b: tuple[torch.Tensor, torch.Tensor | ops.Blocked128x4],
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: tuple[int, ...] | None = None,
    recipe_a: tuple[int, ...] | None = None,
    recipe_b: tuple[int, ...] | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """d[M, N] = (a * sfa) @ (b * sfb)^T (+ c), each factor e4m3 or e2m1 with block scales, summed in fp32.

    Arguments:
        a: pair of data [M, K]: float8_e4m3fn, or 4-bit int8 with two neighbours along the contiguous dimension a byte;
            and UE8M0 scales a row (or any number of rows) and 32 or 128 of K: int32 words of four, fp32 powers of two,
            float8_e8m0fnu, or Blocked128x4.
        b: pair of data [N, K] and scales, likewise.
        d: bf16 or fp32 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned either way.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        recipe: (rows a scale of a, of b, elements of K a scale of both); by default 128 of K, see ops.
        recipe_a: (rows, elements of K) a scale of a, together with recipe_b, instead of recipe.
        recipe_b: (rows, elements of K) a scale of b, together with recipe_a, instead of recipe.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        disable_ue8m0_cast: accepted for compatibility; refused with fp32 scales on sm100 and sm120.
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

    Source: 39 kernels in this package as kernels/sm100/sm100_fp8_fp4_gemm_nt_*.cu,
        kernels/sm120/sm120_fp8_fp4_gemm_nt_*.cu, each beside its spec (.json).
    """
    return ops.fp8_fp4_gemm_nt(
        a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, out_dtype=out_dtype
    )
