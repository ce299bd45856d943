"""Which tile serves groups on sm90, and products that are added to sums: most terms of ``choice``, fitted to groups.

Tiles of all groups share the waves, and rows of groups differ. What is between K blocks of a CTA that has dozens of
tiles, and how far epilogues are hidden, was measured with groups, and stays where ``choice`` is fitted anew. Cycles and
bytes of an H100; pairs and tiles of three warpgroups were fitted to an H200's times, 64 problems of rows.
"""

from __future__ import annotations

from gemmgen.catalog import Shape
from gemmgen.ops.cost import Cost, beside_memory, in_waves

PRODUCT_ROWS = 32
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K."""
LEAST_COLUMNS = 32
"""Columns that a product takes the time of at least: it reads 64 rows of its first factor from shared memory."""
WARPGROUP_ROWS = 64
"""Rows of a product."""
BETWEEN_PRODUCTS = 60
"""Cycles between K blocks without promotion."""
BETWEEN_SUMS = {1: 240, 2: 235, 3: 200}
"""Those with promotion of sums that are added to, by the warpgroups that take turns: 17 problems, an H200."""
BETWEEN_IN_GROUPS = {False: 105, True: 55}
"""Those with promotion where rows are in groups, by whether epilogues run beside products."""
BETWEEN_ROUNDS = {1: 40, 2: 40, 3: 0}
"""Those in groups of rows where whole rounds are copied out, by the warpgroups that take turns."""
TURN = {False: 180, True: 255}
"""Cycles of the shortest turn of the ring."""
PAIR_WAITS, PAIR_IDLE = 1.03, 0.5
"""K blocks of a pair take so much longer, as its CTAs wait for each other; of the time of rows that are not there it
saves so much."""
L2_BYTES = 70
"""Bytes a cycle from L2 into one SM."""
CROWDED, ALONE = 0.75, 0.8
"""Share of the SMs from which on that is all there is, and how much faster copies come below."""
PAST_LINE = 5
"""Cycles of a row or column of a tile that lies past the end of the matrix."""
DEVICE_BYTES = 1690
"""Bytes a cycle from device memory, all SMs together."""
LAST_WAVE = 0.25
"""Share of the SMs without a tile in the last wave that device memory is the slower for, where weights are streamed."""
EPILOGUE, EPILOGUE_OF_ROWS = 600, 1500
"""Cycles of an epilogue that runs beside no products, beside one for every 16 elements of the tile; and of either kind
where rows are in groups."""
START = 1000
"""Cycles until the first products."""
FIND = 5000
"""Those that a launch takes to find groups by row ids, an estimate: eight products of 0.4 to 2.7 ms took 0.8 % longer
than by ends while a warp read ids again in a chain of misses, which it no longer does (H200)."""
OVERLAP = 0.1
"""Share of the smaller of compute and memory time that is not hidden by the larger."""
UNEVEN = (-20, -12, -4, 4, 12, 20)
"""Per cent by which rows of groups are taken to differ from their mean."""


def cost(
    shape: Shape,
    m: int,
    n: int,
    k_bytes: int,
    sms: int,
    promoted: bool,
    groups: int,
    of_rows: bool,
    found: bool = False,
) -> Cost:
    """Cycles that groups of ``m`` by ``n`` take with this tile, by term. ``k_bytes`` is k times the bytes of A's dtype.

    Groups ``of_rows`` have more rows and fewer; others are as many problems of the same size. ``found`` are those that
    a launch looks for before it knows its tiles.
    """
    ctas = shape.cluster[0] * shape.cluster[1]
    down = _units_down(m, shape.m * shape.cluster[0], groups, of_rows)
    units = down * -(-n // (shape.n * shape.cluster[1]))
    at_once = max(1, sms // ctas)
    name, block = _block(shape, m, n, units * ctas, sms, promoted, of_rows)
    if of_rows and shape.cluster[0] > 1:  # where warpgroups without rows multiply nothing
        rows = _units_down(m, WARPGROUP_ROWS, groups, of_rows) * WARPGROUP_ROWS
        block *= PAIR_WAITS * (1 - PAIR_IDLE * (1 - rows / (down * shape.m * shape.cluster[0])))
    alone = EPILOGUE_OF_ROWS if of_rows else 0 if shape.overlap else EPILOGUE
    tile = {name: -(-k_bytes // 128) * block, "epilogue": alone + shape.m * shape.n / 16}
    compute = in_waves(tile, units / at_once, -(-units // at_once))
    memory = groups * ((m + n) * k_bytes + 2 * m * n) / DEVICE_BYTES
    if of_rows:
        memory *= 1 + LAST_WAVE * (-(-units // at_once) * at_once / units - 1)
    return Cost(beside_memory({**compute, "start": START + FIND * found}, memory, OVERLAP))


def _units_down(m: int, rows: int, groups: int, of_rows: bool) -> int:
    """How many units of so many rows all groups have below one another."""
    if not of_rows:
        return groups * -(-m // rows)
    each = sum(-(-m * (100 + part) // (100 * rows)) for part in UNEVEN) / len(UNEVEN)
    return max(1, round(groups * each))


def _block(shape: Shape, m: int, n: int, tiles: int, sms: int, promoted: bool, of_rows: bool) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles, in a problem of so many tiles."""
    if not promoted:
        between = BETWEEN_PRODUCTS
    elif not of_rows:
        between = BETWEEN_SUMS[shape.groups]
    else:
        between = BETWEEN_ROUNDS[shape.groups] if shape.rounds else BETWEEN_IN_GROUPS[shape.overlap]
    rows = max(shape.m, LEAST_COLUMNS) if shape.swap else shape.m
    bounds = {
        "products": rows * shape.n / PRODUCT_ROWS + between,
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
