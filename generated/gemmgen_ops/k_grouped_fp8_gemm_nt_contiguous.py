"""d[g] = (a_g * sfa_g) @ (b_g * sfb_g)^T (+ c[g]) for e4m3 factors that are matrices of each group.

Written by ``gemmgen generate``; do not edit.
"""

from __future__ import annotations

import torch

from gemmgen import ops


def k_grouped_fp8_gemm_nt_contiguous(
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
    """d[g] = (a_g * sfa_g) @ (b_g * sfb_g)^T (+ c[g]) for e4m3 factors that are matrices of each group.

    Arguments:
        a: a pair of e4m3 data, for every group [M, K] with K contiguous, one behind the other in one dimension, and
            fp32 scales [K/128 of all groups, M].
        b: a pair of e4m3 data, for every group [N, K] with K contiguous, one behind the other in one dimension, and
            fp32 scales [K/128 of all groups, N].
        d: bf16 or fp32 [G, M, N] to write to, rows contiguous; returned. A group without any of K has c, or zeros.
        ks_cpu: K of each group on the host, checked against the shapes; None or [] where nobody knows them; multiples
            of 128.
        grouped_layout: int32 [G] on the device: K of each group, or with use_psum_layout where each ends.
        c: of d's shape and type, added in fp32 before the result is rounded; may be d itself.
        recipe: (1, 1, 128): a scale for 128 of K of each row.
        compiled_dims: accepted for compatibility and checked; extents are run-time values.
        use_psum_layout: False: groups lie right behind one another.

    M, N, G and every group's K may be any size, 0 too.
    CUDA tensors run on their GPU, CPU tensors on the simulator inside
    ``gemmgen.simulate("sm90")``.

    Raises, before any launch, a sentence that names the argument, its value, the rule and the fix
    (DeviceError and CaptureError are in gemmgen.runtime.errors):
        TypeError: a dtype is not one of the above, or an argument is no tensor or no pair of tensors.
        ValueError: shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.
        RuntimeError: an input requires a gradient (there is no backward), or a kernel does not compile.
        DeviceError: tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.
        CaptureError: the first call with these shapes is inside CUDA graph capture; warm it up before.

    Source: 5 kernels in this package as kernels/sm90/sm90_k_grouped_fp8_gemm_nt_1d1d_*.cu, each beside its spec
        (.json).
    """
    return ops.k_grouped_fp8_gemm_nt_contiguous(
        a, b, d, ks_cpu, grouped_layout, c, recipe, compiled_dims, use_psum_layout
    )
