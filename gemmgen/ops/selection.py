"""From an operator and a problem to the shipped spec that serves it. Pure: knows the catalog and the tile rule."""

from __future__ import annotations

from functools import cache

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops.choice import choose
from gemmgen.runtime.errors import UnsupportedArchitecture

OPERATORS = ("fp8_gemm_nt", *(f"bf16_gemm_{layout}" for layout in catalog.BF16_LAYOUTS))


def spec_for(
    operator: str,
    m: int,
    n: int,
    k: int,
    sms: int,
    *,
    arch: str = "sm90",
    d: DType = DType.BF16,
    residual: bool = False,
    sfa_major: str = "m",
    sfb_columns: int = 128,
    direct_store: bool = False,
) -> KernelSpec:
    """The catalog's spec for a problem of these extents on a GPU with ``sms`` multiprocessors."""
    if operator not in OPERATORS:
        raise ValueError(f"operator: {operator!r} is unknown; use one of {', '.join(OPERATORS)}")
    if arch != Arch.SM90:
        raise UnsupportedArchitecture(f"{operator}: there is no kernel for {arch}; it runs on {Arch.SM90}")
    if operator == "fp8_gemm_nt":
        choices = (d, residual, sfa_major, sfb_columns, direct_store)
        return _fp8(choose(catalog.fp8_shapes(*choices), m, n, k, sms, promoted=True), *choices)
    layout = operator.removeprefix("bf16_gemm_")
    shapes = catalog.bf16_shapes(layout, d, residual, direct_store)
    return _bf16(layout, choose(shapes, m, n, 2 * k, sms), d, residual, direct_store)


@cache
def _fp8(shape: Shape, d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> KernelSpec:
    return catalog.fp8_gemm_nt(shape, d, residual, sfa_major, sfb_columns, direct_store)


@cache
def _bf16(layout: str, shape: Shape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm(layout, shape, d, residual, direct_store)
