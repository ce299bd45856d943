"""Outputs of groups with gaps in the middle of heads: rows and columns are cut by different things, and both hold.

``grouped`` judges each group against float64; gaps, like every other byte of no group, against what stood there.
"""

from __future__ import annotations

import pytest
from chains import with_heads
from grouped import Problem, layout_by

from gemmgen.catalog import PairShape, Shape, WarpShape, dense_sm100, dense_sm120
from gemmgen.catalog import bf16_gemm as bf16_gemm_sm90
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.commands.inputs import k_step
from gemmgen.ir import HeadSplit
from gemmgen.runtime.simulation import SCHEDULES

COUNTS = (5, 0, 70, 1)
WAYS = ("ids", "ends", "counts")
WHOLE, TORN = HeadSplit(left=64, mid=16, right=64), HeadSplit(left=6, mid=3, right=10)
"""Heads of whole chunks, which boxes are made of, and of pairs, which lanes store."""
KINDS = {
    "sm90 staged": lambda: bf16_gemm_sm90("nt", Shape(64, 64, groups=1, slots=2)),
    "sm90 turns": lambda: bf16_gemm_sm90("nt", Shape(64, 128, groups=1, slots=2, staging=2)),
    "sm90 direct": lambda: bf16_gemm_sm90("nt", Shape(64, 64, groups=1, slots=2), direct_store=True),
    "sm90 swapped": lambda: bf16_gemm_sm90("nt", Shape(32, 64, groups=1, slots=2, swap=True)),
    "sm100 staged": lambda: dense_sm100.bf16_gemm("nt", PairShape(64, slots=2)),
    "sm100 direct": lambda: dense_sm100.bf16_gemm("nt", PairShape(64, slots=2), direct_store=True),
    "sm100 swapped": lambda: dense_sm100.bf16_gemm("nt", PairShape(32, slots=2, swap=True)),
    "sm120 staged": lambda: dense_sm120.bf16_gemm("nt", WarpShape(16, 64, warps=(1, 1), slots=2)),
    "sm120 direct": lambda: dense_sm120.bf16_gemm("nt", WarpShape(16, 64, warps=(1, 1), slots=2), direct_store=True),
}


def problem(kind: str, by: str, zero_padding: bool = False) -> Problem:
    """Two heads, or nine small ones, in tiles of which the last sticks out."""
    staged = KINDS[kind]().epilogue[-1].through is not None  # type: ignore[union-attr]
    dense = with_heads(KINDS[kind](), WHOLE if staged else TORN)
    step = k_step(dense)
    k, n = -(-(dense.tile.k + 40) // step) * step, 256 if staged else 144
    alignment = 16 if zero_padding else 1
    given = layout_by(by, COUNTS, dense.tile.m, alignment)
    return Problem(dense, in_row_groups(dense, by, alignment, zero_padding), given, n, k)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_move_and_rows_end_with_their_group(kind: str, by: str) -> None:
    place = list(KINDS).index(kind) + WAYS.index(by)
    problem(kind, by).run(SCHEDULES[place % 4], seed=place)


@pytest.mark.parametrize("kind", ["sm90 staged", "sm90 direct", "sm100 staged", "sm120 direct"])
def test_zeros_between_groups_leave_the_gaps_of_heads(kind: str) -> None:
    problem(kind, "ends", zero_padding=True).run("random")
