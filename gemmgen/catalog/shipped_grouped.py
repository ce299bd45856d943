"""Grouped kernels that are written out: what operators of groups take first; others are made at their first call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gemmgen.catalog.dense import bf16_gemm, fp8_gemm_nt
from gemmgen.catalog.fused import mxfp8_output
from gemmgen.catalog.grouped import (
    ALIGNED_ROWS,
    FP8_FINE,
    FP8_SHAPES,
    LOW,
    SQUARE,
    finds_groups,
    grouped_shapes,
    in_row_groups,
)
from gemmgen.catalog.grouped_sm100 import grouped_sm100
from gemmgen.catalog.grouped_sm120 import grouped_sm120
from gemmgen.catalog.k_grouped import k_grouped
from gemmgen.ir import DType, KernelSpec

LAYOUTS = (("ids", 1, False), ("ends", 1, False), ("ends", ALIGNED_ROWS, True), ("counts", 1, False))
"""What a layout holds, the alignment of ends, and whether rows between groups become 0."""


@cache
def grouped_specs() -> dict[str, KernelSpec]:
    """Every grouped spec that is written out, by name, in a fixed order."""
    return {spec.name: spec for spec in (*_rows_sm90(), *grouped_sm100(), *grouped_sm120(), *k_grouped())}


def _rows_sm90() -> Iterator[KernelSpec]:
    for by, alignment, zero_padding in LAYOUTS:
        for shape in grouped_shapes(DType.E4M3, by):
            found = finds_groups(by, ALIGNED_ROWS, shape.m)
            yield in_row_groups(fp8_gemm_nt(shape), by, ALIGNED_ROWS if found else alignment, zero_padding)
    for by, alignment, zero_padding in LAYOUTS:
        for shape in grouped_shapes(DType.BF16, by):
            yield in_row_groups(bf16_gemm("nt", shape), by, alignment, zero_padding)
        yield in_row_groups(bf16_gemm("nn", SQUARE), by, alignment, zero_padding)
    for by in ("ids", "ends"):
        for shape in (LOW, FP8_FINE, *FP8_SHAPES):
            found = finds_groups(by, ALIGNED_ROWS, shape.m)
            yield in_row_groups(mxfp8_output(False).of(fp8_gemm_nt(shape)), by, ALIGNED_ROWS if found else 1)
