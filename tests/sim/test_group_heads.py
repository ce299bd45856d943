"""Outputs of groups with gaps in the middle of heads: rows and columns are cut by different things, and both hold.

``grouped`` judges each group against float64; gaps, like every other byte of no group, against what stood there.
"""

from __future__ import annotations

import pytest
import torch
from chains import with_heads
from grouped import Problem, layout_by
from planted.k_grouped import KSubject, of_k_groups
from planted.kernels import WrongResult

from gemmgen.catalog import PairShape, Shape, WarpShape, dense_sm100, dense_sm120, fp8_gemm_nt
from gemmgen.catalog import bf16_gemm as bf16_gemm_sm90
from gemmgen.catalog.grouped import in_k_groups, in_row_groups
from gemmgen.commands.inputs import k_step
from gemmgen.ir import DType, HeadSplit, KernelSpec
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
    "sm90 swapped, staged": lambda: bf16_gemm_sm90("nt", Shape(64, 64, groups=1, slots=2, swap=True)),
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


class Moved(KSubject):
    """Groups of k whose outputs have heads: gaps stay as they were."""

    def _judge(self, output: torch.Tensor) -> None:
        heads, columns = self.spec.output.heads, torch.arange(self.n)
        assert heads is not None
        moved = columns + (columns + heads.right) // heads.head * heads.mid
        wrong = (output[..., moved] != self.expected).sum().item()
        whole = torch.empty(0, dtype=output.dtype).set_(output.untyped_storage())
        if wrong or (~whole.isnan()).sum().item() != self.expected.numel():
            raise WrongResult(f"{wrong} elements differ from the exact result, or more than those are written")


def of_k(
    dense: KernelSpec, heads: HeadSplit, counts: tuple[int, ...], alignment: int = 1, apart: bool = False
) -> Moved:
    """Two tiles and more along both axes, and heads that tiles end inside of."""
    by, n = "ends" if alignment > 1 and not apart else "counts", 256 if heads == WHOLE else 144
    given = of_k_groups(in_k_groups(with_heads(dense, heads), by, alignment, apart), counts, 72, n, 2)
    return Moved(given.spec, given.m, given.n, given.k, given.sms, given.spans)


ROWS = (37, 0, 70)
SMALL = Shape(64, 64, groups=1, slots=2)
K_GROUPS = {
    "sm90 staged": lambda: of_k(bf16_gemm_sm90("tn", SMALL, DType.F32, True), WHOLE, ROWS),
    "sm90 direct": lambda: of_k(bf16_gemm_sm90("tn", SMALL, direct_store=True), TORN, ROWS, 16),
    "sm90 apart": lambda: of_k(fp8_gemm_nt(SMALL, DType.F32, True, "m", 1), WHOLE, (128, 0, 256), 128, True),
    "sm100 staged": lambda: of_k(dense_sm100.bf16_gemm("tn", PairShape(64, slots=2)), WHOLE, ROWS),
    "sm100 direct": lambda: of_k(dense_sm100.bf16_gemm("tn", PairShape(64, slots=2), direct_store=True), TORN, ROWS),
    "sm120 staged": lambda: of_k(dense_sm120.bf16_gemm("tn", WarpShape(16, 64, (1, 1), slots=2)), WHOLE, ROWS),
    "sm120 direct": lambda: of_k(
        dense_sm120.bf16_gemm("tn", WarpShape(16, 64, (1, 1), slots=2), direct_store=True), TORN, ROWS, 16
    ),
}


@pytest.mark.parametrize("kind", K_GROUPS)
def test_columns_of_every_group_of_k_move(kind: str) -> None:
    K_GROUPS[kind]().must_pass([(SCHEDULES[list(K_GROUPS).index(kind) % 4], 1)])
