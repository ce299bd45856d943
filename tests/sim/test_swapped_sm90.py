"""Swapped factors on Hopper: dense products bit for bit, groups of few rows with NaN wherever no row is.

Rows of few are the columns of a product here, so what a group's end cuts are columns of fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from planted.kernels import Subject
from test_catalog_runs import one_tile
from test_groups_sm90 import WAYS, biased, chained, layout, problem

from gemmgen.backends import lower
from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt, fused
from gemmgen.catalog.grouped import SWAPPED_SHAPES, in_k_groups
from gemmgen.commands.groups import by_counts
from gemmgen.ir import BlockScale, DType, Gate, KernelSpec, Operand, Reduce
from gemmgen.runtime.simulation import SCHEDULES

F32 = DType.F32
LOW = Shape(16, 64, groups=1, slots=2, swap=True)
COUNTS = (0, 7, 1, 0, 33, 31)
"""More rows than a tile of 16 or 32 has, fewer, and none."""


def swapped(m: int, n: int, slots: int = 2, **others: int | bool | tuple[int, int]) -> Shape:
    return replace(Shape(m, n, slots=slots, swap=True), **others)


def dense_family() -> Iterator[Subject]:
    """Every kind of scales and both types, one to three warpgroups, several blocks of rows and of columns, pairs."""
    yield Subject(fp8_gemm_nt(swapped(16, 128)), 33, 264, 400)
    yield Subject(fp8_gemm_nt(swapped(8, 64, groups=1), F32, True), 13, 136, 272)
    yield Subject(fp8_gemm_nt(swapped(32, 256, stream=True)), 40, 392, 144)
    yield Subject(fp8_gemm_nt(swapped(64, 128, width=32), sfb_columns=1), 70, 136, 272)
    yield Subject(fp8_gemm_nt(swapped(24, 192, groups=3), sfa_major="k"), 25, 200, 272)
    yield Subject(one_tile(fp8_gemm_nt(LOW, F32, True, "k", 1, True)), 17, 33, 272, sms=6)
    yield Subject(fp8_gemm_nt(swapped(16, 128, slots=6, ctas_per_sm=2)), 33, 264, 400, sms=2)
    yield Subject(bf16_gemm("nt", swapped(16, 128)), 33, 136, 104)
    yield Subject(bf16_gemm("nt", swapped(64, 64, groups=1, k_bytes=256), F32, True, True), 65, 33, 168)
    yield Subject(bf16_gemm("nn", swapped(32, 128)), 33, 136, 104)
    yield Subject(fp8_gemm_nt(swapped(32, 64, groups=1, cluster=(1, 2))), 40, 200, 272, sms=2)
    yield Subject(fp8_gemm_nt(swapped(32, 64, groups=1, cluster=(2, 1))), 40, 72, 272, sms=2)
    yield Subject(bf16_gemm("nt", swapped(72, 128, staging=1)), 150, 200, 104)
    yield Subject(bf16_gemm("nt", swapped(80, 256, width=40)), 81, 264, 104)
    yield Subject(bf16_gemm("nt", swapped(72, 128, staging=1, staged_rows=24)), 125, 200, 104)  # 53 rows: 2 and a bit
    yield Subject(bf16_gemm("nt", swapped(80, 192, groups=3, staging=1, staged_rows=40)), 130, 392, 168)
    yield Subject(fp8_gemm_nt(swapped(16, 128, splits=4, ctas_per_sm=2)), 21, 264, 656, sms=6)
    yield Subject(fp8_gemm_nt(swapped(8, 64, groups=1, splits=2)), 13, 136, 400, sms=6)
    yield Subject(fp8_gemm_nt(swapped(24, 192, groups=3, splits=3), F32, True), 50, 200, 400, sms=6)
    yield Subject(fp8_gemm_nt(swapped(32, 64, groups=1, splits=8)), 40, 136, 1168, sms=8)
    yield Subject(fp8_gemm_nt(swapped(16, 64, groups=1, splits=1)), 17, 136, 400, sms=4)
    yield Subject(bf16_gemm("nt", swapped(16, 64, groups=1, splits=8)), 17, 136, 520, sms=8)
    yield Subject(bf16_gemm("nn", swapped(16, 128, splits=2)), 17, 136, 168, sms=4)
    yield Subject(bf16_gemm("nt", swapped(64, 128, splits=2)), 70, 136, 168, sms=4)
    yield Subject(bf16_gemm("nt", swapped(72, 128, unroll=1, share=True)), 70, 264, 712, sms=8)  # 3 tiles, idle warps
    yield Subject(bf16_gemm("nn", swapped(16, 64, groups=1, share=True), F32, True), 40, 136, 520, sms=5)
    yield Subject(
        bf16_gemm("nt", swapped(136, 192, groups=3, share=True), programmatic_launch=True), 140, 200, 328, sms=9
    )
    yield Subject(fp8_gemm_nt(swapped(24, 256, unroll=1, rounds=True, strips=2, share=True)), 30, 264, 1040, sms=6)
    yield Subject(fp8_gemm_nt(swapped(16, 128, share=True), sfb_columns=1), 40, 136, 1040, sms=7)
    yield Subject(fp8_gemm_nt(swapped(96, 128, width=48, staged_rows=16)), 100, 200, 272)
    yield Subject(fp8_gemm_nt(swapped(96, 256, unroll=1, rounds=True, strips=2)), 100, 520, 656)
    yield Subject(fp8_gemm_nt(swapped(64, 192, groups=3, strips=4, unroll=1), sfa_major="k"), 130, 200, 656, sms=2)


DENSE = tuple(dense_family())


@pytest.mark.parametrize("place", range(len(DENSE)), ids=lambda place: DENSE[place].spec.name)
def test_dense_products_are_exact(place: int) -> None:
    subject = DENSE[place]
    subject.must_pass(((SCHEDULES[place % 4], place),))


KINDS = {
    "fp8": fp8_gemm_nt,
    "fp8_rows": lambda shape: fp8_gemm_nt(shape, sfa_major="k"),
    "fp8_1d1d": lambda shape: fp8_gemm_nt(shape, F32, residual=True, sfb_columns=1),
    "bf16_nt": lambda shape: bf16_gemm("nt", shape),
    "bf16_nn": lambda shape: bf16_gemm("nn", shape),
}


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_factors_and_layout(kind: str, by: str) -> None:
    dense, place = KINDS[kind](LOW), list(KINDS).index(kind) + WAYS.index(by)
    problem(dense, by, given=layout(by, 1, dense, COUNTS)).run(SCHEDULES[place % 4], seed=place)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("shape", SWAPPED_SHAPES, ids=lambda shape: shape.label)
def test_every_tile_that_ships(shape: Shape, by: str) -> None:
    dense, place = fp8_gemm_nt(shape), SWAPPED_SHAPES.index(shape) + WAYS.index(by)
    for schedule in SCHEDULES if by == "ends" and shape.m == 16 else SCHEDULES[place % 4 : place % 4 + 1]:
        problem(dense, by, given=layout(by, 1, dense, COUNTS)).run(schedule, seed=place)


@pytest.mark.parametrize(
    ("kind", "shape", "by"),
    [
        ("fp8", swapped(16, 64, groups=1, cluster=(1, 2)), "ids"),
        ("fp8", swapped(16, 64, groups=1, cluster=(2, 1)), "ends"),
        ("fp8", swapped(16, 64, groups=1, stream=True), "counts"),
        ("fp8", swapped(40, 192, groups=3), "ends"),
        ("fp8", swapped(72, 128, unroll=1, rounds=True, strips=2), "ends"),
        ("fp8", swapped(64, 128, staging=1), "counts"),
        ("bf16_nt", swapped(64, 128), "ids"),
    ],
)
def test_every_kind_of_tile(kind: str, shape: Shape, by: str) -> None:
    dense = KINDS[kind](shape)
    problem(dense, by, given=layout(by, 1, dense, COUNTS)).run("random", sms=2)


@pytest.mark.parametrize(("kind", "alignment", "zero_padding"), [("fp8", 4, True), ("bf16_nt", 16, False)])
def test_groups_that_start_at_multiples(kind: str, alignment: int, zero_padding: bool) -> None:
    problem(KINDS[kind](LOW), "ends", alignment, zero_padding=zero_padding).run("starve")


def test_partial_tiles_of_masked_groups() -> None:
    """Fewer rows than a tile has, and than the matrix of a group; the neighbours are not touched."""
    for place, most in enumerate((8, 16, 32, 100)):
        given = by_counts((most, 1, most // 2 + 1, 0), most)
        problem(fp8_gemm_nt(SWAPPED_SHAPES[0]), "counts", given=given, n=136).run(SCHEDULES[place], seed=most)


@pytest.mark.parametrize(("kind", "by"), [("fp8", "counts"), ("fp8_rows", "ids"), ("fp8", "ends")])
def test_rows_between_groups_do_not_count(kind: str, by: str) -> None:
    """NaN, zeros and garbage around them, and any order of events, leave the same bits."""
    dense = KINDS[kind](LOW)
    results = [
        problem(dense, by, given=layout(by, 1, dense, (7, 0, 18)), poison=poison).run(schedule, sms=sms)
        for poison, schedule, sms in ((0xFF, "early", 1), (0, "late", 3), (0x7B, "random", 2))
    ]
    for rows in zip(*results, strict=True):
        for name, first in rows[0].items():
            assert all(torch.equal(each[name].view(torch.uint8), first.view(torch.uint8)) for each in rows)


CHAINS = {
    "chain": lambda: chained(fp8_gemm_nt(LOW)),
    "bias": lambda: biased(fp8_gemm_nt(LOW)),
    "c": lambda: bf16_gemm("nt", LOW, F32, residual=True),
    "direct": lambda: fp8_gemm_nt(LOW, direct_store=True),
}


@pytest.mark.parametrize(
    ("name", "by"), [("chain", "counts"), ("bias", "ends"), ("c", "ids"), ("direct", "ends"), ("chain", "ids")]
)
def test_epilogues_know_their_group_and_its_rows(name: str, by: str) -> None:
    dense = CHAINS[name]()
    n = 71 if name == "direct" else 72
    problem(dense, by, given=layout(by, 1, dense, COUNTS), n=n).run("random", seed=2)


# ---------------------------------------------------------------------------------------------- refusals


def gated(spec: KernelSpec) -> KernelSpec:
    output = spec.output.replace(box=("m", "n/2"))
    operands = tuple(output if each == spec.output else each for each in spec.operands)
    return spec.replace(operands=operands, epilogue=(Gate(), *spec.epilogue))


def summed(spec: KernelSpec) -> KernelSpec:
    total = Operand(name="total", dtype=F32, box=("m",))
    steps = (Reduce(function="sum", along="n", to="total"), *spec.epilogue)
    return spec.replace(operands=(*spec.operands, total), epilogue=steps)


def with_body(spec: KernelSpec, **changes: object) -> KernelSpec:
    math = spec.math.replace(body=spec.math.body.replace(**changes))
    return spec.replace(roles=tuple(math if role == spec.math else role for role in spec.roles))


def coarser(spec: KernelSpec) -> KernelSpec:
    """B's scales, each for 32 columns."""
    operands = [each.replace(box=("n/32", "k/128")) if each.name == "sfb" else each for each in spec.operands]
    return with_body(spec.replace(operands=tuple(operands)), promote=BlockScale(a="sfa", b="sfb"))


FP8 = fp8_gemm_nt(LOW)
REFUSED = {
    "a gate joins columns": lambda: gated(FP8),
    "quantised along n, which swap_ab puts on the rows": lambda: fused.mxfp8_output(False).of(FP8),
    "reductions know products with m there": lambda: summed(FP8),
    "schedule cluster_split_k and 2 x 1 blocks a warpgroup": lambda: bf16_gemm("nt", swapped(16, 256, splits=2)),
    "swap_ab and schedule cut_remainder": lambda: bf16_gemm("nt", swapped(16, 192, groups=3, cut=3)),
    "swap_ab and overlap_epilogue": lambda: with_body(FP8, overlap_epilogue=True),
    "swap_ab and share_k": lambda: with_body(FP8, share_k=True),
    "operand 'a' is m-contiguous": lambda: bf16_gemm("tt", LOW),
    "swap_ab and groups of k": lambda: in_k_groups(bf16_gemm("nt", LOW), "counts"),
    "tile.n is 96: 1 warpgroups of 64-row instructions need": lambda: bf16_gemm("nt", swapped(16, 96, groups=1)),
    "tile.m is 24, not a multiple of the instruction's width 16": lambda: bf16_gemm("nt", swapped(24, 128, width=16)),
    "64 rows share a scale or each has one, but 32 of this tile": lambda: coarser(FP8),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_has_no_form_is_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        lower(REFUSED[sentence]())
