"""The ops as users read about them: what they compute, what they take, what they refuse, and which kernels serve them.

Knows the catalog; the signatures themselves are those of ``gemmgen.ops``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen import catalog
from gemmgen.ir import Arch, KernelSpec


@dataclass(frozen=True)
class Operator:
    """One op and a sentence for each of its parameters."""

    name: str
    summary: str
    parameters: dict[str, str]


def kernels_of(op: str, arch: Arch) -> tuple[KernelSpec, ...]:
    """The shipped specs that serve an op on an architecture, in catalog order."""
    return tuple(spec for spec in catalog.specs().values() if spec.name.startswith(f"{arch}_{op}_"))


def op_of(spec: KernelSpec) -> str:
    """The op that a shipped spec serves."""
    return next(op for op in OPERATORS if spec.name.startswith(f"{spec.arch}_{op}_"))


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
    "compiled_dims": "accepted for compatibility and checked; extents are run-time values.",
    "out_dtype": "type of a d that is allocated: c's when there is a c, else bf16.",
}


def _fp8() -> Operator:
    return Operator(
        name="fp8_gemm_nt",
        summary="d[M, N] = (a * sfa) @ (b * sfb)^T (+ c) in e4m3, promoted to fp32 with its scales every 128 of K.",
        parameters={
            "a": "pair of e4m3 data [M, K], K contiguous, and fp32 scales [M, ceil(K/128)], either order in memory.",
            "b": "pair of e4m3 data [N, K], K contiguous, fp32 scales [ceil(N/128), ceil(K/128)] or [N, ceil(K/128)].",
            "recipe": "(1, 128, 128) or (1, 1, 128): confirms what the shape of b's scales says.",
            "recipe_a": "(1, 128), together with recipe_b, instead of recipe.",
            "recipe_b": "(128, 128) or (1, 128), together with recipe_a, instead of recipe.",
            "disable_ue8m0_cast": "accepted for compatibility; fp32 scales are used exactly as they are.",
            **_OUTPUT,
        },
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
        },
    )


OPERATORS: dict[str, Operator] = {op.name: op for op in (_fp8(), *map(_bf16, catalog.BF16_LAYOUTS))}
