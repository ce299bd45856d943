"""The ops as users read about them: what they compute, what they take, what they refuse, and which kernels serve them.

Knows the catalog; the signatures themselves are those of ``gemmgen.ops``.
"""

from __future__ import annotations

from gemmgen import catalog
from gemmgen.generate.k_grouped import k_grouped
from gemmgen.generate.operator import COMPILED_DIMS, Operator
from gemmgen.ir import AnySpec, Arch, KernelSpec, LayoutSpec


def kernels_of(op: str, arch: Arch) -> tuple[KernelSpec, ...]:
    """The shipped specs that serve an op on an architecture, in catalog order."""
    return tuple(spec for spec in catalog.specs().values() if spec.arch == arch and op_of(spec) == op)


def op_of(spec: AnySpec) -> str:
    """The op that a shipped spec serves; layout kernels serve any that needs them, some specs only ``gemmgen.op``."""
    if isinstance(spec, LayoutSpec):
        return spec.kind
    filed = {name for op in OPERATORS.values() for name in (op.name, op.kernels) if name}
    named = [op for op in sorted(filed) if spec.name.startswith(f"{spec.arch}_{op}_")]
    return max(named, key=len, default="gemmgen.op")


ERRORS = {
    "TypeError": "a dtype is not one of the above, or an argument is no tensor or no pair of tensors.",
    "ValueError": "shapes disagree, an address or a row pitch is no multiple of 16 bytes, d overlaps an input.",
    "RuntimeError": "an input requires a gradient (there is no backward), or a kernel does not compile.",
    "DeviceError": "tensors are on several devices, on a GPU without kernels here, or on the CPU outside simulate.",
    "CaptureError": "the first call with these shapes is inside CUDA graph capture; warm it up before.",
}

_OUTPUT = {
    "d": "bf16 or fp32 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned either way.",
    "c": "of d's shape and type, added in fp32 before the result is rounded; may be d itself.",
    "compiled_dims": COMPILED_DIMS,
    "out_dtype": "type of a d that is allocated: c's when there is a c, else bf16.",
}


_FINISH = {
    "bias": "bf16 or fp32 [N], added to every row in fp32.",
    "activation": "relu, squared_relu, gelu, gelu_tanh or silu, of the sum with c and bias, in fp32 before rounding.",
    "gate": "interleaved or halves: b's rows are gate and up, 8 of each in turn or all of gate first; d [M, N/2] is "
    "activation(gate) * up, silu if none is named; bias is added before, c is refused.",
}


def _fp8() -> Operator:
    return Operator(
        name="fp8_gemm_nt",
        summary="d[M, N] = (a * sfa) @ (b * sfb)^T (+ c) in e4m3, summed in fp32 with a scale every 128 (or 32) of K.",
        parameters={
            "a": "sm90: pair of e4m3 data [M, K], K contiguous, and fp32 scales [M, ceil(K/128)], either order in "
            "memory; sm100 and sm120: as fp8_fp4_gemm_nt.",
            "b": "sm90: pair of e4m3 data [N, K], K contiguous, fp32 scales [ceil(N/128), ceil(K/128)] or "
            "[N, ceil(K/128)]; sm100 and sm120: as fp8_fp4_gemm_nt.",
            "recipe": "(1, 128, 128) or (1, 1, 128): confirms what the shape of b's scales says; others also take 32s.",
            "recipe_a": "(1, 128), with recipe_b, instead of recipe; sm100 and sm120 also take 32.",
            "recipe_b": "(128, 128) or (1, 128), with recipe_a, instead of recipe; sm100 and sm120 also take 32.",
            "disable_ue8m0_cast": "sm90 uses fp32 scales exactly as they are; others refuse it with fp32 scales.",
            **_OUTPUT,
            **_FINISH,
        },
    )


def _head_split() -> Operator:
    fp8 = _fp8().parameters
    return Operator(
        name="fp8_gemm_nt_skip_head_mid",
        summary="fp8_gemm_nt whose columns leave a gap in the middle of every head of d, which is not written.",
        parameters={
            **{name: fp8[name] for name in ("a", "b", "recipe", "compiled_dims", "disable_ue8m0_cast")},
            "d": "bf16 or fp32 [M, N + N/(left + right)*mid] to write to, rows contiguous, any pitch; returned.",
            "head_splits": "(left, mid, right): column n goes to n + (n + right) // (left + right) * mid; left and "
            "right even, N whole heads of left + right.",
        },
        kernels="fp8_gemm_nt",
    )


def _given(layout: str) -> tuple[str, str, str]:
    """Shapes of a and b and their product as a layout has them."""
    a, b = "[M, K]" if layout[0] == "n" else "[K, M]", "[K, N]" if layout[1] == "n" else "[N, K]"
    left, right = "(a * sfa)" + ("^T" if layout[0] == "t" else ""), "(b * sfb)" + ("^T" if layout[1] == "t" else "")
    return a, b, f"{left} @ {right}"


def _fp8_transposed(layout: str) -> Operator:
    a, b, product = _given(layout)
    return Operator(
        name=f"fp8_gemm_{layout}",
        summary=f"d[M, N] = {product} (+ c): fp8_gemm_nt with a given as {a} and b as {b}.",
        parameters={
            "a": f"pair of e4m3 data {a} and scales, transposed likewise; sm90 needs K contiguous.",
            "b": f"pair of e4m3 data {b} and scales, transposed likewise; sm90 needs K contiguous.",
            **_RECIPES,
            **_OUTPUT,
        },
    )


_RECIPES = {
    "recipe": "(rows a scale of a, of b, elements of K a scale of both), as fp8_fp4_gemm_nt.",
    "recipe_a": "(rows, elements of K) a scale of a, together with recipe_b, instead of recipe.",
    "recipe_b": "(rows, elements of K) a scale of b, together with recipe_a, instead of recipe.",
    "disable_ue8m0_cast": "accepted for compatibility; refused with fp32 scales on sm100 and sm120.",
}


def _fp8_fp4(layout: str) -> Operator:
    a, b, product = _given(layout)
    data = "float8_e4m3fn, or 4-bit int8 with two neighbours along the contiguous dimension a byte"
    scales = (
        "UE8M0 scales a row (or 128) and 32 or 128 of K: int32 words of four, fp32 powers of two, float8_e8m0fnu, or "
        "Blocked128x4"
    )
    return Operator(
        name=f"fp8_fp4_gemm_{layout}",
        summary=f"d[M, N] = {product} (+ c), each factor e4m3 or e2m1 with block scales, summed in fp32.",
        parameters={
            "a": f"pair of data {a}: {data}; and {scales}.",
            "b": f"pair of data {b} and scales, likewise.",
            **_RECIPES,
            **_OUTPUT,
            "recipe": "(rows a scale of a, of b, elements of K a scale of both); by default 128 of K, see ops.",
        },
        kernels="fp8_fp4_gemm_nt",
    )


def _four_bit(name: str, what: str, scales: str, more: dict[str, str]) -> Operator:
    factor = "K contiguous and two along K a byte, the even one in the low half, int8 or float4_e2m1fn_x2"
    output = {key: text for key, text in _OUTPUT.items() if key != "compiled_dims"}
    return Operator(
        name=name,
        summary=f"d[M, N] = {what} (+ c) for 4-bit e2m1 factors at the full rate, summed in fp32.",
        parameters={
            "a": f"data [M, K/2], {factor}; and {scales}.",
            "b": "data [N, K/2] and scales, likewise.",
            **more,
            **output,
        },
    )


_MXFP4 = _four_bit(
    "mxfp4_gemm_nt",
    "(a * sfa) @ (b * sfb)^T",
    "powers of two [M, ceil(K/32)]: float8_e8m0fnu, fp32, int32 words of four, or Blocked128x4",
    {},
)
_NVFP4 = _four_bit(
    "nvfp4_gemm_nt",
    "alpha * (a * sfa) @ (b * sfb)^T",
    "UE4M3 scales [M, ceil(K/16)]: float8_e4m3fn, int32 words of four, or Blocked128x4; third, if any, the scale of "
    "the whole tensor as a number",
    {"alpha": "a number that multiplies the product, beside the scales of both tensors."},
)


def _bf16(layout: str) -> Operator:
    a = "[M, K]" if layout[0] == "n" else "[K, M]"
    b = "[K, N]" if layout[1] == "n" else "[N, K]"
    product = f"{'a' if layout[0] == 'n' else 'a^T'} @ {'b' if layout[1] == 'n' else 'b^T'}"
    return Operator(
        name=f"bf16_gemm_{layout}",
        summary=f"d[M, N] = {product} (+ c) for bf16 a {a} and b {b}, summed in fp32.",
        parameters={
            "a": f"bf16 {a}, one dimension contiguous, the other's pitch a multiple of 16 bytes.",
            "b": f"bf16 {b}, one dimension contiguous, the other's pitch a multiple of 16 bytes.",
            **_OUTPUT,
            **(_FINISH if layout == "nt" else {}),
        },
    )


_PRENORM = Operator(
    name="tf32_hc_prenorm_gemm",
    summary="d[M, N] = a @ b^T in tf32 for bf16 a and fp32 b, and sqr_sum[M], the sums of the squares of a's rows.",
    parameters={
        "a": "bf16 [M, K], K contiguous and a multiple of 64, rows a multiple of 16 bytes apart; exact in tf32.",
        "b": "fp32 [N, K], likewise, rounded to tf32 as it is read; N a multiple of 8, at most 32 on sm90, "
        "128 on sm120.",
        "d": "fp32 [M, N] to write to, rows contiguous; [num_splits, M, N] with num_splits.",
        "sqr_sum": "fp32 [M] to write to, contiguous; [num_splits, M] with num_splits.",
        "num_splits": "cut K into so many parts of whole blocks of 64, the remainder one each to the first, and write "
        "a partial sum for each; by default the call adds up by itself, in a fixed order.",
    },
    extents="M may be any size: M of 0 launches nothing.",
)


def _quantised(product: str, label: str, what: str, scales: str) -> Operator:
    recipes = (
        {} if product.startswith("bf16") else {name: _RECIPES[name] for name in ("recipe", "recipe_a", "recipe_b")}
    )
    return Operator(
        name=f"{product}_{label}",
        summary=f"d_fp8[M, N], d_sf = {product} quantised in the epilogue, from the fp32 sums: {what}.",
        parameters={
            "a": f"as {product} takes it.",
            "b": f"as {product} takes it.",
            "d_fp8": "e4m3 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned as well.",
            "d_sf": f"{scales}; allocated when left out, returned either way.",
            **recipes,
        },
    )


_QUANTISED = (
    (
        "mxfp8out",
        "a power of two for 32 columns",
        "float8_e8m0fnu [M, ceil(N/32)], or int32 [M, ceil(N/128)], four a "
        "word along M, as sm100 and sm120 read the scales of a next product's a",
    ),
    (
        "fp8out",
        "an fp32 scale for 128 columns",
        "fp32 [M, ceil(N/128)], along N, or along M as sm90 reads the scales of " "a next product's a",
    ),
)


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
            **(_RECIPES if scaled else {}),
            "compiled_dims": _OUTPUT["compiled_dims"],
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
    same = ("b", "recipe", "recipe_a", "recipe_b", "compiled_dims", "disable_ue8m0_cast", "out_dtype", *_FINISH)
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
            "d_sf": f"{_QUANTISED[0][2]}; None allocates it; returned either way.",
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


def _all() -> tuple[Operator, ...]:
    mixed = map(_fp8_fp4, catalog.LAYOUTS)
    fused = [_quantised(product, *each) for product in ("fp8_gemm_nt", "bf16_gemm_nt") for each in _QUANTISED]
    return (
        _fp8(),
        _head_split(),
        *map(_fp8_transposed, catalog.LAYOUTS[1:]),
        *mixed,
        _MXFP4,
        _NVFP4,
        *map(_bf16, catalog.LAYOUTS),
        _PRENORM,
        *fused,
        *(_grouped(product, layout) for product in ("fp8", "fp8_fp4", "bf16") for layout in ("nt", "nn")),
        *map(_masked, ("fp8", "fp8_fp4", "bf16")),
        _grouped_quantised(),
        *k_grouped(),
    )


OPERATORS: dict[str, Operator] = {op.name: op for op in _all()}
