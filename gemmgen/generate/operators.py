"""The ops as users read about them: what they compute, what they take, what they refuse, and which kernels serve them.

Knows the catalog; the signatures themselves are those of ``gemmgen.ops``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import Arch, DType, KernelSpec


@dataclass(frozen=True)
class Operator:
    """One op: its documentation, and its kernels for default options (D in bf16, no C)."""

    name: str
    summary: str
    parameters: dict[str, str]
    element_bytes: int
    promoted: bool
    shapes: Callable[[], tuple[Shape, ...]]
    spec: Callable[[Shape], KernelSpec]


def kernels_of(op: str, arch: Arch) -> tuple[KernelSpec, ...]:
    """The shipped specs that serve an op on an architecture, in catalog order."""
    return tuple(spec for spec in catalog.specs().values() if spec.name.startswith(f"{arch}_{op}_"))


def op_of(spec: KernelSpec) -> str:
    """The op that a shipped spec serves."""
    return next(op for op in OPERATORS if spec.name.startswith(f"{spec.arch}_{op}_"))


_OUTPUT = {
    "d": "[M, N], bf16 or fp32, rows contiguous (any pitch); written in place. Left out, a bf16 tensor is allocated.",
    "c": "[M, N] like d, added in fp32 before the result is rounded; d itself is allowed. Left out, nothing is added.",
}


def _fp8() -> Operator:
    return Operator(
        name="fp8_gemm_nt",
        summary="D[M, N] = C[M, N] + (A[M, K] * sfa) @ (B[N, K] * sfb)^T in e4m3, promoted to fp32 every 128 of K.",
        parameters={
            "a": "(data, scale): e4m3 [M, K] with K contiguous; fp32 [M, ceil(K / 128)], plain or M-contiguous.",
            "b": "(data, scale): e4m3 [N, K] with K contiguous; fp32 [ceil(N / 128) or N, ceil(K / 128)].",
            **_OUTPUT,
        },
        element_bytes=1,
        promoted=True,
        shapes=partial(catalog.fp8_shapes, DType.BF16, False, "m", 128, False),
        spec=catalog.fp8_gemm_nt,
    )


def _bf16(layout: str) -> Operator:
    a = "[M, K]" if layout[0] == "n" else "[K, M]"
    b = "[K, N]" if layout[1] == "n" else "[N, K]"
    left = "A" if layout[0] == "n" else "A^T"
    right = "B" if layout[1] == "n" else "B^T"
    return Operator(
        name=f"bf16_gemm_{layout}",
        summary=f"D[M, N] = C[M, N] + {left} @ {right} in bf16 with fp32 sums; A is {a}, B is {b}.",
        parameters={
            "a": f"bf16 {a}, last dimension contiguous, any row pitch of a multiple of 16 bytes.",
            "b": f"bf16 {b}, last dimension contiguous, any row pitch of a multiple of 16 bytes.",
            **_OUTPUT,
        },
        element_bytes=2,
        promoted=False,
        shapes=partial(catalog.bf16_shapes, layout, DType.BF16, False, False),
        spec=partial(catalog.bf16_gemm, layout),
    )


OPERATORS: dict[str, Operator] = {op.name: op for op in (_fp8(), *map(_bf16, catalog.BF16_LAYOUTS))}
