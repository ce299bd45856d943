"""The ops of row groups as users read about them."""

from __future__ import annotations

from gemmgen.generate.operator import Operator
from gemmgen.generate.sentences import FINISH, MXFP8_SCALES, OUTPUT, RECIPES


def m_grouped() -> tuple[Operator, ...]:
    """Products of groups of rows that are one matrix, and of groups that have a matrix each."""
    products = ("fp8", "fp8_fp4", "bf16")
    contiguous = (_grouped(product, layout) for product in products for layout in ("nt", "nn"))
    return (*contiguous, *map(_masked, products), _grouped_quantised())


def _grouped(product: str, layout: str) -> Operator:
    """A product of row groups whose rows are one matrix."""
    b = "[G, N, K]" if layout == "nt" else "[G, K, N]"
    scaled = product != "bf16"
    left, right = ("(a * sfa)", "(b[g] * sfb[g])") if scaled else ("a", "b[g]")
    finish = _GROUPED_FINISH if layout == "nt" else {}
    hint = {"expected_m_for_psum_layout": _HINT} if layout == "nt" else {}
    return Operator(
        name=f"m_grouped_{product}_gemm_{layout}_contiguous",
        summary=f"d[rows of g] = {left}[those rows] @ {right}{'^T' if layout == 'nt' else ''} for each of G groups of "
        "rows.",
        parameters={
            "a": f"pair of data [M, K] and scales, as {product}_gemm_nt takes them." if scaled else "bf16 [M, K].",
            "b": (
                f"pair of data {b} and scales, one more dimension than {product}_gemm_{layout} takes."
                if scaled
                else f"bf16 {b}."
            ),
            "d": "bf16 or fp32 [M, N] to write to; None allocates it; returned either way. Rows of no group stay.",
            "grouped_layout": "int32, contiguous, where a is: [M], each row's group or -1, groups at multiples of "
            "get_mk_alignment_for_contiguous_layout(); or [G], the row behind each group's last.",
            **(RECIPES if scaled else {}),
            "compiled_dims": OUTPUT["compiled_dims"],
            "use_psum_layout": "grouped_layout is [G], groups start where the one before ended, rounded up to the "
            "alignment.",
            "ensure_zero_padding": "with use_psum_layout, rows of d between groups become 0.",
            **hint,
            "offsets": "grouped_layout is [G], groups start where the one before ended, without any padding.",
            "out_dtype": "type of a d that is allocated: bf16 if left out.",
            **finish,
        },
        kernels=f"m_grouped_{product}_gemm",
        extents=_GROUPED_EXTENTS,
    )


def _masked(product: str) -> Operator:
    """A product of row groups that have a matrix of rows each."""
    contiguous = _grouped(product, "nt").parameters
    same = ("b", "recipe", "recipe_a", "recipe_b", "compiled_dims", "disable_ue8m0_cast", "out_dtype", *FINISH)
    scaled = product != "bf16"
    return Operator(
        name=f"m_grouped_{product}_gemm_nt_masked",
        summary=(
            "d[g] = a[g] @ b[g]^T in the first masked_m[g] rows of each of G groups; others stay."
            if not scaled
            else "d[g] = (a[g] * sfa[g]) @ (b[g] * sfb[g])^T in the first masked_m[g] rows of each group; others stay."
        ),
        parameters={
            **{name: contiguous[name] for name in same if name in contiguous},
            "a": (
                f"pair of data [G, M, K] and scales, one more dimension than {product}_gemm_nt takes."
                if scaled
                else "bf16 [G, M, K]."
            ),
            "d": "bf16 or fp32 [G, M, N] to write to; None allocates it; returned either way.",
            "masked_m": "int32 [G], contiguous, where a is: how many rows each group has.",
            "expected_m": _HINT,
        },
        kernels=f"m_grouped_{product}_gemm",
        extents=_GROUPED_EXTENTS,
    )


def _grouped_quantised() -> Operator:
    contiguous = _grouped("fp8", "nt").parameters
    shared = ("a", "b", "grouped_layout", "recipe", "recipe_a", "recipe_b", "use_psum_layout", "offsets")
    return Operator(
        name="m_grouped_fp8_gemm_nt_contiguous_mxfp8out",
        summary="d_fp8[M, N], d_sf = m_grouped_fp8_gemm_nt_contiguous quantised in the epilogue: a power of two for 32 "
        "columns.",
        parameters={
            **{name: contiguous[name] for name in (*shared, "expected_m_for_psum_layout")},
            "d_fp8": "e4m3 [M, N] to write to, rows contiguous, any pitch; None allocates it; returned as well.",
            "d_sf": f"{MXFP8_SCALES}; None allocates it; returned either way.",
        },
        kernels="m_grouped_fp8_gemm",
        extents=_GROUPED_EXTENTS,
    )


_GROUPED_FINISH = {
    "bias": "bf16 or fp32 [G, N], each group's added to its rows in fp32.",
    "activation": "relu, squared_relu, gelu, gelu_tanh or silu, of the sum with bias, in fp32 before rounding.",
    "gate": "interleaved or halves: rows of each b are gate and up, 8 of each in turn or all of gate first; d has N/2 "
    "columns, activation(gate) * up, silu if none is named.",
}
_HINT = "rows that a group will have, about: may change which tile is taken, and nothing else."
_GROUPED_EXTENTS = (
    "M, N, K and G may be any size: without rows, columns or groups nothing is launched, and groups may be empty."
)
