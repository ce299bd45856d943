"""The terms of a tile's cost: they add up to the rule, worked out by hand, and say what bounds it."""

from __future__ import annotations

import pytest

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ir import CutRemainder
from gemmgen.ops import choice, choice_sm100, choice_sm120
from gemmgen.ops.cost import Cost, beside_memory, in_waves

SQUARE, NARROW = Shape(128, 128), Shape(64, 16, groups=1)


def test_costs_by_hand() -> None:
    """4096 x 4096 x 8192 bytes on 132 SMs: 1024 tiles are 8 waves of 64 blocks of 512 + 60 cycles."""
    cost = choice.cost(SQUARE, 4096, 4096, 8192, 132, promoted=False)
    memory = (2 * 4096 * 8192 + 2 * 4096 * 4096) / 1690
    compute = 8 * (64 * 572 + 600 + 1024) + 1000
    assert cost.total == pytest.approx(compute + 0.1 * memory)
    assert cost.terms["products"] == pytest.approx(1024 / 132 * 64 * 572)
    assert cost.terms["waves"] == pytest.approx((8 - 1024 / 132) * (64 * 572 + 1624))
    assert cost.dominant == "products"


def test_what_is_bound_by_memory_counts_a_tenth_of_the_rest() -> None:
    wide = choice.cost(SQUARE, 128, 2**20, 128, 2**20, promoted=False)
    assert wide.dominant == "device memory"
    assert wide.total == pytest.approx(((128 + 2**20) * 128 + 2**28) / 1690 + 0.1 * (572 + 1624 + 1000))


def test_narrow_tiles_are_bound_by_the_ring_and_crowded_ones_by_copies() -> None:
    assert choice.cost(NARROW, 64, 16 * 132, 8192, 132, promoted=True).dominant == "ring turn"
    assert choice.cost(NARROW, 64, 16, 8192, 132, promoted=True).dominant == "waves"
    shared = choice.cost(Shape(64, 64, groups=1, ctas_per_sm=2), 64, 64 * 264, 8192, 132, promoted=False)
    assert "copies" in shared.terms and shared.terms["start"] == 0


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
    whole = 56 * (768 + 200) + 600 + 1536
    part = 56 * (256 + 200) + 600 + 512
    cost = choice.cost(Shape(128, 192, cut=3), 8192, 2112, 7168, 132, promoted=True)
    memory = ((8192 + 2112) * 7168 + 2 * 8192 * 2112) / 1690
    assert cost.total == pytest.approx(5 * whole + 1.3 * part + 1000 + 0.1 * memory)
    assert Shape(128, 192, cut=3).schedule.waves(704, 132) == (5, 1)


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


def test_lines_past_the_end_cost_more_than_those_inside() -> None:
    """1051 rows in one wave: 229 of the last 256 rows lie past the end, or 101 of the last 128."""
    wide, tall = Shape(128, 256), Shape(256, 128)
    even = [choice.cost(shape, 1024, 4096, 8192, 132, False).total for shape in (wide, tall)]
    assert even[0] == pytest.approx(even[1])
    last = choice.cost(tall, 1051, 3072, 8192, 132, False)
    assert last.terms["copies"] == pytest.approx(120 / 132 * 64 * ((256 + 128 - 229) * 128 / 70 + 229 * 5))
    assert choice.cost(wide, 1051, 3072, 8192, 132, False).total < 0.9 * last.total


def test_the_larger_of_two_sides_counts_whole() -> None:
    assert beside_memory({"products": 10}, 5, 0.1) == {"products": 10, "device memory": 0.5}
    assert beside_memory({"products": 10}, 50, 0.1) == {"products": 1, "device memory": 50}
