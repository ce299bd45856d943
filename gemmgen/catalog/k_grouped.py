"""The kernels of groups of k that are written out: weight gradients."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.catalog import dense_sm100, dense_sm120
from gemmgen.catalog.dense import accumulating, bf16_gemm, fp8_gemm_nt
from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape
from gemmgen.catalog.grouped import in_k_groups
from gemmgen.catalog.shapes import DIRECT_SHAPES, GRADIENT_SHAPES
from gemmgen.catalog.shipped_sm100 import Product, bf16_shapes_sm100, scaled_gemm_sm100, scaled_shapes_sm100
from gemmgen.catalog.shipped_sm120 import bf16_shapes_sm120, scaled_gemm_sm120, scaled_shapes_sm120
from gemmgen.ir import DType, KernelSpec

SCALED = tuple(Product(Factor(DType.E4M3, block), Factor(DType.E4M3, block)) for block in (128, 32))
"""Factors whose scales tensor cores apply."""
WRITTEN = (DType.F32, False, False)
"""Output, whether a C is added, and whether lanes store it, of what weight gradients add to where they lie."""


def k_grouped() -> Iterator[KernelSpec]:
    """The specs written out: every tile that fp32 gradients which are added up where they lie may take, by counts.

    Ends, bf16 outputs, another C and outputs that TMA cannot store differ in a few lines: of those there are two.
    """
    for shape in GRADIENT_SHAPES[DType.BF16]:
        yield in_k_groups(accumulating(bf16_gemm("tn", shape, *WRITTEN)), "counts")
    for shape in GRADIENT_SHAPES[DType.E4M3]:
        spec = accumulating(fp8_gemm_nt(shape, DType.F32, sfb_columns=1))
        yield in_k_groups(spec, "counts", spec.tile.k, apart=True)
    for d, direct in ((DType.BF16, False), (DType.F32, True)):
        yield in_k_groups(bf16_gemm("tn", DIRECT_SHAPES[0], d, direct_store=direct), "ends", 128)
    for pair in bf16_shapes_sm100("tn", *WRITTEN):
        yield in_k_groups(accumulating(dense_sm100.bf16_gemm("tn", pair, *WRITTEN)), "counts")
    for warps in _whole(bf16_shapes_sm120("tn", *WRITTEN)):
        yield in_k_groups(accumulating(dense_sm120.bf16_gemm("tn", warps, *WRITTEN)), "counts")
    for product in SCALED:
        turned = product.lying("tn")
        for pair in scaled_shapes_sm100(turned, *WRITTEN):
            yield in_k_groups(accumulating(scaled_gemm_sm100(turned, pair, *WRITTEN)), "counts")
        for warps in _whole(scaled_shapes_sm120(product, *WRITTEN)):
            yield in_k_groups(accumulating(scaled_gemm_sm120(product, warps, *WRITTEN)), "counts", 32)


def _whole(shapes: tuple[WarpShape, ...]) -> Iterator[WarpShape]:
    """Tiles of one CTA: groups share k already."""
    return (shape for shape in shapes if shape.splits == 1)
