"""Groups of rows on sm100, with NaN in rows of no group, of A and of its scales: values, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from grouped_rows import Grouped, laid

from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm
from gemmgen.catalog.shipped_sm100 import FP8, FP8_FP4, MXFP4, NVFP4, Product, scaled_gemm_sm100
from gemmgen.ir import DType, KernelSpec
from gemmgen.runtime.simulation import SCHEDULES

COUNTS = (0, 37, 1, 0, 5, 0)
"""Groups without rows first, last and between others, groups of few, and one that begins inside 16 bytes of scales."""
FINE = Product(Factor(DType.E4M3, 32), Factor(DType.E4M3, 32))
FP4_FP8 = Product(Factor(DType.E2M1, 32), Factor(DType.E4M3, 128))
NARROW, PAIR, WIDE_PAIR = PairShape(64), PairShape(64, ctas=2), PairShape(256, ctas=2)
LOW, LOW_PAIR, LOW_64 = PairShape(16, swap=True), PairShape(32, swap=True, ctas=2), PairShape(64, swap=True)


def dense(product: Product | None, shape: PairShape, direct: bool = False, d: DType = DType.BF16) -> KernelSpec:
    if product is None:
        return bf16_gemm("nt", shape, d, direct_store=direct)
    return scaled_gemm_sm100(product, shape, d, direct_store=direct)


FORMS = [
    (None, LOW, "ends", 1),
    (None, PAIR, "counts", 1),
    (FP8, NARROW, "ends", 1),
    (FP8, PAIR, "ids", 256),
    (FP8, LOW_64, "counts", 1),
    (FINE, PAIR, "ends", 4),
    (FINE, LOW, "ids", 16),
    (FP8_FP4, LOW_PAIR, "ends", 1),
    (FP8_FP4, NARROW, "counts", 1),
    (FP4_FP8, NARROW, "ids", 128),
    (MXFP4, PAIR, "ends", 1),
    (MXFP4, LOW, "counts", 1),
    (NVFP4, LOW_PAIR, "ends", 1),
    (NVFP4, NARROW, "ends", 128),
]
"""Every product in two layouts or more, by one CTA and by two, swapped and not."""


def grouped(
    product: Product | None,
    shape: PairShape,
    by: str,
    counts: Sequence[int] = COUNTS,
    alignment: int = 1,
    *,
    n: int = 40,
    rows: int | None = None,
    filled: int = 0xFF,
    direct: bool = False,
) -> Grouped:
    k = 160 if product in (None, FP8, FINE) else 256 if product in (FP8_FP4, FP4_FP8) else 320
    return Grouped(dense(product, shape, direct), laid(by, counts, alignment, rows=rows), n, k, filled)


@pytest.mark.parametrize(("product", "shape", "by", "alignment"), FORMS)
def test_every_product_and_layout(product: Product | None, shape: PairShape, by: str, alignment: int) -> None:
    problem = grouped(product, shape, by, alignment=alignment)
    problem.judge(problem.run())


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
@pytest.mark.parametrize(
    ("product", "shape", "by", "alignment"),
    [(FP8, NARROW, "ends", 1), (FP8, LOW_64, "counts", 1), (FINE, LOW, "ids", 16)],
)
def test_timing_changes_nothing(
    product: Product | None, shape: PairShape, by: str, alignment: int, schedule: str
) -> None:
    problem = grouped(product, shape, by, alignment=alignment)
    problem.judge(problem.run(schedule, sms=2))
