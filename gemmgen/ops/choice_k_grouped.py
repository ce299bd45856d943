"""Which tile serves groups of k on sm90, and other products that are added to sums: most terms of ``choice``.

Groups are as many problems of the same size, whose tiles share the waves. Cycles and bytes of an H100, but for what is
between promoted K blocks and what memory takes: of 1070 problems drawn at random (dense in FP8, groups of k in FP8 and
BF16, H200) picks by memory of two bytes an element, as others write, took 2.9 % longer than the fastest tile, and with
these 1.0 %; ``DEVICE_BYTES`` and ``LARGE`` are fitted to half of them, and as good for the others. Calls that add
nothing are priced as if they did.
"""

from __future__ import annotations

from gemmgen.catalog import Shape
from gemmgen.ops.choice import GATHERED
from gemmgen.ops.cost import Cost, beside_memory, in_waves

PRODUCT_ROWS = 32
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K."""
BETWEEN_PRODUCTS = 60
"""Cycles between K blocks without promotion."""
BETWEEN_SUMS = {1: 240, 2: 235, 3: 200}
"""Those with promotion, by the warpgroups that take turns: 17 problems, an H200."""
TURN = {False: 180, True: 255}
"""Cycles of the shortest turn of the ring."""
L2_BYTES = 70
"""Bytes a cycle from L2 into one SM."""
CROWDED, ALONE = 0.75, 0.8
"""Share of the SMs from which on that is all there is, and how much faster copies come below."""
PAST_LINE = 5
"""Cycles of a row or column of a tile that lies past the end of the matrix."""
DEVICE_BYTES = 3060
"""Bytes a cycle to and from device memory, all SMs together."""
LARGE = 1.3
"""How much longer those take with tiles of more than 128x128, whose CTAs seldom load beside stores of others."""
SUM_BYTES = 8
"""Of an element of the output: what lies there is read and written."""
EPILOGUE = 600
"""Cycles of an epilogue that runs beside no products, beside one for every 16 elements of the tile."""
START = 1000
"""Cycles until the first products."""
OVERLAP = 0.1
"""Share of the smaller of compute and memory time that is not hidden by the larger."""


def cost(
    shape: Shape, m: int, n: int, k_bytes: int, sms: int, promoted: bool, groups: int, gathered: bool = False
) -> Cost:
    """Cycles that groups of ``m`` by ``n`` take with this tile, by term; ``k_bytes`` is k times the bytes of A's dtype.

    Every group has a product of that size. ``gathered`` are scales that lie along k.
    """
    ctas = shape.cluster[0] * shape.cluster[1]
    units = groups * -(-m // (shape.m * shape.cluster[0])) * -(-n // (shape.n * shape.cluster[1]))
    at_once = max(1, sms // ctas)
    name, block = _block(shape, m, n, units * ctas, sms, promoted, gathered)
    alone = 0 if shape.overlap else EPILOGUE
    tile = {name: -(-k_bytes // 128) * block, "epilogue": alone + shape.m * shape.n / 16}
    compute = in_waves(tile, units / at_once, -(-units // at_once))
    memory = groups * ((m + n) * k_bytes + SUM_BYTES * m * n) / DEVICE_BYTES
    memory *= LARGE if shape.m * shape.n > 128 * 128 else 1
    return Cost(beside_memory({**compute, "start": START}, memory, OVERLAP))


def _block(shape: Shape, m: int, n: int, tiles: int, sms: int, promoted: bool, gathered: bool) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles, in a problem of so many tiles."""
    between = (BETWEEN_SUMS[shape.groups] if promoted else BETWEEN_PRODUCTS) + (GATHERED if gathered else 0)
    bounds = {
        "products": shape.m * shape.n / PRODUCT_ROWS + between,
        "copies": _copies(shape, m, n, tiles, sms) * (1 if tiles >= CROWDED * sms else ALONE),
        "ring turn": TURN[promoted],
    }
    name = max(bounds, key=lambda each: bounds[each])
    return name, bounds[name]


def _copies(shape: Shape, m: int, n: int, tiles: int, sms: int) -> float:
    """Cycles of the rows and columns of a tile: of the last one where all are in one wave, else of the mean one."""
    sizes = ((shape.m, m), (shape.n, n))
    past = sum(-extent % size / (1 if tiles <= sms else -(-extent // size)) for size, extent in sizes)
    return (shape.m + shape.n - past) * 128 / L2_BYTES + past * PAST_LINE
