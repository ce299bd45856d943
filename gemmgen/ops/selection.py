"""From an operator and a problem to the shipped spec that serves it. Pure: knows the catalog and the tile rule."""

from __future__ import annotations

from functools import cache

from gemmgen import catalog
from gemmgen.catalog import FP8, FP8_FP4, LAYOUTS, MXFP4, NVFP4, PairShape, Product, Shape, WarpShape
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops import choice_sm100, choice_sm120
from gemmgen.ops.choice import choose
from gemmgen.runtime.errors import UnsupportedArchitecture

PRODUCTS = {
    **{f"fp8_gemm_{layout}": FP8.lying(layout) for layout in LAYOUTS},
    **{f"fp8_fp4_gemm_{layout}": FP8_FP4.lying(layout) for layout in LAYOUTS},
    "mxfp4_gemm_nt": MXFP4,
    "nvfp4_gemm_nt": NVFP4,
}
"""Operators with scales, and the factors that tensor cores multiply and scale when nothing else is said."""
BF16_OPERATORS = tuple(f"bf16_gemm_{layout}" for layout in LAYOUTS)
OPERATORS = (*PRODUCTS, *BF16_OPERATORS)
SM90_OPERATORS = ("fp8_gemm_nt", *BF16_OPERATORS)
PRENORM = "tf32_hc_prenorm_gemm"
SCALES_PER_WORD = 4


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
    product: Product | None = None,
    launch_control: bool = False,
) -> KernelSpec:
    """The spec for a problem of these extents on a GPU with ``sms`` multiprocessors.

    ``sfa_major`` and ``sfb_columns`` are choices of sm90; ``product`` is one of sm100 and sm120: other factors of the
    operator. ``launch_control`` lets the hardware of sm100 hand out tiles, for a GPU shared with other kernels; run
    such a spec with ``gemmgen.op``. On sm120 factors with scales are k-contiguous in every layout: what lies otherwise
    is turned first.
    """
    if operator == PRENORM:
        return prenorm_spec(n, arch)
    if operator not in OPERATORS:
        raise ValueError(f"operator: {operator!r} is unknown; use one of {', '.join(OPERATORS)}")
    archs = (Arch.SM90, Arch.SM100, Arch.SM120) if operator in SM90_OPERATORS else (Arch.SM100, Arch.SM120)
    if arch not in archs:
        raise UnsupportedArchitecture(f"{operator}: there is no kernel for {arch}; it runs on {' and '.join(archs)}")
    if launch_control and arch != Arch.SM100:
        raise UnsupportedArchitecture(f"launch_control: {arch} hands out no launches, sm100 does; leave it out")
    if arch == Arch.SM100 and operator in PRODUCTS:
        return _scaled(product or PRODUCTS[operator], m, n, k, sms, d, residual, direct_store, launch_control)
    if arch == Arch.SM120 and operator in PRODUCTS:
        return _scaled_by_warps(product or PRODUCTS[operator], m, n, k, sms, d, residual, direct_store)
    if operator == "fp8_gemm_nt":
        choices = (d, residual, sfa_major, sfb_columns, direct_store)
        return _fp8(choose(catalog.fp8_shapes(*choices), m, n, k, sms, promoted=True), *choices)
    layout = operator.removeprefix("bf16_gemm_")
    if arch == Arch.SM100:
        pairs = catalog.bf16_shapes_sm100(layout, d, residual, direct_store)
        pair = choice_sm100.choose(pairs, m, n, 2 * k, sms, False, launch_control)
        return _bf16_sm100(layout, pair, d, residual, direct_store)
    if arch == Arch.SM120:
        tiles = catalog.bf16_shapes_sm120(layout, d, residual, direct_store)
        return _bf16_sm120(layout, choice_sm120.choose(tiles, m, n, 2 * k, sms), d, residual, direct_store)
    shapes = catalog.bf16_shapes(layout, d, residual, direct_store)
    return _bf16(layout, choose(shapes, m, n, 2 * k, sms), d, residual, direct_store)


def _scaled(
    product: Product, m: int, n: int, k: int, sms: int, d: DType, residual: bool, direct_store: bool, take_over: bool
) -> KernelSpec:
    shapes = catalog.scaled_shapes_sm100(product, d, residual, direct_store)
    shape = choice_sm100.choose(shapes, m, n, k // 2 if product.packed else k, sms, True, take_over)
    return _scaled_sm100(product, shape, d, residual, direct_store)


def _scaled_by_warps(
    product: Product, m: int, n: int, k: int, sms: int, d: DType, residual: bool, direct_store: bool
) -> KernelSpec:
    turned = product.lying("nt")
    shapes = catalog.scaled_shapes_sm120(turned, d, residual, direct_store)
    per_byte = 2 if turned.a.dtype == turned.b.dtype == DType.E2M1 else 1
    word = SCALES_PER_WORD * max(turned.a.block, turned.b.block) // per_byte
    shape = choice_sm120.choose(shapes, m, n, k // per_byte, sms, word)
    return _scaled_sm120(turned, shape, d, residual, direct_store)


@cache
def _fp8(shape: Shape, d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> KernelSpec:
    return catalog.fp8_gemm_nt(shape, d, residual, sfa_major, sfb_columns, direct_store)


@cache
def _bf16(layout: str, shape: Shape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm(layout, shape, d, residual, direct_store)


@cache
def _bf16_sm100(layout: str, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm100(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm100(product: Product, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm100(product, shape, d, residual, direct_store)


@cache
def _bf16_sm120(layout: str, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm120(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm120(product: Product, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm120(product, shape, d, residual, direct_store)


@cache
def prenorm_spec(n: int, arch: str, slices: bool = False) -> KernelSpec:
    """The spec for so many columns; ``slices`` leaves a partial sum for each split of k."""
    if arch not in catalog.PRENORM_COLUMNS:
        archs = " and ".join(catalog.PRENORM_COLUMNS)
        raise UnsupportedArchitecture(f"{PRENORM}: there is no kernel for {arch}; it runs on {archs}")
    widths = catalog.PRENORM_COLUMNS[Arch(arch)]
    columns = next((width for width in widths if n <= width), widths[-1])
    return catalog.tf32_hc_prenorm_gemm(catalog.PrenormShape(64, columns), slices, Arch(arch))
