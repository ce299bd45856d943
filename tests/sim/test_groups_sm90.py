"""Groups of rows on Hopper: every kind of factors and of layout, with NaN wherever no row is.

``grouped`` judges each group against float64 and every other byte of the outputs against what stood there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from grouped import Layout, Problem, by_counts, chained, check_same_bits, layout_by, summed

from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.catalog import Shape, bf16_gemm, finished_output, fp8_gemm_nt, fused
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.commands.inputs import k_step
from gemmgen.ir import Bias, DType, Gate, KernelSpec, Operand, Quantise
from gemmgen.runtime.simulation import SCHEDULES

LOW = Shape(64, 32, groups=1)
TALL = Shape(256, 16, unroll=1)
"""More rows than a box has scales, where it starts inside 16 bytes."""
BESIDE = Shape(128, 32, unroll=1, overlap=True)
"""Epilogues beside the next tile's products, which may be another group's."""
BOTH_BESIDE = Shape(256, 32, unroll=1, overlap=True)
"""Two products a warpgroup, staged one by one."""
SHARED_A, SHARED_B = Shape(64, 32, groups=1, cluster=(1, 2)), Shape(64, 32, groups=1, cluster=(2, 1))
PARTS = Shape(64, 32, groups=1, part_rows=16)
"""Of a group's last tile only boxes that have rows are fetched, where its end is known to one thread."""
PAIRED = Shape(64, 64, groups=1, ctas_per_sm=2)
WIDE = Shape(64, 256, groups=1, width=128, unroll=1)

KINDS = {
    "fp8": fp8_gemm_nt,
    "fp8_rows": lambda shape: fp8_gemm_nt(shape, sfa_major="k"),
    "fp8_1d1d": lambda shape: fp8_gemm_nt(shape, DType.F32, residual=True, sfb_columns=1),
    "bf16_nt": lambda shape: bf16_gemm("nt", shape),
    "bf16_nn": lambda shape: bf16_gemm("nn", shape),
}
WAYS = ("ids", "ends", "counts")
COUNTS = (0, 37, 1, 0, 130)
"""Groups without rows first and between others, and some that begin inside 16 bytes of scales."""


def layout(by: str, alignment: int, dense: KernelSpec, counts: tuple[int, ...] = COUNTS) -> Layout:
    return layout_by(by, counts, dense.tile.m, alignment)


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
    given, n = given or layout(by, alignment, dense), n or dense.tile.n + 8
    return Problem(dense, in_row_groups(dense, by, alignment, zero_padding), given, n, k, poison=poison)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_factors_and_layout(kind: str, by: str) -> None:
    place = list(KINDS).index(kind) + WAYS.index(by)
    problem(KINDS[kind](LOW), by).run(SCHEDULES[place % 4], seed=place)


@pytest.mark.parametrize(
    ("kind", "shape", "by"),
    [
        ("fp8", TALL, "ends"),
        ("fp8", TALL, "counts"),
        ("fp8", BESIDE, "ids"),
        ("fp8", BESIDE, "ends"),
        ("bf16_nt", SHARED_A, "ids"),
        ("fp8", SHARED_B, "ends"),
        ("bf16_nn", SHARED_B, "counts"),
        ("fp8", PAIRED, "counts"),
        ("fp8", PARTS, "ids"),
        ("fp8", PARTS, "ends"),
        ("bf16_nt", PARTS, "counts"),
    ],
)
def test_every_kind_of_tile(kind: str, shape: Shape, by: str) -> None:
    """Of an odd number of tiles a cluster's last CTA has none."""
    for place, schedule in enumerate(SCHEDULES if shape in (SHARED_A, SHARED_B, BESIDE) else ("random",)):
        problem(KINDS[kind](shape), by).run(schedule, seed=place, sms=2)


@pytest.mark.parametrize("n", [8, 72])
@pytest.mark.parametrize(("kind", "by"), [("bf16_nt", "ids"), ("fp8", "ends"), ("fp8", "counts")])
def test_an_odd_number_of_columns_of_tiles_that_share_rows(kind: str, by: str, n: int) -> None:
    """T13: of one or three, the last one's neighbour has none, in every group."""
    problem(KINDS[kind](SHARED_A), by, n=n).run("random", sms=4)


@pytest.mark.parametrize(
    ("kind", "shape", "by"),
    [
        ("fp8", LOW, "ids"),
        ("fp8_1d1d", LOW, "ends"),
        ("bf16_nn", LOW, "counts"),
        ("fp8", BESIDE, "ends"),
        ("fp8", BOTH_BESIDE, "ends"),
        ("fp8_rows", BESIDE, "counts"),
        ("bf16_nt", BESIDE, "ids"),
        ("bf16_nt", SHARED_A, "ends"),
        ("fp8", SHARED_B, "counts"),
        ("fp8", PAIRED, "ids"),
    ],
)
def test_one_block_of_k_and_more_tiles_than_ctas(kind: str, shape: Shape, by: str) -> None:
    """P09: every tile gives back its slot, which others need; beside epilogues are the next tile's only products."""
    dense = KINDS[kind](replace(shape, slots=3))
    given = layout(by, 1, dense)
    Problem(dense, in_row_groups(dense, by), given, 3 * dense.tile.n, dense.tile.k, poison=0xFF).run("random", sms=2)


@pytest.mark.parametrize(("kind", "alignment", "zero_padding"), [("fp8", 4, False), ("bf16_nt", 64, True)])
def test_groups_that_start_at_multiples(kind: str, alignment: int, zero_padding: bool) -> None:
    problem(KINDS[kind](LOW), "ends", alignment, zero_padding=zero_padding).run("random")


NARROW = {
    "bf16": lambda: bf16_gemm("nt", Shape(64, 40, groups=1)),
    "fp8": lambda: fp8_gemm_nt(Shape(64, 40, groups=1)),
    "rounded": lambda: finished_output(DType.E4M3, False, None, None).of(bf16_gemm("nt", Shape(64, 48, groups=1))),
}


@pytest.mark.parametrize(("kind", "by"), [("bf16", "ids"), ("bf16", "ends"), ("fp8", "counts"), ("rounded", "ends")])
def test_staged_rows_of_16_bytes_that_a_group_cuts(kind: str, by: str) -> None:
    """A box of them has fewer pieces than a warp has lanes."""
    dense = NARROW[kind]()
    assert lower(dense).store.row_bytes == 16
    problem(dense, by, n=2 * dense.tile.n).run("random")


EMPTIES = ((0, 0, 5, 20), (9, 0, 0, 18), (17, 2, 0, 0), (0, 150, 0), (0, 0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize("by", WAYS)
def test_empty_groups_anywhere(by: str) -> None:
    """First, in the middle, last, all of them but a huge one, all; groups of one row."""
    dense = fp8_gemm_nt(LOW)
    for number, counts in enumerate(EMPTIES):
        problem(dense, by, given=layout(by, 1, dense, counts)).run(SCHEDULES[number % 4])


def test_tiles_of_no_group_at_all() -> None:
    problem(fp8_gemm_nt(LOW), "ids", given=Layout((-1,) * 300, 300, ((0, 0),) * 4)).run()


def test_partial_tiles_of_masked_groups() -> None:
    """Fewer rows than a tile has, and than the matrix of a group; the neighbours are not touched."""
    for most in (8, 16, 32, 100):
        given = by_counts((most, 1, most // 2 + 1, 0), most)
        problem(fp8_gemm_nt(LOW), "counts", given=given).run("starve", seed=most)


@pytest.mark.parametrize("by", WAYS)
def test_numbers_that_make_no_sense_are_limited(by: str) -> None:
    ids = [number for number in (0, -7, 4, 2**31 - 1) for _ in range(64)] + [3] * 5
    given = {
        "ids": Layout(tuple(ids), len(ids), ((0, 64), (64, 0), (64, 0), (256, 5))),
        "ends": Layout((5, -3, 2, 10**9), 41, ((0, 5), (5, 0), (5, 0), (5, 36))),
        "counts": Layout((-(2**31), 2**31 - 1, 3, -1), 19, ((0, 0), (0, 19), (0, 3), (0, 0)), own=True),
    }[by]
    problem(fp8_gemm_nt(LOW), by, given=given).run("late")


@pytest.mark.parametrize(("kind", "by"), [("fp8", "counts"), ("fp8_rows", "ids"), ("bf16_nt", "ends")])
def test_rows_between_groups_do_not_count(kind: str, by: str) -> None:
    """NaN, zeros and garbage around them, and any order of events, leave the same bits."""
    results = [
        problem(KINDS[kind](LOW), by, poison=poison).run(schedule, sms=sms)
        for poison, schedule, sms in ((0xFF, "early", 1), (0, "late", 3), (0x7B, "random", 2), (0xFF, "starve", 4))
    ]
    check_same_bits(results)


@pytest.mark.parametrize("by", WAYS)
def test_a_scale_for_each_column_of_large_tiles(by: str) -> None:
    for shape in catalog.grouped_shapes(DType.E4M3, by, 1)[-2:]:
        dense = fp8_gemm_nt(shape, DType.F32, residual=True, sfb_columns=1)
        problem(dense, by, n=shape.n + 8).run("random")


# ---------------------------------------------------------------------------------------------- epilogues


def swiglu(spec: KernelSpec, layout: str, *outputs: Operand) -> KernelSpec:
    """Half as many columns, quantised: ``h`` and its scales."""
    rings = tuple(ring.replace(holds=("h",)) if ring.turns == "store" else ring for ring in spec.rings)
    operands = (*(each for each in spec.operands if each.name != "d"), *outputs)
    steps = (Gate(layout=layout), Quantise(to="h", scales="h_sf", through="cd"))
    return spec.replace(name="sm90_swiglu", operands=operands, rings=rings, epilogue=steps)


H = Operand(name="h", dtype=DType.E4M3, box=("m", "n/2"))
BLOCKS = Operand(name="h_sf", dtype=DType.F32, box=("m", "n/256"), major="m")
BYTES = Operand(name="h_sf", dtype=DType.UE8M0, box=("m", "n/64"))


def biased(spec: KernelSpec, dtype: DType = DType.F32) -> KernelSpec:
    """Sums that start from the group's own bias."""
    bias = Operand(name="bias", dtype=dtype, box=("n",))
    return spec.replace(
        name="sm90_biased", operands=(*spec.operands, bias), epilogue=(Bias(vector="bias"), *spec.epilogue)
    )


CHAINS = {
    "mxfp8": lambda: fused.mxfp8_output(False).of(fp8_gemm_nt(Shape(64, 64, groups=1))),
    "fp8": lambda: fused.fp8_output("m").of(bf16_gemm("nt", Shape(64, 128, groups=1))),
    "swiglu_fp8": lambda: swiglu(fp8_gemm_nt(WIDE), "interleaved", H, BLOCKS),
    "halves_fp8": lambda: swiglu(fp8_gemm_nt(WIDE), "halves", H, BLOCKS),
    "halves_mxfp8": lambda: swiglu(bf16_gemm("nt", Shape(64, 64, groups=1)), "halves", H, BYTES),
    "chain": lambda: chained(fp8_gemm_nt(LOW)),
    "bias": lambda: biased(fp8_gemm_nt(LOW)),
    "bias_bf16": lambda: biased(fp8_gemm_nt(LOW), DType.BF16),
    "bias_beside": lambda: biased(fp8_gemm_nt(BESIDE)),
    "bias_idle": lambda: biased(fp8_gemm_nt(replace(BESIDE, cluster=(2, 1)))),
    "c": lambda: bf16_gemm("nt", LOW, DType.F32, residual=True),
    "direct": lambda: fp8_gemm_nt(LOW, direct_store=True),
    "sums": lambda: summed(fp8_gemm_nt(LOW)),
    "sums_tall": lambda: summed(fp8_gemm_nt(TALL)),
    "sums_beside": lambda: summed(fp8_gemm_nt(BESIDE)),
    "sums_shared_a": lambda: summed(bf16_gemm("nt", SHARED_A)),
    "sums_shared_b": lambda: summed(fp8_gemm_nt(replace(SHARED_B, m=128, groups=2))),
    "sums_direct": lambda: summed(fp8_gemm_nt(LOW, direct_store=True)),
    "sums_gate": lambda: summed(swiglu(fp8_gemm_nt(WIDE), "halves", H, BLOCKS), 1),
    "sums_mxfp8": lambda: summed(fused.mxfp8_output(False).of(fp8_gemm_nt(Shape(64, 64, groups=1)))),
}
RAGGED = {64: 96, 128: 160, 256: 288}
"""Columns of a problem, by those of a tile that quantises: 32 more."""


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("mxfp8", "counts"),
        ("fp8", "ends"),
        ("swiglu_fp8", "ids"),
        ("halves_fp8", "counts"),
        ("halves_mxfp8", "ends"),
        ("chain", "counts"),
        ("bias", "ends"),
        ("bias_beside", "counts"),
        *(("bias_idle", by) for by in WAYS[1:]),
        ("c", "ends"),
        *(("sums", by) for by in WAYS),
        *(("sums_tall", by) for by in WAYS),
        ("sums_beside", "counts"),
        *(("sums_shared_a", by) for by in WAYS),
        *(("sums_shared_b", by) for by in WAYS[1:]),
        ("sums_direct", "ends"),
        *(("sums_gate", by) for by in WAYS),
        ("sums_mxfp8", "ends"),
        ("direct", "counts"),
    ],
)
def test_epilogues_know_their_group_and_its_rows(name: str, by: str) -> None:
    """Blocks of quantised columns at the edge, too."""
    dense = CHAINS[name]()
    problem(dense, by, n=RAGGED.get(dense.tile.n)).run("random", seed=2)


@pytest.mark.parametrize("name", ["mxfp8", "fp8", "swiglu_fp8", "halves_mxfp8"])
def test_quantised_rows_between_groups_are_zero(name: str) -> None:
    """Their scales, too, along n or m."""
    dense = CHAINS[name]()
    problem(dense, "ends", 8, n=RAGGED[dense.tile.n], zero_padding=True).run("late")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sums_of_rows_under_every_schedule(schedule: str) -> None:
    """Several tiles of columns meet for each row, and the rows between groups are 0 there, too."""
    problem(CHAINS["sums"](), "ends", 8, n=136, zero_padding=True).run(schedule)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("shape", "by", "sentence"),
    [
        (SHARED_B, "ids", "groups by ids and a cluster along m"),
        (Shape(64, 32, groups=1, ctas_per_sm=2, splits=2, unroll=1), "counts", "schedule cluster_split_k"),
        (Shape(128, 96, unroll=1, cut=3), "ends", "schedule cut_remainder"),
    ],
)
def test_schedules_that_know_no_groups_are_refused(shape: Shape, by: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lower(in_row_groups(bf16_gemm("nt", shape), by))
