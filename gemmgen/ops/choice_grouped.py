"""Which tile serves groups of rows on sm90: most terms of ``choice``, fitted to groups.

Tiles of all groups share the waves, and rows of groups differ. What is between K blocks of a CTA that has dozens of
tiles, and how far memory is hidden, was measured with groups, and stays where ``choice`` is fitted anew. Cycles and
bytes of an H200, fitted to 60 % of 3900 problems whose near candidates were all timed, behind a write, and judged by
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from statistics import fmean

from gemmgen.catalog import Shape
from gemmgen.ir import READ_ONCE_BYTES
from gemmgen.ops.choice import GATHERED
from gemmgen.ops.cost import Cost, Terms, added, beside_memory, in_waves, scaled

PRODUCT_ROWS = 32
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K."""
BETWEEN_PRODUCTS = 24
"""Cycles between K blocks without promotion."""
BETWEEN_SUMS = 183
"""Those with promotion."""
BETWEEN_ROUNDS = {1: 85, 2: 85, 3: 37}
"""Those where whole rounds are copied out, by the warpgroups that take turns."""
TURN = 291
"""Cycles of the shortest turn of the ring, with promotion, but where n is on the rows of products."""
PAIR_WAITS, PAIR_IDLE, PAIR_ALONE = 1.1, 0.6, 0.08
"""K blocks of a pair take so much longer, as its CTAs wait for each other; of the time of rows that are not there it
saves so much, and of all of a group that is surely one pair's, as nobody else reads its B. By 624 problems of counts in
FP8, 105 of them of groups of one size (H200)."""
WARPGROUP_ROWS = 64
"""Rows of a product."""
L2_BYTES = 75
"""Bytes a cycle from L2 into one SM."""
DEVICE_BYTES = 2950
"""Bytes a cycle from device memory, all SMs together."""
WRITTEN_BYTES = 5.4e6
"""Most bytes of L2 that weights push out and that have to be written, if nobody says that weights go first; fewer than
with a single product (``choice``), whose fit has no time that is not hidden."""
LAST_WAVE = 0.22
"""Share of the SMs without a tile in the last wave that device memory is the slower for, where weights are streamed."""
EPILOGUE, STORED = 650, {1: 32, 2: 32, 3: 64}
"""Cycles of an epilogue beside one for so many elements of the tile, by the warpgroups that take turns: of three, two
go on."""
START = 1000
"""Cycles until the first products."""
FIND = 2000
"""Those that a launch takes to find groups by row ids, by the fit; eight products took up to 2 us longer (H200)."""
OVERLAP = 0.39
"""Share of the smaller of compute and memory time that is not hidden by the larger."""
UNEVEN = range(-24, 25, 3)
"""Per cent by which rows of groups are taken to differ from their mean, or not at all."""
ALIKE = 0.4
"""How much it counts that groups may be of one size. With 0, picks for 150 problems of such groups took 4.3 % longer
than the fastest tile and 2.2 % now, for 1900 of others 1.9 and 2.0 %; with 1, 0.9 and 2.7 % (H200)."""
UNKNOWN = 0.29
"""Standard deviation of a group's tiles, at most: its last one may be needed or not, as what is equally often anything
from 0 to 1 deviates."""
WAVES = (-1.4, -0.7, 0, 0.7, 1.4)
"""Standard deviations of the number of all tiles, for which waves are counted."""


def cost(
    shape: Shape,
    m: int,
    n: int,
    k_bytes: int,
    sms: int,
    promoted: bool,
    groups: int,
    alignment: int = 1,
    found: bool = False,
    gathered: bool = False,
) -> Cost:
    """Cycles that groups of ``m`` by ``n`` take with this tile, by term. ``k_bytes`` is k times the bytes of A's dtype.

    Groups have more rows and fewer, or all as many. With an ``alignment`` padding up to its multiples is among them,
    half of one on average. ``found`` are those that a launch looks for before it knows its tiles, ``gathered`` are
    scales of A that lie along k.
    """
    rows, across = shape.m * shape.cluster[0], -(-n // (shape.n * shape.cluster[1]))
    real, at_once = max(m / 2, m - (alignment - 1) / 2), max(1, sms // (shape.cluster[0] * shape.cluster[1]))
    name, block = _block(shape, promoted, gathered)

    def terms(spread: Sequence[int]) -> Terms:
        """Of groups whose rows differ by so many per cent."""
        down = _units_down(real, rows, spread)
        mean = fmean(down)
        units = groups * mean * across
        deviation = 0.0  # as many as multiples of the alignment, where units are that
        if rows != alignment:
            of_group = sqrt(max(0, fmean(each * each for each in down) - mean * mean))
            deviation = sqrt(groups) * min(UNKNOWN, of_group) * across
        full = units / at_once
        waves = max(full, fmean(ceil(max(1, units + part * deviation) / at_once) for part in WAVES))
        idle = 0.0  # share of a pair whose warpgroups without rows multiply nothing
        if shape.cluster[0] > 1:
            idle = 1 - fmean(_units_down(real, WARPGROUP_ROWS, spread)) * WARPGROUP_ROWS / (mean * rows)
        alone = shape.cluster[0] > 1 and max(down) == 1 and real > shape.m
        products = -(-k_bytes // 128) * block * (1 - PAIR_IDLE * idle) * (1 - PAIR_ALONE * alone)
        tile = {name: products, "epilogue": EPILOGUE + shape.m * shape.n / STORED[shape.groups]}
        compute = {**in_waves(tile, full, waves), "start": START + FIND * found}
        memory = _bytes(shape, real, n, k_bytes, groups) / DEVICE_BYTES * (1 + LAST_WAVE * (waves / full - 1))
        return beside_memory(compute, memory, OVERLAP)

    return Cost(added(scaled(1 - ALIKE, terms(UNEVEN)), scaled(ALIKE, terms((0,)))))


def _units_down(real: float, rows: int, spread: Sequence[int]) -> list[int]:
    """Units of so many rows that a group may have below one another."""
    return [max(1, ceil(real * (100 + part) / (100 * rows))) for part in spread]


def _bytes(shape: Shape, real: float, n: int, k_bytes: int, groups: int) -> float:
    """What device memory reads and writes: factors, bf16 outputs, and what weights push out of L2."""
    weights = groups * n * k_bytes
    written = 0 if shape.stream and weights <= READ_ONCE_BYTES else min(weights, WRITTEN_BYTES)
    return weights + groups * real * (k_bytes + 2 * n) + written


def _block(shape: Shape, promoted: bool, gathered: bool) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles."""
    between = BETWEEN_PRODUCTS
    if promoted:
        between = BETWEEN_ROUNDS[shape.groups] if shape.rounds else BETWEEN_SUMS
        between += GATHERED if gathered else 0
    bounds = {
        "products": (shape.m * shape.n / PRODUCT_ROWS + between) * (PAIR_WAITS if shape.cluster[0] > 1 else 1),
        "copies": (shape.m + shape.n / shape.cluster[0]) * 128 / L2_BYTES,
    }
    if promoted and not shape.swap:
        bounds["ring turn"] = TURN
    name = max(bounds, key=lambda each: bounds[each])
    return name, bounds[name]
