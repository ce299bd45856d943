"""What the operators run on workstation Blackwell: a spec for every choice a caller has, and the ones written out.

A choice that is not among the written ones is made from the same functions at its first call.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, scaled_gemm_nt
from gemmgen.catalog.shapes_sm120 import (
    COMMON_SHAPES_SM120,
    DIRECT_SHAPES_SM120,
    GENERAL_SHAPES_SM120,
    SPREAD_SHAPES_SM120,
)
from gemmgen.catalog.shipped_sm100 import (
    ALPHA,
    COMMON,
    FP8,
    GRANULARITIES,
    LAYOUTS,
    MIXED,
    OUTPUT_CHOICES,
    Product,
)
from gemmgen.ir import DType, KernelSpec, Operand, Scale

COARSE_FP4 = Product(Factor(DType.E2M1, 128), Factor(DType.E2M1, 128))
"""Two 4-bit factors with a scale per 128 of k, which only this architecture multiplies packed."""


def bf16_shapes_sm120(layout: str, d: DType, residual: bool, direct_store: bool) -> tuple[WarpShape, ...]:
    """The tiles of ``bf16_gemm_{layout}`` for these choices."""
    if direct_store:
        return DIRECT_SHAPES_SM120
    return COMMON_SHAPES_SM120 if (layout, d, residual) == ("nt", DType.BF16, False) else GENERAL_SHAPES_SM120


def scaled_shapes_sm120(product: Product, d: DType, residual: bool, direct_store: bool) -> tuple[WarpShape, ...]:
    """The tiles of a block-scaled product for these choices."""
    if direct_store:
        return DIRECT_SHAPES_SM120
    types = (product.a.dtype, product.b.dtype)
    if types.count(DType.E2M1) == 1:
        return SPREAD_SHAPES_SM120
    return COMMON_SHAPES_SM120 if product in COMMON and (d, residual) == (DType.BF16, False) else GENERAL_SHAPES_SM120


def scaled_gemm_sm120(
    product: Product,
    shape: WarpShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
) -> KernelSpec:
    """The product of k-contiguous factors under its operator's name; NVFP4 also multiplies by the scalar ``alpha``."""
    scale = DType.UE4M3X4 if product.nvfp4 else DType.UE8M0X4
    spec = scaled_gemm_nt(product.a, product.b, shape, d, residual, direct_store, scale)
    factors = f"{product.a.label}_{product.b.label}"
    name = f"sm120_{product.operator}_nt{'' if product.packed else f'_{factors}'}"
    spec = spec.replace(name=name + spec.name.removeprefix(f"sm120_gemm_nt_{factors}"))
    if not product.nvfp4:
        return spec
    alpha = Operand(name=ALPHA, dtype=DType.F32, box=())
    return spec.replace(operands=(*spec.operands, alpha), epilogue=(Scale(by=ALPHA), *spec.epilogue))


def shipped_sm120() -> Iterator[KernelSpec]:
    """The specs written out: every form that inference calls, and a few tiles of the others."""
    yield from _bf16()
    for product in (*COMMON, COARSE_FP4, *GRANULARITIES, *MIXED):
        for shape in scaled_shapes_sm120(product, DType.BF16, False, False):
            yield scaled_gemm_sm120(product, shape)
    for d, residual in OUTPUT_CHOICES[1:]:
        for shape in GENERAL_SHAPES_SM120:
            yield scaled_gemm_sm120(FP8, shape, d, residual)
    for product in COMMON:
        yield scaled_gemm_sm120(product, *DIRECT_SHAPES_SM120, direct_store=True)


def _bf16() -> Iterator[KernelSpec]:
    for layout in LAYOUTS:
        for d, residual in OUTPUT_CHOICES:
            shapes = bf16_shapes_sm120(layout, d, residual, False)
            for shape in shapes if layout == "nt" or not (residual or d == DType.F32) else shapes[-1:]:
                yield bf16_gemm(layout, shape, d, residual)
            if layout == "nt":
                for shape in DIRECT_SHAPES_SM120:
                    yield bf16_gemm(layout, shape, d, residual, direct_store=True)
