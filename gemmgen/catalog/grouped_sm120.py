"""Which tiles grouped products have on workstation Blackwell, and the kernels of theirs that are written out."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.catalog.shapes_sm120 import LOW, SQUARE
from gemmgen.catalog.shipped_sm100 import COMMON, FP8, MIXED, Product
from gemmgen.catalog.shipped_sm120 import scaled_gemm_sm120
from gemmgen.ir import DType, KernelSpec

FEW_ROWS = (LOW, WarpShape(32, 128, warps=(8, 1), swap=True))
"""For groups of few rows, as decoding has them: columns of the output are on the fragments' rows."""
GROUPED_SHAPES_SM120 = (*FEW_ROWS, WarpShape(64, 128, warps=(2, 4)), SQUARE)
"""Every tile divides 128, so that groups may start at any multiple of that, or of what a tile has of rows."""
GROUPED_SPREAD_SHAPES_SM120 = (*GROUPED_SHAPES_SM120[:-1], WarpShape(128, 128))
"""For mixes of 8 and 4 bits: a row of 128 elements takes 128 bytes, however narrow the elements."""
ROW_LAYOUTS = (("ids", 1), ("ends", 1), ("ends", 128), ("counts", 1))
"""What the layout holds, and multiples of how many rows ends are counted from."""


def grouped_shapes_sm120(product: Product | None) -> tuple[WarpShape, ...]:
    """The tiles of a product for groups of rows, None for bf16; groups of few rows take the first."""
    mixed = product is not None and (product.a.dtype, product.b.dtype).count(DType.E2M1) == 1
    return GROUPED_SPREAD_SHAPES_SM120 if mixed else GROUPED_SHAPES_SM120


def grouped_sm120() -> Iterator[KernelSpec]:
    """The specs written out: FP8 with every tile and layout, a low and a wide tile of other factors."""
    for by, alignment in ROW_LAYOUTS:
        for shape in grouped_shapes_sm120(FP8):
            yield in_row_groups(scaled_gemm_sm120(FP8, shape), by, alignment)
    for by in ("ids", "ends", "counts"):
        for spec in (bf16_gemm("nt", LOW), bf16_gemm("nt", SQUARE), bf16_gemm("nn", SQUARE)):
            yield in_row_groups(spec, by)
    for product in (*COMMON[1:], *MIXED):
        low, *_, wide = grouped_shapes_sm120(product)
        yield in_row_groups(scaled_gemm_sm120(product, low), "counts")
        yield in_row_groups(scaled_gemm_sm120(product, wide), "ids")
