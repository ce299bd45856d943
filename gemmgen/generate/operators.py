"""The ops as users read about them: what they compute, what they take, what they refuse, and which kernels serve them.

Knows the catalog; the signatures themselves are those of ``gemmgen.ops``.
"""

from __future__ import annotations

from gemmgen import catalog
from gemmgen.generate.k_grouped import k_grouped
from gemmgen.generate.m_grouped import m_grouped
from gemmgen.generate.operator import Operator
from gemmgen.generate.sentences import FINISH, MXFP8_SCALES, OUTPUT, RECIPES
from gemmgen.ir import AnySpec, Arch, KernelSpec, LayoutSpec


def kernels_of(op: str, arch: Arch) -> tuple[KernelSpec, ...]:
    """The shipped specs that serve an op on an architecture, in catalog order."""
    products = (*catalog.specs().values(), *catalog.grouped_specs().values())
    return tuple(spec for spec in products if spec.arch == arch and op_of(spec) == op)


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
            **OUTPUT,
            **FINISH,
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
            "a": f"pair of e4m3 data {a} and scales, transposed likewise; sm90 wants K contiguous, others take 4 bits.",
            "b": f"pair of e4m3 data {b} and scales, transposed likewise; sm90 wants K contiguous, others take 4 bits.",
            **RECIPES,
            **OUTPUT,
        },
    )


def _fp8_fp4(layout: str) -> Operator:
    a, b, product = _given(layout)
    data = "float8_e4m3fn, or 4-bit int8 with two neighbours along the contiguous dimension a byte"
    scales = (
        "UE8M0 scales a row (or any number of rows) and 32 or 128 of K: int32 words of four, fp32 powers of two, "
        "float8_e8m0fnu, or Blocked128x4"
    )
    return Operator(
        name=f"fp8_fp4_gemm_{layout}",
        summary=f"d[M, N] = {product} (+ c), each factor e4m3 or e2m1 with block scales, summed in fp32.",
        parameters={
            "a": f"pair of data {a}: {data}; and {scales}.",
            "b": f"pair of data {b} and scales, likewise.",
            **RECIPES,
            **OUTPUT,
            "recipe": "(rows a scale of a, of b, elements of K a scale of both); by default 128 of K, see ops.",
        },
        kernels="fp8_fp4_gemm_nt",
    )


def _four_bit(name: str, what: str, scales: str, more: dict[str, str]) -> Operator:
    factor = "K contiguous and two along K a byte, the even one in the low half, int8 or float4_e2m1fn_x2"
    output = {key: text for key, text in OUTPUT.items() if key != "compiled_dims"}
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
            **OUTPUT,
            **(FINISH if layout == "nt" else {}),
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
        "num_splits": "cut K into so many parts, where the kernel likes, and write a partial sum for each, to be added "
        "up; by default the call adds up by itself, in a fixed order.",
    },
    extents="M may be any size: M of 0 launches nothing.",
)


def _quantised(product: str, label: str, what: str, scales: str) -> Operator:
    recipes = {} if product.startswith("bf16") else {name: RECIPES[name] for name in ("recipe", "recipe_a", "recipe_b")}
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
        MXFP8_SCALES,
    ),
    (
        "fp8out",
        "an fp32 scale for 128 columns",
        "fp32 [M, ceil(N/128)], along N, or along M as sm90 reads the scales of " "a next product's a",
    ),
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
        *m_grouped(),
        *k_grouped(),
    )


OPERATORS: dict[str, Operator] = {op.name: op for op in _all()}
