"""Which tiles grouped products have on datacenter Blackwell. Chosen by arithmetic: no such device was measured on."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.catalog.dense_sm100 import PairShape, bf16_gemm
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.catalog.shipped_sm100 import FP8, FP8_FP4, MXFP4, NVFP4, Product, scaled_gemm_sm100
from gemmgen.ir import DType, KernelSpec

FEW_ROWS = (PairShape(16, swap=True), PairShape(32, swap=True), PairShape(64, swap=True))
"""For groups of few rows: columns of the output are on the lanes, so a tile has as few rows as this."""

ROWS_128 = (PairShape(128), PairShape(128, swap=True, ctas=2))
"""For groups of more rows, and for row ids that say to start groups at multiples of 128: the pair lies along n."""

MANY_ROWS = (PairShape(224, ctas=2), PairShape(256, ctas=2))
"""For groups of many rows: a pair of CTAs has 256 of them. By ids, groups would have to start at multiples of 256."""

SHAPES = {
    "ids": (*FEW_ROWS, *ROWS_128),
    "ends": (*FEW_ROWS, *ROWS_128, *MANY_ROWS),
    "counts": (*FEW_ROWS, *ROWS_128, *MANY_ROWS),
}
"""Tiles by what a layout holds."""

LINE_BITS = 1024
"""Of a factor whose columns are contiguous a CTA copies so many bits of a column at a time."""


def grouped_shapes_sm100(by: str, a_major: str, b_major: str, b: DType) -> tuple[PairShape, ...]:
    """The tiles of a product for groups, by what a layout holds and which axes of the factors are contiguous."""
    shapes = SHAPES[by]
    if a_major == "m":  # which no tile of few rows takes
        shapes = tuple(shape for shape in shapes if not shape.swap)
    if b_major == "n":
        columns = LINE_BITS // b.bits
        shapes = tuple(shape for shape in shapes if shape.swap or shape.n // shape.ctas % columns == 0)
    return shapes


PRODUCTS: tuple[Product | None, ...] = (None, FP8, FP8_FP4, MXFP4, NVFP4)
"""Those written out; None is bf16. Any other mix is made from the same functions at its first call."""


def row_groups_sm100(by: str, product: Product | None, shape: PairShape, alignment: int = 1) -> KernelSpec:
    """A bf16 output of A [m, k] times a B [n, k] for every group, with scales where the product has them."""
    dense = bf16_gemm("nt", shape) if product is None else scaled_gemm_sm100(product, shape)
    return in_row_groups(dense, by, alignment)


def grouped_sm100() -> Iterator[KernelSpec]:
    """The specs to write out: every tile of each layout for FP8, a low and a wide one of the others."""
    for by, shapes in SHAPES.items():
        for product in PRODUCTS:
            low, wide = ((shapes[1],) if by == "counts" else ()), ((shapes[-1],) if by != "counts" else ())
            for shape in shapes if product == FP8 else (*low, *wide):
                yield row_groups_sm100(by, product, shape)
