"""The terms of a tile's cost: they add up to the rule, worked out by hand, and say what bounds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import CutRemainder
from gemmgen.ops import choice, choice_grouped, choice_sm100, choice_sm120, spec_for
from gemmgen.ops.cost import Cost, beside_memory, in_waves
from gemmgen.ops.groups import Groups

SQUARE, NARROW = Shape(128, 128), Shape(64, 16, groups=1)


def test_costs_by_hand() -> None:
    """4096 x 4096 x 8192 bytes on 132 SMs: 1024 tiles are 8 waves of 64 blocks, bound by products.

    Shared memory takes 640 lines, less: 128 + 128 are written, and two warpgroups read 64 + 128. B is 32 MiB, for which
    31 MB of L2 are written back.
    """
    cost = choice.cost(SQUARE, 4096, 4096, 8192, 132, promoted=False)
    block = 16384 / 30.4 + 101
    assert block > 640 * 128 / 133
    memory = (2 * 4096 * 8192 + 2 * 4096 * 4096 + 31e6) / 2540
    compute = 8 * (64 * block + 1100 + 16384 / 11) + 1530
    assert cost.total == pytest.approx(compute + 0.265 * memory)
    assert cost.terms["products"] == pytest.approx(1024 / 132 * 64 * block)
    assert cost.terms["waves"] == pytest.approx((8 - 1024 / 132) * (64 * block + 1100 + 16384 / 11))
    assert cost.dominant == "products"


def test_what_is_bound_by_memory_counts_a_share_of_the_rest() -> None:
    wide = choice.cost(SQUARE, 128, 2**20, 128, 2**20, promoted=False)
    assert wide.dominant == "device memory"
    copies = 256 * 128 * 2**13 / 6800  # L2 serves all tiles at once
    memory = ((128 + 2**20) * 128 + 2**28 + 31e6) / 2540
    assert wide.total == pytest.approx(memory + 0.265 * (copies + 1100 + 16384 / 11 + 1530))


def test_narrow_tiles_are_bound_by_the_ring_and_crowded_ones_by_copies() -> None:
    assert choice.cost(NARROW, 64, 16 * 132, 8192, 132, promoted=True).dominant == "ring turn"
    assert choice.cost(NARROW, 64, 16, 8192, 132, promoted=True).dominant == "waves"
    shared = choice.cost(Shape(64, 64, groups=1, ctas_per_sm=2), 64, 64 * 264, 8192, 132, promoted=False)
    assert "copies" in shared.terms and shared.terms["start"] == 0


def test_swapped_tiles_wait_for_their_ring_or_for_memory() -> None:
    """4 tiles of 64 K blocks leave memory idle: a ring of half an SM holds 6 slots, and fills in 2030 cycles."""
    pair = Shape(16, 128, ctas_per_sm=2, swap=True)
    few = choice.cost(pair, 16, 4 * 128, 8192, 132, promoted=False)
    turn = 2030 * (16 + 128) * 128 * 2 / (216 * 1024)
    assert few.terms["ring turn"] == pytest.approx(4 / 264 * 64 * turn)
    alone = choice.cost(replace(pair, ctas_per_sm=1), 16, 4 * 128, 8192, 132, promoted=False)
    assert turn / 2 < 304 * 128 / 133  # 144 lines are written, and 2 x 80 read
    assert alone.terms["shared memory"] == pytest.approx(4 / 132 * 64 * 304 * 128 / 133)
    assert alone.total < few.total
    many = choice.cost(pair, 16, 264 * 128, 8192, 132, promoted=False)
    assert many.dominant == "device memory"
    moved = (16 + 264 * 128) * 8192 + 32 * 264 * 128 + 31e6
    assert many.terms["device memory"] == pytest.approx(moved / 2540)
    assert many.total == pytest.approx(moved / 2540 + 0.08 * (64 * 144 * 128 * 264 / 6800 + 1250 + 16 * 128 / 3.6))


def test_weights_that_go_first_leave_others_and_short_tiles_below_one_another_read_them_again() -> None:
    """On 2^20 SMs memory bounds everything. 128 MiB of weights push 31 MB out, or go first, which is slower; 256 MiB
    never do. For 48 rows two more rows of tiles read 0.3 of B again each.
    """
    few, tall = Shape(16, 128, stream=True, swap=True), Shape(64, 128, groups=1, stream=True)

    def memory(shape: Shape, m: int, n: int = 2**20) -> float:
        cost = choice.cost(shape, m, n, 128, 2**20, promoted=False)
        assert cost.dominant == "device memory"
        return cost.terms["device memory"]

    assert memory(replace(few, stream=False), 16) == pytest.approx(((16 + 2**20) * 128 + 2**25 + 31e6) / 2540)
    assert memory(few, 16) == pytest.approx(((16 + 2**20) * 128 + 2**25) / 2770)
    assert memory(few, 16, 2**21) == pytest.approx(((16 + 2**21) * 128 + 2**26 + 31e6) / 2540)
    assert memory(few, 48) == pytest.approx(((48 + 1.6 * 2**20) * 128 + 96 * 2**20) / 2770)
    assert memory(tall, 192) == pytest.approx(((192 + 2**20) * 128 + 384 * 2**20) / 2770)


def test_a_tile_a_cta_by_hand() -> None:
    """1536 columns of 8192 bytes for 8 rows: 12 tiles of clusters of 4, each CTA with 16 blocks.

    Of a block 136 lines are written to shared memory and two products read 64 + 8, which takes less than a turn.
    """
    cost = choice.cost(Shape(8, 128, splits=4, ctas_per_sm=2, swap=True), 8, 1536, 8192, 132, promoted=True)
    tile = 16 * 298 + 2350 + 8 * 128 / 16
    memory = ((8 + 1536) * 8192 + 2 * 8 * 1536) / 3000  # 48 CTAs are more than 0.3 of the SMs
    assert cost.terms["push"] == 400 + 8 * 128 / 4
    assert cost.total == pytest.approx(tile + 400 + 256 + 0.83 * memory)
    assert 298 > 280 * 128 / 133 > 32 * 128 / 27.8 + 60


def test_few_tiles_do_not_draw_all_of_the_memory_and_many_weights_do_not_go_first() -> None:
    """20 tiles draw as much as 20 of 39.6 could, and 320 MiB of weights push 31 MB out of L2; turns take longer."""
    cost = choice.cost(Shape(64, 64, groups=1, splits=1), 64, 20 * 64, 2**18, 132, promoted=False)
    memory = ((64 + 1280) * 2**18 + 2 * 64 * 1280 + 31e6) / (3450 * 20 / 39.6)
    assert cost.terms["device memory"] == pytest.approx(0.83 * memory)
    assert cost.terms["push"] == 0


def test_a_shared_tile_by_hand() -> None:
    """44 tiles of 80x192 and 132 SMs: three CTAs share each one's 96 blocks, and meet."""
    shape = Shape(80, 192, groups=3, unroll=1, swap=True, share=True)
    cost = choice.cost(shape, 80, 44 * 192, 96 * 128, 132, promoted=False)
    block = max(
        80 * 192 / 30.4 + 101,
        (80 + 192 + 3 * (64 + 80)) * 128 / 133,
        272 * 128 * max(1 / 65.9, 132 / 6800),
        2030 * 272 * 128 / (216 * 1024),
    )
    compute = 32 * block + 1250 + 80 * 192 / 3.6 + 2300 + 3 * 80 * 192 * 0.146 + 1530
    memory = ((80 + 44 * 192) * 96 * 128 + 2 * 80 * 44 * 192 + 31e6) / 2540
    larger, smaller = max(compute, memory), min(compute, memory)
    assert cost.total == pytest.approx(larger + 0.265 * smaller)


def test_every_number_of_ctas_that_ships_in_a_cluster_was_counted() -> None:
    shapes = (*catalog.FP8_SHAPES, *catalog.BF16_SHAPES)
    assert {each.splits for each in shapes if each.splits} == set(choice.CLUSTERS)


@pytest.mark.parametrize(("splits", "ctas_per_sm", "at_once"), [(8, 1, 15), (8, 2, 30), (4, 1, 30), (2, 1, 66)])
def test_one_cluster_more_than_there_is_room_for_takes_a_second_turn(
    splits: int, ctas_per_sm: int, at_once: int
) -> None:
    shape = Shape(64, 64, groups=1, splits=splits, ctas_per_sm=ctas_per_sm)
    full, more = (choice.cost(shape, 64, 64 * tiles, 8192, 132, True) for tiles in (at_once, at_once + 1))
    one_turn = full.total - full.terms["device memory"] - full.terms["push"]
    assert full.terms["waves"] == 0
    assert more.terms["waves"] == pytest.approx((1 - 1 / at_once) * one_turn, rel=0.03)  # L2 serves a few more


@pytest.mark.parametrize("sms", [1, 4, 132, 10**4])
def test_terms_are_never_negative(sms: int) -> None:
    for m, n, k in ((1, 8, 128), (300, 500, 1024), (8192, 7168, 2048)):
        costs = [choice.cost(shape, m, n, k, sms, True) for shape in catalog.FP8_SHAPES]
        costs += [choice_sm100.cost(catalog.PairShape(128, ctas=2), m, n, k, sms, True)]
        costs += [choice_sm120.cost(catalog.WarpShape(64, 64, (2, 4), splits=4), m, n, k, sms)]
        for cost in costs:
            assert min(cost.terms.values()) >= 0 and cost.total == pytest.approx(sum(cost.terms.values()))


def test_keys_are_without_noise_and_preferences_decide() -> None:
    noisy, exact = Cost({"products": 0.1, "copies": 0.2}), Cost({"products": 0.3})
    assert noisy.total != exact.total and noisy.key == exact.key
    assert Cost({"products": 1}, (0,)).key < Cost({"products": 1}, (1,)).key < Cost({"products": 2}, (0,)).key


def test_waves_are_what_the_last_one_leaves_idle() -> None:
    assert in_waves({"products": 10, "epilogue": 2}, 1.5, 2) == {"products": 15, "epilogue": 3, "waves": 6}


def test_tiles_that_fill_no_wave_count_for_their_parts() -> None:
    """8192 x 2112 is 704 tiles of 128x192: five waves on 132 SMs and 44 tiles, whose 132 parts are one more."""
    shape = Shape(128, 192, cut=3)
    whole = 56 * (128 * 192 / 27.8 + 190) + 1100 + 128 * 192 / 11
    part = 56 * (128 * 64 / 27.8 + 190) + 1100 + 128 * 64 / 11
    cost = choice.cost(shape, 8192, 2112, 7168, 132, promoted=True)
    memory = ((8192 + 2112) * 7168 + 2 * 8192 * 2112 + 2112 * 7168) / 2540
    assert cost.total == pytest.approx(5 * whole + 1.4 * part + 1530 + 0.265 * memory)
    assert shape.schedule.waves(704, 132) == (5, 1)


def test_tiles_stay_whole_where_parts_would_take_as_long() -> None:
    schedule = CutRemainder(parts=3)
    assert [schedule.waves(tiles, 132) for tiles in (132, 133, 176, 177, 264)] == [
        (1, 0),
        (1, 1),
        (1, 1),
        (2, 0),
        (2, 0),
    ]
    assert CutRemainder(parts=4).waves(66, 132) == (0, 2) and CutRemainder(parts=4).waves(67, 132) == (1, 0)


def test_the_slowest_tile_of_a_wave_counts_and_whole_parts_past_the_end_stay_away() -> None:
    """1051 rows in one wave of nine by eight tiles: the last has 27 rows, and 101 past the end; 96 may stay away.

    72 CTAs take as many lines as their SMs can: 65.9 bytes a cycle.
    """
    line = 128 / 65.9
    tile = Shape(128, 144, stream=True)
    found = [choice._copies(replace(tile, part_rows=rows), 1051, 1152, 72, 132) for rows in (None, 32)]
    assert found[0] == pytest.approx(max(128 * line, 27 * line + 101 * 3.3) + 144 * line)
    assert found[1] == pytest.approx(128 * line + 144 * line)
    one_row = choice._copies(replace(tile, part_rows=32), 1, 1152, 8, 132)
    assert one_row == pytest.approx(line + 31 * 3.3 + 144 * line)


def test_ctas_that_share_an_sm_share_what_it_takes() -> None:
    half = Shape(64, 64, groups=1, ctas_per_sm=2)
    alone, both = (choice._copies(half, 64, 64 * tiles, tiles, 132) for tiles in (100, 200))
    assert alone == pytest.approx(128 * 128 / 65.9) and both == pytest.approx(128 * 128 * 2 / 65.9)


def _waves(groups: int, down: list[int], across: int, at_once: int, unknown: bool = True) -> float:
    """The mean of waves that as many tiles need, and more and fewer."""
    usual = sum(down) / len(down)
    spread = min(0.29, (sum((each - usual) ** 2 for each in down) / len(down)) ** 0.5) * groups**0.5 if unknown else 0
    units = [(groups * usual + part * spread) * across for part in (-1.4, -0.7, 0, 0.7, 1.4)]
    return sum(-(-each // at_once) for each in units) / 5


def _down(rows: float, tile: int) -> list[int]:
    return [int(-(-rows * (100 + part) // (100 * tile))) for part in range(-24, 25, 3)]


def _both(uneven: float, alike: float) -> float:
    """Groups may be of one size."""
    return 0.6 * uneven + 0.4 * alike


def test_groups_have_constants_of_their_own() -> None:
    """Eight groups of 1024 rows are taken to have 779 to 1269, 7 to 10 tiles each, or 8 tiles each."""
    cost = choice_grouped.cost(SQUARE, 1024, 2048, 4096, 132, True, 8)
    down = _down(1024, 128)
    assert (down[0], down[-1]) == (7, 10)
    waves = _both(_waves(8, down, 16, 132), 8)
    tile = 32 * (512 + 183) + 650 + 512
    assert cost.total - cost.terms["device memory"] == pytest.approx(waves * tile + 1000)


def test_rows_that_pad_groups_are_no_tiles() -> None:
    """Of 1024 rows by ids 960 are expected; how many tiles of 128 all groups have is known, of 192 it is not."""
    padded = choice_grouped.cost(SQUARE, 1024, 2048, 4096, 132, True, 8, 128)
    down = _down(960.5, 128)
    waves = _both(max(8 * sum(down) / len(down) * 16 / 132, _waves(8, down, 16, 132, unknown=False)), 8)
    tile = 32 * (512 + 183) + 650 + 512
    assert padded.total - padded.terms["device memory"] == pytest.approx(waves * tile + 1000)


def test_three_warpgroups_leave_little_between_products() -> None:
    fine = Shape(192, 128, groups=3, rounds=True)
    cost = choice_grouped.cost(fine, 1024, 2048, 4096, 132, True, 8)
    waves = _both(_waves(8, _down(1024, 192), 16, 132), 6)
    tile = 32 * (768 + 37) + 650 + 384
    assert cost.total - cost.terms["device memory"] == pytest.approx(waves * tile + 1000)


def test_a_launch_that_looks_for_groups_starts_later() -> None:
    fine = Shape(192, 128, groups=3, rounds=True)
    looks, knows = (choice_grouped.cost(fine, 1024, 2048, 4096, 132, True, 8, 128, found) for found in (True, False))
    assert looks.terms["start"] - knows.terms["start"] == choice_grouped.FIND
    small = spec_for("fp8_gemm_nt", 128, 4096, 1024, 132, groups=Groups("ids", 128), group_count=4)
    assert 128 % small.tile.m == 0


def test_pairs_save_part_of_the_time_of_rows_that_are_not_there() -> None:
    """Thirty groups of 152 to 248 rows have a pair each for every column of tiles, of which some 87 % are rows, or all
    where each has 200."""
    pair = Shape(128, 256, width=128, cluster=(2, 1), rounds=True)
    cost = choice_grouped.cost(pair, 200, 1024, 4096, 132, True, 30)
    there = sum(_down(200, 64)) / 17 * 64 / 256
    assert 0.8 < there < 0.95
    block = 32 * (1024 + 85) * 1.1 * 0.92  # a pair has all rows, so nobody else reads B
    compute = 2 * (block * (1 - 0.6 * (1 - _both(there, 1))) + 650 + 1024) + 1000
    assert cost.total - cost.terms["device memory"] == pytest.approx(compute)


def test_waves_are_counted_for_more_tiles_and_fewer() -> None:
    """Thirty groups with a part of a tile each that may be missing."""
    cost = choice_grouped.cost(SQUARE, 100, 1152, 4096, 132, True, 30)
    down = _down(100, 128)
    assert set(down) == {1}  # known, then
    assert cost.terms["waves"] == pytest.approx((3 - 270 / 132) * (32 * (512 + 183) + 650 + 512))
    cost = choice_grouped.cost(SQUARE, 250, 2048, 4096, 132, True, 30)
    waves = _both(_waves(30, _down(250, 128), 16, 132), 8)
    assert waves != int(waves)
    tile = 32 * (512 + 183) + 650 + 512
    assert cost.total - cost.terms["device memory"] == pytest.approx(waves * tile + 1000)


def test_weights_that_go_first_push_nothing_out() -> None:
    """To 240 MiB of all groups' together; others have 5.4 MB written, or as many as they are."""
    few = Shape(16, 128, swap=True, stream=True)

    def bytes_of(shape: Shape, n: int) -> float:
        return choice_grouped._bytes(shape, 20, n, 4096, 8)

    kept = replace(few, stream=False)
    assert bytes_of(kept, 2048) - bytes_of(few, 2048) == choice_grouped.WRITTEN_BYTES
    assert bytes_of(kept, 8) - bytes_of(few, 8) == 8 * 8 * 4096
    assert bytes_of(kept, 2**13) == bytes_of(few, 2**13)


def test_the_larger_of_two_sides_counts_whole() -> None:
    assert beside_memory({"products": 10}, 5, 0.1) == {"products": 10, "device memory": 0.5}
    assert beside_memory({"products": 10}, 50, 0.1) == {"products": 1, "device memory": 50}
