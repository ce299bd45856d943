"""Groups of rows that a launch finds by their ids on Hopper, for tiles that do not divide what groups start at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from grouped import Layout, by_ids, summed
from test_groups_sm90 import KINDS, LOW, biased, problem

import gemmgen
from gemmgen import catalog
from gemmgen.backends import lower
from gemmgen.backends.table import table as plan_table
from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt, fused
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.runtime.arguments import grid_size
from gemmgen.runtime.simulation import SCHEDULES

FINE = Shape(192, 32, groups=3, unroll=1)
"""Rows that do not divide what groups are padded to, and that are fewer than twice that."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tiles_begin_where_ids_say_that_groups_do(schedule: str) -> None:
    """Runs of one part to five, and of none; rows of padding; tiles of no group behind them."""
    dense = fp8_gemm_nt(FINE)
    for number, counts in enumerate(((0, 300, 37, 0, 129, 640), (128, 256, 384, 1), (1, 1, 1, 1, 513))):
        problem(dense, "ids", 128, by_ids(counts, 128, tail=1)).run(schedule, seed=number)


@pytest.mark.parametrize("name", ["bias", "mxfp8", "direct"])
def test_epilogues_behind_groups_that_are_found(name: str) -> None:
    made = {"bias": biased(fp8_gemm_nt(FINE)), "direct": fp8_gemm_nt(FINE, direct_store=True)}
    made["mxfp8"] = fused.mxfp8_output(False).of(bf16_gemm("nt", replace(FINE, n=64)))
    problem(made[name], "ids", 128, by_ids((200, 0, 65), 128), n=96).run("random")


def parted(ids: tuple[int, ...], alignment: int = 128, short: int = 0) -> Layout:
    """Every part of ``alignment`` rows of the group of its id, but for the last rows of the last; spans by position."""
    given = [group for group in ids for _ in range(alignment)]
    given = given[: len(given) - short]
    groups = max(ids) + 1
    spans = [(given.index(group), given.count(group)) if group in ids else (0, 0) for group in range(groups)]
    return Layout(tuple(given), len(given), tuple(spans))


@pytest.mark.parametrize(
    "ids", [(2, 2, 2, 0, -1, -1, 1, 1), (-1, 1, 1, 1, 1, 0), (-1, -1), (3, 2, 1, 0), (0,) * 7, (0, -1, 1, -1, 2, 2, -1)]
)
def test_groups_in_any_order_with_parts_of_none_between(ids: tuple[int, ...]) -> None:
    problem(fp8_gemm_nt(FINE), "ids", 128, parted(ids, short=29)).run("random", seed=len(ids))


def test_a_group_may_lie_in_several_pieces() -> None:
    """A tile is of one of them, and of the rows in it: as with tiles of 128 rows, which are of one part each."""
    ids = torch.tensor([group for group in (0, 0, 0, -1, 0, 1, 0, 0, 0) for _ in range(128)], dtype=torch.int32)
    ids[300:384] = ids[1000:1024] = -1
    operands = problem(fp8_gemm_nt(FINE), "ids", 128, parted((0,) * 8 + (1,)), n=40).operands
    found = []
    for shape, alignment in ((FINE, 128), (Shape(128, 32, unroll=1), 1)):
        d = operands["d"]
        assert isinstance(d, torch.Tensor)
        spec = in_row_groups(fp8_gemm_nt(shape), "ids", alignment)
        with gemmgen.simulate("sm90", sms=3):
            gemmgen.op(spec)(**{**operands, "layout": ids, "d": d.fill_(7)})
        found.append(d.clone())
    assert torch.equal(*found)
    assert (found[0][ids < 0] == 7).all() and not (found[0][ids >= 0] == 7).all(dim=1).any()


LAST = {
    "parts of nobody behind one that is not full": (FINE, 128, (0,) * 127 + (-1,) * 384),
    "a tile that ends with the last part, which is not full": (Shape(128, 32, unroll=1), 256, (0,) * 215 + (-1,) * 41),
}


@pytest.mark.parametrize("what", LAST)
def test_rows_behind_the_last_part(what: str) -> None:
    shape, alignment, ids = LAST[what]
    given = Layout(ids, len(ids), ((0, ids.count(0)),))
    problem(fp8_gemm_nt(shape), "ids", alignment, given, n=40).run("random")


@pytest.mark.parametrize("shape", [Shape(64, 32, groups=1), Shape(32, 64, groups=1, swap=True, stream=True)])
def test_a_last_tile_that_reaches_behind_the_matrix(shape: Shape) -> None:
    """Stores that no copy engine clips: rows are the group's to the last one there is."""
    rows = 97
    dense = bf16_gemm("nt", shape, direct_store=not shape.swap)
    problem(dense, "ids", 16 if shape.m > 16 else 48, Layout((0,) * rows, rows, ((0, rows),)), n=71).run("late")


def test_ids_of_no_group_find_no_tiles() -> None:
    ids = (0, 0, 7, 2**31 - 1, -9, 1, 1, 1, -(2**31), 2, 2)
    given = [group for group in ids for _ in range(128)][:-5]
    spans = tuple((given.index(group), given.count(group)) for group in range(3))
    problem(fp8_gemm_nt(FINE), "ids", 128, Layout(tuple(given), len(given), spans)).run("starve")


@pytest.mark.parametrize(
    ("kind", "shape", "alignment"),
    [
        ("bf16_nt", replace(FINE, cluster=(1, 2)), 128),
        ("fp8", Shape(144, 64, groups=1, unroll=1, swap=True), 128),
        ("bf16_tn", Shape(64, 32, groups=1), 48),
        ("bf16_nt", Shape(256, 32), 64),
        ("fp8", Shape(64, 32, groups=1), 128),
        ("fp8_rows", Shape(64, 32, groups=1), 48),
    ],
)
def test_tiles_of_every_kind_are_found(kind: str, shape: Shape, alignment: int) -> None:
    """CTAs that share A, rows that are no whole warps, A along m, and another alignment."""
    dense = bf16_gemm("tn", shape) if kind == "bf16_tn" else KINDS[kind](shape)
    for number, sms in enumerate((2, 3, 8)):
        given = by_ids((10, 2 * alignment + 7, 1, 0, 3 * alignment), alignment, tail=1)
        problem(dense, "ids", alignment, given).run(SCHEDULES[number], seed=number, sms=sms)


def test_rows_of_parts_that_others_follow_are_not_counted() -> None:
    """An id that breaks the rule there is not seen; the last part has the rows that come first."""
    ids = torch.zeros(640, dtype=torch.int32)
    ids[[70, 300]] = ids[600:] = -1
    operands = problem(fp8_gemm_nt(FINE), "ids", 128, parted((0,) * 5), n=40).operands
    d = operands["d"]
    assert isinstance(d, torch.Tensor)
    with gemmgen.simulate("sm90", sms=3):
        gemmgen.op(in_row_groups(fp8_gemm_nt(FINE), "ids", 128))(**{**operands, "layout": ids, "d": d.fill_(7)})
    written = ~(d == 7).all(dim=1)
    assert written[:600].all() and not written[600:].any()


@pytest.mark.parametrize(
    ("shape", "alignment", "counts"),
    [
        (Shape(64, 32, groups=1), 48, range(1, 49)),
        (Shape(64, 32, groups=1), 128, (*range(1, 128, 6), 7, 8, 9, 15, 16, 17, 127, 128)),
        (FINE, 100, (1, 6, 7, 8, 49, 97, 98, 99, 100, 101)),
        (Shape(64, 32, groups=1), 272, (1, 16, 17, 18, 255, 256, 271, 272, 543)),
        (Shape(64, 32, groups=1), 4080, (4079, 1, 257)),
    ],
)
def test_every_number_of_rows_is_counted(shape: Shape, alignment: int, counts: tuple[int, ...]) -> None:
    problem(bf16_gemm("nt", shape), "ids", alignment, by_ids(counts, alignment), n=8).run("random", sms=4)


def test_more_parts_than_lanes_look_at_at_once() -> None:
    """Runs of more than 32 parts, which no window of them begins with, and more parts than threads."""
    ids = (-1,) * 250 + (1,) * 69 + (-1,) * 20 + (0,) * 2 + (-1,) * 200 + (2,) * 3
    problem(fp8_gemm_nt(FINE), "ids", 128, parted(ids), n=32).run("late", sms=4)


def test_the_most_parts_there_may_be() -> None:
    """A run in every one of 1024 parts of 8 rows, and one row more."""
    small = Shape(64, 32, groups=1, unroll=1)
    counts = [1 + (7 * number) % 8 for number in range(1024)]
    groups = by_ids(counts, 8)
    problem(bf16_gemm("nt", small), "ids", 8, groups, n=8).run("random", sms=5)
    plan = lower(in_row_groups(bf16_gemm("nt", small), "ids", 8))
    with pytest.raises(ValueError, match="m=8193: groups by ids start at multiples of 8 rows"):
        grid_size(plan, {"m": 8193, "n": 8, "k": 16, "g": 1024}, 132)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("shape", "alignment", "sentence"),
    [
        (Shape(192, 32, groups=3), 4096, "with an alignment of 4096; a launch counts 4095 rows at most between places"),
        (Shape(128, 32), 126, "begin at multiples of 2; TMA starts boxes of words at every fourth"),
    ],
)
def test_tiles_that_cannot_begin_where_groups_do_are_refused(shape: Shape, alignment: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lower(in_row_groups(bf16_gemm("nt", shape), "ids", alignment))


def test_tiles_of_a_factor_along_m_begin_at_whole_chunks() -> None:
    with pytest.raises(ValueError, match="starts boxes at whole 16 bytes, so use an alignment of 8"):
        lower(in_row_groups(bf16_gemm("tn", LOW), "ids", 60))


@pytest.mark.parametrize("name", ["sm100_bf16_gemm_nt_bf16_64x128_swap", "sm120_bf16_gemm_nt_bf16_16x128_swap"])
def test_groups_are_found_on_hopper_alone(name: str) -> None:
    with pytest.raises(ValueError, match="lowered for sm90 alone"):
        lower(in_row_groups(catalog.specs()[name], "ids", 96))


def test_found_groups_reduce_nothing_and_are_so_many() -> None:
    with pytest.raises(ValueError, match="and a reduction"):
        lower(in_row_groups(summed(fp8_gemm_nt(FINE)), "ids", 128))
    with pytest.raises(ValueError, match="by counts and an alignment"):
        in_row_groups(fp8_gemm_nt(FINE), "counts", 128)
    plan, sizes = lower(in_row_groups(fp8_gemm_nt(FINE), "ids", 128)), {"n": 32, "k": 128, "g": 1}
    assert grid_size(plan, {**sizes, "m": 131072}, 132) == 132
    assert f"multiples of 128, found by ids of 1024 parts at most @{plan.shared_bytes - 12 * 1024 - 8}" in plan_table(
        plan
    )
    with pytest.raises(ValueError, match=r"m=131073: groups by ids start at multiples of 128 rows, and .* 131072 rows"):
        grid_size(plan, {**sizes, "m": 131073}, 132)
    with pytest.raises(ValueError, match=r"g=524288: .* finds 524287 groups at most by their ids; use a tile that"):
        grid_size(plan, {**sizes, "m": 128, "g": 2**19}, 132)
