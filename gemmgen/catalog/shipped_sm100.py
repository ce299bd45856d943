"""What the operators run on datacenter Blackwell: a spec for every choice a caller has, and the ones written out.

A choice that is not among the written ones is made from the same functions at its first call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm, scaled_gemm_nt, tf32_gemm_nt
from gemmgen.catalog.shapes_sm100 import (
    BF16_SHAPES_SM100,
    DIRECT_SHAPES_SM100,
    GENERAL_SHAPES_SM100,
    LAUNCH_CONTROL_SHAPES,
    LOW_SHAPES,
    SCALED_SHAPES_SM100,
    TF32_SHAPES_SM100,
    TURNED_SHAPES_SM100,
)
from gemmgen.ir import DType, KernelSpec, Operand, Scale

LAYOUTS = ("nt", "nn", "tn", "tt")
ALPHA = "alpha"
"""The host scalar of NVFP4: both tensor scales, and what a caller multiplies by."""
OUTPUT_CHOICES = ((DType.BF16, False), (DType.BF16, True), (DType.F32, False), (DType.F32, True))
"""Type of the output, and whether C is added."""


@dataclass(frozen=True)
class Product:
    """Two block-scaled factors as an operator tells them apart, and how they lie."""

    a: Factor
    b: Factor
    a_major: str = "k"
    b_major: str = "k"

    @property
    def packed(self) -> bool:
        """Whether both are 4-bit at the full rate."""
        return self.a == self.b and self.a.dtype == DType.E2M1 and self.a.block <= 32

    @property
    def nvfp4(self) -> bool:
        """Whether scales are UE4M3, one for 16 elements."""
        return self.packed and self.a.block == 16

    @property
    def operator(self) -> str:
        """The operator, without its layout, that the kernels of these factors are filed under."""
        if self.packed:
            return "nvfp4_gemm" if self.nvfp4 else "mxfp4_gemm"
        return "fp8_fp4_gemm" if DType.E2M1 in (self.a.dtype, self.b.dtype) else "fp8_gemm"

    @property
    def layout(self) -> str:
        """nt, nn, tn or tt."""
        return ("n" if self.a_major == "k" else "t") + ("t" if self.b_major == "k" else "n")

    def lying(self, layout: str) -> Product:
        """The same factors in another layout; 4-bit ones are k-contiguous in all of them."""
        a_major = "m" if layout[0] == "t" and self.a.dtype != DType.E2M1 else "k"
        b_major = "n" if layout[1] == "n" and self.b.dtype != DType.E2M1 else "k"
        return replace(self, a_major=a_major, b_major=b_major)


def _e4m3(a: int, b: int) -> Product:
    return Product(Factor(DType.E4M3, a), Factor(DType.E4M3, b))


FP8 = _e4m3(128, 128)
MXFP4 = Product(Factor(DType.E2M1, 32), Factor(DType.E2M1, 32))
NVFP4 = Product(Factor(DType.E2M1, 16), Factor(DType.E2M1, 16))
COMMON = (FP8, MXFP4, NVFP4)
"""These get every tile when they make bf16 without C."""
MIXED = tuple(
    Product(Factor(x, i), Factor(y, j))
    for x, i, y, j in (
        (DType.E4M3, 128, DType.E2M1, 32),
        (DType.E4M3, 32, DType.E2M1, 32),
        (DType.E2M1, 32, DType.E4M3, 128),
        (DType.E2M1, 32, DType.E4M3, 32),
    )
)
FP8_FP4 = MIXED[0]
GRANULARITIES = (_e4m3(32, 32), _e4m3(32, 128), _e4m3(128, 32))


def bf16_shapes_sm100(layout: str, d: DType, residual: bool, direct_store: bool) -> tuple[PairShape, ...]:
    """The tiles of ``bf16_gemm_{layout}`` for these choices."""
    if direct_store:
        return DIRECT_SHAPES_SM100
    if layout[0] == "t":
        return (*LOW_SHAPES[2:], *TURNED_SHAPES_SM100)
    return BF16_SHAPES_SM100 if (layout, d, residual) == ("nt", DType.BF16, False) else GENERAL_SHAPES_SM100


def scaled_shapes_sm100(product: Product, d: DType, residual: bool, direct_store: bool) -> tuple[PairShape, ...]:
    """The tiles of a block-scaled product for these choices."""
    if direct_store:
        return DIRECT_SHAPES_SM100
    if product.a_major == "m":
        return TURNED_SHAPES_SM100
    return SCALED_SHAPES_SM100 if product in COMMON and (d, residual) == (DType.BF16, False) else GENERAL_SHAPES_SM100


def scaled_gemm_sm100(
    product: Product,
    shape: PairShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
) -> KernelSpec:
    """The block-scaled product under its operator's name; NVFP4 also multiplies by the host scalar ``alpha``."""
    scale = DType.UE4M3X4 if product.nvfp4 else DType.UE8M0X4
    majors = product.a_major, product.b_major
    spec = scaled_gemm_nt(product.a, product.b, shape, d, residual, direct_store, scale, *majors)
    factors = f"{product.a.label}_{product.b.label}"
    plain = f"sm100_gemm_{product.layout}_{factors}"
    name = f"sm100_{product.operator}_{product.layout}{'' if product.packed else f'_{factors}'}"
    spec = spec.replace(name=name + spec.name.removeprefix(plain))
    if not product.nvfp4:
        return spec
    alpha = Operand(name=ALPHA, dtype=DType.F32, box=())
    return spec.replace(operands=(*spec.operands, alpha), epilogue=(Scale(by=ALPHA), *spec.epilogue))


def shipped_sm100() -> Iterator[KernelSpec]:
    """The specs written out: every form that inference calls, and one or two tiles of the others."""
    yield from _bf16()
    for product in (*COMMON, *GRANULARITIES, *MIXED):
        for shape in scaled_shapes_sm100(product, DType.BF16, False, False):
            yield scaled_gemm_sm100(product, shape)
    for d, residual in OUTPUT_CHOICES[1:]:
        for shape in GENERAL_SHAPES_SM100:
            yield scaled_gemm_sm100(FP8, shape, d, residual)
        for product in (MXFP4, NVFP4):
            yield scaled_gemm_sm100(product, LOW_SHAPES[0], d, residual)
    for product in COMMON:
        yield scaled_gemm_sm100(product, *DIRECT_SHAPES_SM100, direct_store=True)
        for shape in LAUNCH_CONTROL_SHAPES:
            yield scaled_gemm_sm100(product, shape)
    for layout in LAYOUTS[1:]:
        for shape in scaled_shapes_sm100(FP8.lying(layout), DType.BF16, False, False):
            yield scaled_gemm_sm100(FP8.lying(layout), shape)
    for shape in TF32_SHAPES_SM100:
        yield tf32_gemm_nt(shape)


def _bf16() -> Iterator[KernelSpec]:
    for layout in LAYOUTS:
        for d, residual in OUTPUT_CHOICES:
            shapes = bf16_shapes_sm100(layout, d, residual, False)
            for shape in shapes if layout == "nt" or not (residual or d == DType.F32) else (shapes[0], shapes[-2]):
                yield bf16_gemm(layout, shape, d, residual)
            if layout == "nt":
                for shape in DIRECT_SHAPES_SM100:
                    yield bf16_gemm(layout, shape, d, residual, direct_store=True)
    for shape in LAUNCH_CONTROL_SHAPES:
        yield bf16_gemm("nt", shape)
