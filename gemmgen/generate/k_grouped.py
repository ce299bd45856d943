"""The ops of groups of k as users read about them: weight gradients of experts."""

from __future__ import annotations

from gemmgen.generate.operator import COMPILED_DIMS, Operator

_SHARED = {
    "d": "bf16 or fp32 [G, M, N] to write to, rows contiguous; returned. A group without any of K has c, or zeros.",
    "ks_cpu": "K of each group on the host, checked against the shapes; None or [] where nobody knows them.",
    "grouped_layout": "int32 [G] on the device: K of each group, or with use_psum_layout where each ends.",
    "c": "of d's shape and type, added in fp32 before the result is rounded; may be d itself.",
    "compiled_dims": COMPILED_DIMS,
    "use_psum_layout": "grouped_layout has the end of each group's K; groups start at the next multiple of "
    "get_mk_alignment_for_contiguous_layout(), and what lies between them may be anything.",
}


def k_grouped() -> tuple[Operator, ...]:
    """Weight gradients: products of every group's own range of K."""
    extents = "M, N, G and every group's K may be any size, 0 too."
    whole = (
        "a pair of e4m3 data, for every group [{}, K] with K contiguous, one behind the other in one dimension, and "
    )
    return (
        Operator(
            name="k_grouped_bf16_gemm_tn_contiguous",
            kernels="k_grouped_bf16_gemm_tn",
            summary="d[g] = a_g^T @ b_g (+ c[g]) for every group's rows of bf16 a [K, M] and b [K, N], summed in fp32.",
            parameters={
                "a": "bf16 [K of all groups, M], M contiguous, rows a multiple of 16 bytes apart.",
                "b": "bf16 [K of all groups, N], likewise.",
                **_SHARED,
            },
            extents=extents,
        ),
        Operator(
            name="k_grouped_fp8_gemm_nt_contiguous",
            kernels="k_grouped_fp8_gemm_nt_1d1d",
            summary="d[g] = (a_g * sfa_g) @ (b_g * sfb_g)^T (+ c[g]) for e4m3 factors that are matrices of each group.",
            parameters={
                "a": f"{whole.format('M')}fp32 scales [K/128 of all groups, M].",
                "b": f"{whole.format('N')}fp32 scales [K/128 of all groups, N].",
                **_SHARED,
                "ks_cpu": f"{_SHARED['ks_cpu'].removesuffix('.')}; multiples of 128.",
                "recipe": "(1, 1, 128): a scale for 128 of K of each row.",
                "use_psum_layout": "False: groups lie right behind one another.",
            },
            extents=extents,
        ),
        Operator(
            name="k_grouped_fp8_gemm_tn_contiguous",
            kernels="k_grouped_fp8_gemm",
            summary="d[g] = (a_g * sfa_g)^T @ (b_g * sfb_g) (+ c[g]) for every group's rows of e4m3 factors.",
            parameters={
                "a": "pair of e4m3 data [K of all groups, M] and powers of two, for every group one for 32 or 128 of "
                "its K, rounded up: fp32 or float8_e8m0fnu [scales, M], or int32 words of four, each group's own.",
                "b": "pair of e4m3 data [K of all groups, N] and scales, likewise.",
                **_SHARED,
                "ks_cpu": f"{_SHARED['ks_cpu'].removesuffix('.')}; multiples of 32.",
                "recipe": "(1, 1, 128) or (1, 1, 32): the last number is how much of K shares a scale.",
            },
            extents=extents,
        ),
    )
