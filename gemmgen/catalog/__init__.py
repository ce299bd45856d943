"""The specs we ship, by operator family. Data and small pure functions; where you go to add a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gemmgen.catalog.dense import Shape, accumulating, bf16_gemm, fp8_gemm_nt, launched_early, starting_early
from gemmgen.catalog.dense_sm100 import Factor, PairShape
from gemmgen.catalog.dense_sm100 import bf16_gemm as bf16_gemm_sm100
from gemmgen.catalog.dense_sm120 import WarpShape
from gemmgen.catalog.dense_sm120 import bf16_gemm as bf16_gemm_sm120
from gemmgen.catalog.finished import ACTIVATIONS, FINISHED, SM90_PRODUCTS, finish_of, finished_output
from gemmgen.catalog.further import further_bf16, further_fp8
from gemmgen.catalog.fused import (
    FUSED,
    behind,
    fp8_output,
    fused_operator,
    fused_specs,
    head_split_output,
    mxfp8_output,
    operators_of,
    with_usual_scales,
)
from gemmgen.catalog.grouped import (
    LAYOUT,
    WIDE_GROUPED_SHAPES,
    finds_groups,
    grouped_shapes,
    in_k_groups,
    in_row_groups,
    of_group,
)
from gemmgen.catalog.grouped_sm100 import grouped_shapes_sm100
from gemmgen.catalog.grouped_sm120 import grouped_shapes_sm120
from gemmgen.catalog.k_grouped import k_grouped
from gemmgen.catalog.layout import layouts, pack_bytes, pack_ue8m0, to_k_major, to_m_major
from gemmgen.catalog.prenorm import (
    PRENORM_COLUMNS,
    PrenormForms,
    PrenormShape,
    prenorm_forms,
    shipped_prenorm,
    tf32_hc_prenorm_gemm,
)
from gemmgen.catalog.shapes import (
    BF16_GENERAL_SHAPES,
    BF16_SHAPES,
    DIRECT_SHAPES,
    FP8_GENERAL_SHAPES,
    FP8_SHAPES,
    gradient_shapes,
)
from gemmgen.catalog.shapes_sm120 import WIDE_GROUPED_WARPS_SM120, WIDE_WARPS_SM120
from gemmgen.catalog.shipped_grouped import grouped_specs
from gemmgen.catalog.shipped_sm100 import (
    FP8,
    FP8_FP4,
    LAYOUTS,
    MXFP4,
    NVFP4,
    Product,
    bf16_shapes_sm100,
    scaled_gemm_sm100,
    scaled_shapes_sm100,
    shipped_sm100,
)
from gemmgen.catalog.shipped_sm120 import (
    COARSE_FP4,
    bf16_shapes_sm120,
    scaled_gemm_sm120,
    scaled_shapes_sm120,
    shipped_sm120,
)
from gemmgen.ir import AnySpec, DType, KernelSpec

BF16_LAYOUTS = ("nt", "nn", "tn", "tt")
OUTPUTS = (DType.BF16, DType.F32)


def fp8_shapes(d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> tuple[Shape, ...]:
    """The tiles ``fp8_gemm_nt`` ships with for these choices."""
    if direct_store:
        return DIRECT_SHAPES
    common = (d, residual, sfa_major, sfb_columns) == (DType.BF16, False, "m", 128)
    return FP8_SHAPES if common else FP8_GENERAL_SHAPES


def bf16_shapes(layout: str, d: DType, residual: bool, direct_store: bool) -> tuple[Shape, ...]:
    """The tiles ``bf16_gemm_{layout}`` ships with for these choices."""
    if direct_store:
        return DIRECT_SHAPES
    common = (layout, d, residual) == ("nt", DType.BF16, False)
    return BF16_SHAPES if common else BF16_GENERAL_SHAPES


def fp8_choices(d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> tuple[Shape, ...]:
    """The tiles ``fp8_gemm_nt`` takes one of: those that ship, and further ones."""
    shipped = fp8_shapes(d, residual, sfa_major, sfb_columns, direct_store)
    return shipped if direct_store else (*shipped, *further_fp8(d, residual, sfa_major, sfb_columns))


def bf16_choices(layout: str, d: DType, residual: bool, direct_store: bool) -> tuple[Shape, ...]:
    """Likewise ``bf16_gemm_{layout}``."""
    shipped = bf16_shapes(layout, d, residual, direct_store)
    return shipped if direct_store else (*shipped, *further_bf16(layout, d, residual))


@cache
def specs() -> dict[str, KernelSpec]:
    """Every shipped spec of a single product by name, in a fixed order."""
    products = (*_fp8(), *_bf16(), *shipped_prenorm(), *shipped_sm100(), *shipped_sm120(), *fused_specs().values())
    return {spec.name: spec for spec in products}


def all_specs() -> dict[str, AnySpec]:
    """Every shipped spec by name: products, those of groups, then layout kernels."""
    return {**specs(), **grouped_specs(), **layouts()}


def _fp8() -> Iterator[KernelSpec]:
    for sfb_columns in (128, 1):
        for sfa_major in ("m", "k"):
            for d in OUTPUTS:
                for residual in (False, True):
                    for direct in (False, True):
                        choices = (d, residual, sfa_major, sfb_columns, direct)
                        for shape in fp8_shapes(*choices):
                            yield fp8_gemm_nt(shape, *choices)


def _bf16() -> Iterator[KernelSpec]:
    for layout in BF16_LAYOUTS:
        for d in OUTPUTS:
            for residual in (False, True):
                for direct in (False, True):
                    for shape in bf16_shapes(layout, d, residual, direct):
                        yield bf16_gemm(layout, shape, d, residual, direct)


__all__ = [
    "ACTIVATIONS",
    "BF16_LAYOUTS",
    "COARSE_FP4",
    "FINISHED",
    "FP8",
    "FP8_FP4",
    "FUSED",
    "LAYOUT",
    "LAYOUTS",
    "MXFP4",
    "NVFP4",
    "OUTPUTS",
    "PRENORM_COLUMNS",
    "SM90_PRODUCTS",
    "WIDE_GROUPED_SHAPES",
    "WIDE_GROUPED_WARPS_SM120",
    "WIDE_WARPS_SM120",
    "Factor",
    "PairShape",
    "PrenormForms",
    "PrenormShape",
    "Product",
    "Shape",
    "WarpShape",
    "accumulating",
    "all_specs",
    "behind",
    "bf16_choices",
    "bf16_gemm",
    "bf16_gemm_sm100",
    "bf16_gemm_sm120",
    "bf16_shapes",
    "bf16_shapes_sm100",
    "bf16_shapes_sm120",
    "finds_groups",
    "finish_of",
    "finished_output",
    "fp8_choices",
    "fp8_gemm_nt",
    "fp8_output",
    "fp8_shapes",
    "fused_operator",
    "fused_specs",
    "gradient_shapes",
    "grouped_shapes",
    "grouped_shapes_sm100",
    "grouped_shapes_sm120",
    "grouped_specs",
    "head_split_output",
    "in_k_groups",
    "in_row_groups",
    "k_grouped",
    "launched_early",
    "layouts",
    "mxfp8_output",
    "of_group",
    "operators_of",
    "pack_bytes",
    "pack_ue8m0",
    "prenorm_forms",
    "scaled_gemm_sm100",
    "scaled_gemm_sm120",
    "scaled_shapes_sm100",
    "scaled_shapes_sm120",
    "specs",
    "starting_early",
    "tf32_hc_prenorm_gemm",
    "to_k_major",
    "to_m_major",
    "with_usual_scales",
]
