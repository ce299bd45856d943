"""Groups of rows on datacenter Blackwell: every kind of factors and of layout, with NaN wherever no row is.

``grouped`` judges each group against float64 and every other byte of the outputs against what stood there.
"""

from __future__ import annotations

import pytest
import torch
from grouped import Layout, Problem, by_counts, chained, check_same_bits, gated, layout_by, summed

from gemmgen.backends import lower
from gemmgen.catalog import fused
from gemmgen.catalog.dense_sm100 import Factor, PairShape, bf16_gemm, scaled_gemm_nt
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.catalog.shipped_sm100 import NVFP4, scaled_gemm_sm100
from gemmgen.commands.inputs import k_step
from gemmgen.ir import DType, KernelSpec
from gemmgen.runtime.simulation import SCHEDULES

E4M3, E5M2, E2M1 = DType.E4M3, DType.E5M2, DType.E2M1
ROWS, PAIR = PairShape(32), PairShape(32, ctas=2)
LOW, LOW_PAIR = PairShape(16, swap=True), PairShape(32, swap=True, ctas=2)
TALL = PairShape(256, swap=True)
"""A tile of as many rows as a box has words, so that the words of one that starts anywhere take two."""
COUNTS = (0, 37, 1, 0, 5)
"""Groups without rows first and between others, and some that begin inside 16 bytes of words."""


def scaled(a: DType, i: int, b: DType, j: int, shape: PairShape) -> KernelSpec:
    return scaled_gemm_nt(Factor(a, i), Factor(b, j), shape)


KINDS = {
    "bf16": lambda shape: bf16_gemm("nn" if shape.swap else "nt", shape),
    "fp8_coarse": lambda shape: scaled(E4M3, 128, E5M2, 128, shape),
    "fp8_fine": lambda shape: scaled(E4M3, 32, E4M3, 128, shape),
    "mxfp4": lambda shape: scaled(E2M1, 32, E2M1, 32, shape),
    "nvfp4": lambda shape: scaled_gemm_sm100(NVFP4, shape),
    "fp8_fp4": lambda shape: scaled(E4M3, 128, E2M1, 32, shape),
    "fp4_fp8": lambda shape: scaled(E2M1, 32, E4M3, 32, shape),
}
WAYS = ("ids", "ends", "counts")
SHAPES = (PAIR, LOW, ROWS, LOW_PAIR)
"""One CTA and two, m on the lanes of tensor memory and on its columns."""


def unit(dense: KernelSpec) -> int:
    """Rows that CTAs which multiply together have."""
    return dense.tile.m * dense.cluster.m


def layout(by: str, alignment: int, dense: KernelSpec, counts: tuple[int, ...] = COUNTS) -> Layout:
    return layout_by(by, counts, unit(dense), alignment)


def problem(
    dense: KernelSpec,
    by: str,
    alignment: int = 1,
    given: Layout | None = None,
    n: int | None = None,
    poison: int = 0xFF,
    zero_padding: bool = False,
) -> Problem:
    """k is a block and a ragged piece, and n a tile and a piece, or a piece."""
    step = k_step(dense)
    k = -(-(dense.tile.k + 40) // step) * step
    given, n = given or layout(by, alignment, dense), n or 40
    return Problem(dense, in_row_groups(dense, by, alignment, zero_padding), given, n, k, poison=poison)


def product(kind: str, by: str) -> KernelSpec:
    return KINDS[kind](SHAPES[(list(KINDS).index(kind) + WAYS.index(by)) % 4])


@pytest.mark.parametrize(
    ("kind", "by"),
    [(kind, by) for i, kind in enumerate(KINDS) for j, by in enumerate(WAYS) if (i + j) % 3 or kind.startswith("fp8")],
)
def test_every_kind_of_factors_and_layout(kind: str, by: str) -> None:
    place = list(KINDS).index(kind) + WAYS.index(by)
    problem(product(kind, by), by).run(SCHEDULES[place % 4], seed=place)


@pytest.mark.parametrize(
    ("kind", "shape", "alignment", "zero_padding"),
    [("fp8_fine", LOW, 4, True), ("bf16", PAIR, 128, True), ("fp8_coarse", TALL, 1, False)],
)
def test_groups_that_start_at_multiples(kind: str, shape: PairShape, alignment: int, zero_padding: bool) -> None:
    problem(KINDS[kind](shape), "ends", alignment, zero_padding=zero_padding).run("random")


# ---------------------------------------------------------------------------------------------- layouts


EMPTIES = ((0, 0, 5, 20), (17, 2, 0, 0), (0, 70, 0), (0, 0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize("by", WAYS)
def test_empty_groups_anywhere(by: str) -> None:
    """First, in the middle, last, all of them but a huge one, all; groups of one row."""
    dense = product("fp8_fine", by)
    for number, counts in enumerate(EMPTIES):
        problem(dense, by, given=layout(by, 1, dense, counts)).run(SCHEDULES[number % 4], sms=2)


def test_tiles_of_no_group_at_all() -> None:
    dense = product("fp8_fine", "ids")
    problem(dense, "ids", given=Layout((-1,) * 40, 40, ((0, 0),) * 4)).run()


@pytest.mark.parametrize("kind", ["fp8_fine", "fp8_coarse"])
def test_partial_tiles_of_masked_groups(kind: str) -> None:
    """Fewer rows than a tile has, and than the matrix of a group (trap 36); neighbours are untouched (trap 51)."""
    for most in (8, 16, 32, 100):
        given = by_counts((most, 1, most // 2 + 1, 0), most)
        problem(product(kind, "counts"), "counts", given=given).run("starve", seed=most)


@pytest.mark.parametrize("by", WAYS)
def test_numbers_that_make_no_sense_are_limited(by: str) -> None:
    dense = product("fp8_fine", by)
    rows = unit(dense)
    ids = [number for number in (0, -7, 4, 2**31 - 1) for _ in range(rows)] + [3] * 5
    given = {
        "ids": Layout(tuple(ids), len(ids), ((0, rows), (rows, 0), (rows, 0), (4 * rows, 5))),
        "ends": Layout((5, -3, 2, 10**9), 41, ((0, 5), (5, 0), (5, 0), (5, 36))),
        "counts": Layout((-(2**31), 2**31 - 1, 3, -1), 19, ((0, 0), (0, 19), (0, 3), (0, 0)), own=True),
    }[by]
    problem(dense, by, given=given).run("late")


@pytest.mark.parametrize("by", WAYS)
def test_nothing_to_store_and_nothing_to_sum(by: str) -> None:
    """Matrices without rows are left alone, whatever their layout says; rows of no k become 0."""
    dense = product("fp8_fine", by)
    nobody = Layout(() if by == "ids" else (0, 7, 0), 0, ((0, 0),) * 3, own=by == "counts")
    problem(dense, by, given=nobody).run()
    Problem(dense, in_row_groups(dense, by), layout(by, 1, dense), 24, 0).run()


# ---------------------------------------------------------------------------------------------- what may not count


@pytest.mark.parametrize(("kind", "by"), [("fp8_fine", "counts"), ("nvfp4", "ends"), ("bf16", "ends")])
def test_rows_between_groups_do_not_count(kind: str, by: str) -> None:
    """NaN, zeros and garbage around them, and any order of events, leave the same bits."""
    results = [
        problem(product(kind, by), by, poison=poison).run(schedule, sms=sms)
        for poison, schedule, sms in ((0xFF, "early", 2), (0, "late", 3), (0x7B, "random", 4))
    ]
    check_same_bits(results)


# ---------------------------------------------------------------------------------------------- epilogues


CHAINS = {
    "mxfp8_words": lambda: fused.mxfp8_output(True).of(bf16_gemm("nt", PairShape(64, ctas=2))),
    "mxfp8_direct": lambda: fused.mxfp8_output(False).of(bf16_gemm("nt", PairShape(64), direct_store=True)),
    "halves": lambda: gated(scaled(E4M3, 32, E2M1, 128, PairShape(64, ctas=2)), "halves"),
    "c_swapped": lambda: bf16_gemm("nt", LOW, DType.F32, residual=True),
    "chain_swapped": lambda: chained(scaled(E4M3, 32, E4M3, 32, LOW)),
    "direct_swapped": lambda: bf16_gemm("nt", LOW, direct_store=True),
    "sums": lambda: summed(scaled(E4M3, 32, E4M3, 128, ROWS)),
    "sums_pair": lambda: summed(bf16_gemm("nt", PAIR)),
    "sums_halves": lambda: summed(gated(scaled(E4M3, 32, E2M1, 128, PairShape(64, ctas=2)), "halves"), 1),
    "sums_mxfp8": lambda: summed(fused.mxfp8_output(True).of(bf16_gemm("nt", PairShape(64, ctas=2)))),
}


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("mxfp8_words", "counts"),
        ("mxfp8_direct", "ends"),
        ("halves", "counts"),
        ("c_swapped", "ends"),
        ("chain_swapped", "counts"),
        ("direct_swapped", "ends"),
        *(("sums", by) for by in WAYS),
        *(("sums_pair", by) for by in WAYS),
        ("sums_halves", "ends"),
        ("sums_mxfp8", "counts"),
    ],
)
def test_epilogues_know_their_group_and_its_rows(name: str, by: str) -> None:
    """Blocks of quantised columns at the edge, too."""
    dense = CHAINS[name]()
    odd = {"direct_swapped": 41, "mxfp8_direct": 72}
    problem(dense, by, n=odd.get(name, 96)).run("random", seed=2)


@pytest.mark.parametrize("name", ["mxfp8_words", "mxfp8_direct"])
def test_quantised_rows_between_groups_are_zero(name: str) -> None:
    """Their scales, too, byte by byte along n or as words along m."""
    problem(CHAINS[name](), "ends", 4, n=96, zero_padding=True).run("late")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sums_of_rows_under_every_schedule(schedule: str) -> None:
    """Several tiles of columns meet for each row, and the rows between groups are 0 there, too."""
    problem(CHAINS["sums"](), "ends", 8, n=72, zero_padding=True).run(schedule)


# ---------------------------------------------------------------------------------------------- refusals


def test_what_a_box_cannot_start_at_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' is m-contiguous.*multiples of 1 rows.*alignment of 8"):
        lower(in_row_groups(bf16_gemm("tn", PairShape(128)), "ends"))
    lower(in_row_groups(bf16_gemm("tn", PairShape(128)), "ends", 8))


def test_groups_of_4_bit_numbers_start_where_boxes_that_spread_them_may() -> None:
    given = problem(KINDS["fp8_fp4"](ROWS), "ends")
    b = given.operands["b"]
    assert isinstance(b, torch.Tensor)
    pitch = 32 * b.shape[2]
    room = torch.zeros(len(b) * (b.shape[1] * pitch + 16), dtype=b.dtype)
    given.operands["b"] = room.as_strided(b.shape, (b.shape[1] * pitch + 16, pitch, 1))
    with pytest.raises(ValueError, match=r"^b: groups are \d+ bytes apart; TMA needs a multiple of 32 to spread"):
        given.run()


def test_tiles_that_the_hardware_hands_out_are_refused() -> None:
    with pytest.raises(ValueError, match=r"groups and schedule launch_control.*use Persistent"):
        in_row_groups(bf16_gemm("nt", PairShape(128, launch_control=True)), "ids")
