"""Groups of rows on workstation Blackwell: every kind of factors and of layout, with NaN wherever no row is.

``grouped`` judges each group against float64 and every other byte of the outputs against what stood there.
"""

from __future__ import annotations

import pytest
from grouped import Layout, Problem, by_counts, chained, check_same_bits, gated, layout_by, summed

from gemmgen.backends import lower
from gemmgen.catalog import finished_output, fused
from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, scaled_gemm_nt
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.catalog.shipped_sm100 import NVFP4
from gemmgen.catalog.shipped_sm120 import scaled_gemm_sm120
from gemmgen.commands.inputs import k_step
from gemmgen.ir import DType, KernelSpec, Operand, Quantise
from gemmgen.runtime.simulation import SCHEDULES

E4M3, E5M2, E2M1 = DType.E4M3, DType.E5M2, DType.E2M1
TINY = WarpShape(16, 16, warps=(1, 1), slots=2)
TINY_64 = WarpShape(32, 16, warps=(2, 1), slots=3, k_bytes=64)
FLAT = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True)
FLAT_64 = WarpShape(32, 16, warps=(1, 1), slots=3, k_bytes=64, swap=True)
WIDE = WarpShape(16, 64, warps=(1, 1), slots=2)


def scaled(a: DType, i: int, b: DType, j: int, shape: WarpShape, direct: bool = False) -> KernelSpec:
    return scaled_gemm_nt(Factor(a, i), Factor(b, j), shape, direct_store=direct)


KINDS = {
    "bf16_nt": lambda shape: bf16_gemm("nt", shape),
    "bf16_nn": lambda shape: bf16_gemm("nn", shape),
    "fp8_coarse": lambda shape: scaled(E4M3, 128, E5M2, 32, shape),
    "fp8_fine": lambda shape: scaled(E4M3, 32, E4M3, 128, shape),
    "mxfp4": lambda shape: scaled(E2M1, 32, E2M1, 128, shape),
    "nvfp4": lambda shape: scaled_gemm_sm120(NVFP4, shape),
    "fp8_fp4": lambda shape: scaled(E4M3, 128, E2M1, 32, shape),
    "fp4_fp8": lambda shape: scaled(E2M1, 32, E4M3, 32, shape),
}
WAYS = ("ids", "ends", "counts")
COUNTS = (5, 0, 18, 1)


def layout(by: str, alignment: int, tile: int, counts: tuple[int, ...] = COUNTS) -> Layout:
    return layout_by(by, counts, tile, alignment)


def problem(
    dense: KernelSpec,
    by: str,
    alignment: int = 1,
    given: Layout | None = None,
    n: int | None = None,
    poison: int = 0xFF,
    zero_padding: bool = False,
) -> Problem:
    """k is a block and a ragged piece, and n two tiles or so."""
    step = k_step(dense)
    k = -(-(dense.tile.k + 40) // step) * step
    given, n = given or layout(by, alignment, dense.tile.m), n or dense.tile.n + 8
    return Problem(dense, in_row_groups(dense, by, alignment, zero_padding), given, n, k, poison=poison)


def shape_of(kind: str, by: str) -> WarpShape:
    """Either way round, by one tile or the other."""
    place = list(KINDS).index(kind) + WAYS.index(by)
    return (TINY, FLAT)[place % 2] if "fp4" in kind else (TINY, FLAT, TINY_64, FLAT_64)[place % 4]


def product(kind: str, by: str) -> KernelSpec:
    return KINDS[kind](shape_of(kind, by))


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_factors_and_layout(kind: str, by: str) -> None:
    place = list(KINDS).index(kind) + WAYS.index(by)
    problem(product(kind, by), by).run(SCHEDULES[place % 4], seed=place)


@pytest.mark.parametrize(
    ("kind", "shape", "alignment", "zero_padding"),
    [("fp8_fine", FLAT, 4, False), ("bf16_nn", TINY, 8, True), ("mxfp4", FLAT, 128, True)],
)
def test_groups_that_start_at_multiples(kind: str, shape: WarpShape, alignment: int, zero_padding: bool) -> None:
    problem(KINDS[kind](shape), "ends", alignment, zero_padding=zero_padding).run("random")


# ---------------------------------------------------------------------------------------------- layouts


EMPTIES = ((0, 1, 1, 0, 20, 0), (0, 40, 0), (0, 0, 0))


@pytest.mark.parametrize("by", WAYS)
def test_empty_groups_anywhere(by: str) -> None:
    """First, in the middle, last, all of them but a huge one, all; groups of one row."""
    dense = product("fp8_fine", by)
    for number, counts in enumerate(EMPTIES):
        problem(dense, by, given=layout(by, 1, dense.tile.m, counts)).run(SCHEDULES[number % 4])


def test_tiles_of_no_group_at_all() -> None:
    problem(product("fp8_fine", "ids"), "ids", given=Layout((-1,) * 40, 40, ((0, 0),) * 4)).run()


@pytest.mark.parametrize("shape", [TINY, FLAT], ids=["rows", "swapped"])
def test_partial_tiles_of_masked_groups(shape: WarpShape) -> None:
    """Fewer rows than a tile has, and than the matrix of a group; the neighbours are not touched."""
    for most in (8, 16, 32, 100):
        given = by_counts((min(most, 20), 1, 0, 7), most)
        problem(KINDS["fp8_fine"](shape), "counts", given=given).run("starve", seed=most)


@pytest.mark.parametrize("by", WAYS)
def test_nothing_to_store_and_nothing_to_sum(by: str) -> None:
    """Matrices without rows are left alone, whatever their layout says; rows of no k become 0."""
    dense = product("bf16_nt", by)
    nobody = Layout(() if by == "ids" else (0, 7, 0), 0, ((0, 0),) * 3, own=by == "counts")
    problem(dense, by, given=nobody).run()
    Problem(dense, in_row_groups(dense, by), layout(by, 1, dense.tile.m), 24, 0).run()


@pytest.mark.parametrize("by", WAYS)
def test_numbers_that_make_no_sense_are_limited(by: str) -> None:
    ids = [number for number in (0, -7, 4, 2**31 - 1) for _ in range(32)] + [3] * 5
    given = {
        "ids": Layout(tuple(ids), len(ids), ((0, 32), (32, 0), (32, 0), (128, 5))),
        "ends": Layout((5, -3, 2, 10**9), 41, ((0, 5), (5, 0), (5, 0), (5, 36))),
        "counts": Layout((-(2**31), 2**31 - 1, 3, -1), 19, ((0, 0), (0, 19), (0, 3), (0, 0)), own=True),
    }[by]
    problem(product("fp8_fine", by), by, given=given).run("late")


# ---------------------------------------------------------------------------------------------- what may not count


@pytest.mark.parametrize(
    ("kind", "by"), [("fp8_fine", "counts"), ("nvfp4", "ids"), ("bf16_nt", "ends"), ("mxfp4", "counts")]
)
def test_rows_between_groups_do_not_count(kind: str, by: str) -> None:
    """NaN, zeros and garbage around them, and any order of events, leave the same bits."""
    results = [
        problem(product(kind, by), by, poison=poison).run(schedule, sms=sms)
        for poison, schedule, sms in ((0xFF, "early", 1), (0, "late", 3), (0x7B, "starve", 2))
    ]
    check_same_bits(results)


# ---------------------------------------------------------------------------------------------- epilogues


CHAINS = {
    "mxfp8_words": lambda: fused.mxfp8_output(True).of(scaled(E4M3, 128, E4M3, 128, WIDE)),
    "mxfp8_direct": lambda: fused.mxfp8_output(False).of(bf16_gemm("nt", WIDE, direct_store=True)),
    "fp8": lambda: fused.fp8_output("m").of(bf16_gemm("nt", WarpShape(16, 128, warps=(1, 1), slots=2))),
    "gate": lambda: gated(scaled(E4M3, 128, E4M3, 128, WIDE), "interleaved"),
    "halves": lambda: gated(scaled(E4M3, 32, E2M1, 128, WIDE), "halves"),
    "c": lambda: bf16_gemm("nt", TINY, DType.F32, residual=True),
    "c_swapped": lambda: bf16_gemm("nt", FLAT, DType.F32, residual=True),
    "chain": lambda: chained(scaled(E4M3, 32, E4M3, 32, WarpShape(32, 32, warps=(2, 1), slots=2))),
    "chain_swapped": lambda: chained(scaled(E4M3, 32, E4M3, 32, FLAT)),
    "direct": lambda: scaled(E2M1, 128, E2M1, 32, TINY, direct=True),
    "sums": lambda: summed(scaled(E4M3, 32, E4M3, 32, WarpShape(32, 32, warps=(2, 1), slots=2))),
    "sums_across": lambda: summed(bf16_gemm("nt", WarpShape(32, 32, warps=(2, 2), slots=2))),
    "sums_gate": lambda: summed(gated(scaled(E4M3, 128, E4M3, 128, WIDE), "interleaved"), 1),
    "sums_mxfp8": lambda: summed(fused.mxfp8_output(True).of(scaled(E4M3, 128, E4M3, 128, WIDE))),
}


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("mxfp8_words", "counts"),
        ("mxfp8_direct", "ends"),
        ("fp8", "counts"),
        ("gate", "ends"),
        ("halves", "counts"),
        ("c", "counts"),
        ("c_swapped", "ends"),
        ("chain", "ends"),
        ("chain_swapped", "counts"),
        ("direct", "counts"),
        *(("sums", by) for by in WAYS),
        *(("sums_across", by) for by in WAYS),
        ("sums_gate", "ends"),
        ("sums_mxfp8", "counts"),
    ],
)
def test_epilogues_know_their_group_and_its_rows(name: str, by: str) -> None:
    """Blocks of quantised columns at the edge, too."""
    dense = CHAINS[name]()
    odd = {"direct": 21, "c_swapped": 41}.get(name)
    n = 160 if dense.tile.n == 128 else 96 if dense.tile.n == 64 else odd
    problem(dense, by, n=n).run("random", seed=2)


def mxfp4(dense: KernelSpec) -> KernelSpec:
    """Two columns a byte, with a power of two for 32."""
    d, sf = Operand(name="d", dtype=E2M1, box=("m", "n")), Operand(name="sf", dtype=DType.UE8M0, box=("m", "n/32"))
    operands = (*(each for each in dense.operands if each.name != "d"), d, sf)
    return dense.replace(operands=operands, epilogue=(Quantise(to="d", scales="sf", through="cd"),))


NARROW = {
    "rounded": lambda: finished_output(E4M3, False, None, None).of(bf16_gemm("nt", TINY)),
    "mxfp4": lambda: mxfp4(bf16_gemm("nt", WarpShape(16, 32, warps=(1, 1), slots=2))),
}


@pytest.mark.parametrize(("kind", "by"), [("rounded", "ends"), ("mxfp4", "counts")])
def test_staged_rows_of_16_bytes_that_a_group_cuts(kind: str, by: str) -> None:
    """A box of them has fewer pieces than a warp has lanes."""
    dense = NARROW[kind]()
    assert lower(dense).store.row_bytes == 16
    problem(dense, by, n=2 * dense.tile.n).run("random")


@pytest.mark.parametrize("name", ["mxfp8_words", "mxfp8_direct", "fp8"])
def test_quantised_rows_between_groups_are_zero(name: str) -> None:
    """Their scales, too, byte by byte along n or as words along m."""
    problem(CHAINS[name](), "ends", 4, n=160 if name == "fp8" else 96, zero_padding=True).run("late")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sums_of_rows_under_every_schedule(schedule: str) -> None:
    """Several tiles of columns meet for each row, and the rows between groups are 0 there, too."""
    problem(CHAINS["sums"](), "ends", 8, n=72, zero_padding=True).run(schedule)


# ---------------------------------------------------------------------------------------------- refusals


def test_what_a_box_cannot_start_at_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' is m-contiguous.*multiples of 1 rows.*alignment of 8"):
        lower(in_row_groups(bf16_gemm("tn", TINY), "ends"))
    tall = scaled(E4M3, 128, E4M3, 128, WarpShape(256, 64, k_bytes=64))
    with pytest.raises(ValueError, match=r"'sfa': a tile of 256 rows.* 260 words.* at most 256"):
        lower(in_row_groups(tall, "ends"))
    lower(in_row_groups(bf16_gemm("tn", TINY), "ends", 8))
    lower(in_row_groups(tall, "ends", 4))


def test_shares_of_k_are_refused() -> None:
    with pytest.raises(ValueError, match=r"groups and schedule split_k.*use Persistent"):
        in_row_groups(bf16_gemm("nt", WarpShape(16, 16, warps=(1, 1), splits=2)), "ids")
