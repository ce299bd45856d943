"""Which of an operator's shipped tiles serves a problem: a small rule that anybody can work out by hand.

A tile costs, per K block, the slowest of three: its products on the tensor core plus what the math warps do between
products; its bytes through L2; and the latency of one turn of the ring. Add an epilogue, multiply by the number of
waves, and never go below the time device memory needs. The cheapest shape wins; among equals the one listed first.
``cost`` keeps these as named terms that add up, which is what ``gemmgen explain`` prints.
A CTA that has one tile, or a share of its K blocks, has a turn, a tail and memory of its own; sums that are pushed come
on top, and large clusters leave some SMs out.
Lines of a tile past the end of the matrix cost more than those inside, so tiles that just miss are no bargain.
The constants were fitted to an H100's times and are in cycles and bytes; docs/performance.md has how near picks are.
"""

from __future__ import annotations

from dataclasses import replace

from gemmgen.catalog import Shape
from gemmgen.ir import CutRemainder
from gemmgen.ops.cost import Cost, beside_memory, in_waves

PRODUCT_ROWS = 32
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K."""
LEAST_COLUMNS = 32
"""Columns that a product takes the time of at least: it reads 64 rows of its first factor from shared memory."""
BETWEEN_PRODUCTS = {False: 60, True: 200}
"""Cycles between K blocks without and with promotion."""
BETWEEN_ROUNDS = {False: 100, True: 40}
"""Cycles between K blocks with promotion where whole rounds are copied out, by whether a CTA has dozens of tiles."""
TURN = {False: 180, True: 255}
"""Cycles of the shortest turn of the ring."""
L2_BYTES = 70
"""Bytes a cycle from L2 into one SM."""
PAST_LINE = 5
"""Cycles of a row or column of a tile that lies past the end of the matrix: TMA is slow at filling in zeros."""
DEVICE_BYTES = 1690
"""Bytes a cycle from device memory, all SMs together."""
EPILOGUE = {False: 600, True: 250}
"""Cycles of an epilogue that runs beside no products, by whether a wide tile is staged as a whole, beside one for every
16 elements of the tile."""
STAGED_COLUMNS, STAGED_ALONE = 64, 128
"""Columns of bf16 in a staging buffer, and of narrow tiles, whose other costs are as if they were not."""
SHARED_SM = 1.25
"""How much longer a tile takes when another CTA works on the same SM."""
HALF_RING = 1.6
"""How much slower copies come through the half ring of a CTA made to share its SM."""
SOLE_START = 1000
"""Cycles that a CTA made to fill its SM needs more to start."""
CUT_PART = 1.3
"""How much longer a part of a tile takes in a ring of fewer, larger slots than in one made for it."""
OVERLAP = 0.1
"""Share of the smaller of compute and memory time that is not hidden by the larger."""
FEW_BETWEEN = 60
"""Cycles between K blocks of a CTA that has one tile."""
FEW_TURN = {False: 195, True: 210}
"""Cycles of the shortest turn of its ring."""
FEW_TAIL = 2500
"""Cycles of its start and epilogue, beside one for every 16 elements of the tile."""
FEW_DEVICE_BYTES = 2300
"""Bytes a cycle from device memory where weights are evicted first."""
FEW_SATURATE = 0.8
"""Share of the SMs that must have a CTA for that; fewer get as much less."""
FEW_OVERLAP = 0.5
"""Share of the smaller of compute and memory time that is not hidden by the larger, with one tile."""
PUSH = 1400
"""Cycles until pushed sums are added up, beside one for every 4 elements of the tile."""
PACKED = 0.9
"""Share of the CTAs an SM could hold that are there at once in clusters of more than a pair."""
WARPGROUP_ROWS = 64
"""Rows of a product."""
BETWEEN_IN_GROUPS = {False: 105, True: 55}
"""Cycles between K blocks with promotion where a CTA has dozens of tiles, by whether epilogues run beside products."""
PAIR_WAITS = 1.03
"""How much longer K blocks of a pair take where groups have rows for more than two of its units."""
EPILOGUE_IN_GROUPS = 1500
"""Cycles of an epilogue there, of either kind, beside one for every 16 elements of the tile."""
UNEVEN = (-20, -12, -4, 4, 12, 20)
"""Per cent by which rows of groups are taken to differ from their mean."""
LAST_WAVE = 0.25
"""Share of the SMs without a tile in the last wave that device memory is the slower for, where weights are streamed."""
MHZ = 1650
"""Cycles a microsecond: the clock of an H100 under these loads."""
LAUNCH_US = 4.7
"""What every launch takes beside its cycles, as CUDA events see it."""


def microseconds(cycles: float) -> float:
    """About the time of a launch that costs so many cycles."""
    return LAUNCH_US + cycles / MHZ


def cost(
    shape: Shape, m: int, n: int, k_bytes: int, sms: int, promoted: bool, groups: int = 1, uneven: bool = False
) -> Cost:
    """Cycles the problem takes with this tile, by term. ``k_bytes`` is k times the bytes of an element of A.

    Groups are as many problems of ``m`` rows each, whose tiles share the waves; ``uneven`` ones have more and fewer.
    """
    if shape.splits is not None:
        return _few_rows(shape, shape.splits, m, n, k_bytes, sms, promoted)
    ctas = shape.cluster[0] * shape.cluster[1]
    down = _units_down(m, shape.m * shape.cluster[0], groups, uneven)
    units = down * -(-n // (shape.n * shape.cluster[1]))
    at_once = max(1, sms * shape.ctas_per_sm // ctas)
    name, block = _block(shape, m, n, units * ctas, sms, promoted, uneven)
    if uneven and shape.cluster[0] > 1:  # where warpgroups without rows multiply nothing
        rows = _units_down(m, WARPGROUP_ROWS, groups, uneven) * WARPGROUP_ROWS
        block *= max(0.5, rows / (down * shape.m * shape.cluster[0]))
        block *= PAIR_WAITS if m > 2 * shape.m * shape.cluster[0] else 1
    tile = {name: -(-k_bytes // 128) * block, "epilogue": _epilogue(shape, uneven)}
    compute = in_waves(tile, units / at_once, _waves(shape, m, n, units, at_once, k_bytes, sms, promoted))
    start = {"start": SOLE_START if shape.ctas_per_sm == 1 else 0}
    memory = groups * ((m + n) * k_bytes + 2 * m * n) / DEVICE_BYTES
    if uneven:
        memory *= 1 + LAST_WAVE * (-(-units // at_once) * at_once / units - 1)
    return Cost(beside_memory({**compute, **start}, memory, OVERLAP))


def _units_down(m: int, rows: int, groups: int, uneven: bool) -> int:
    """How many units of so many rows all groups have below one another."""
    if not uneven:
        return groups * -(-m // rows)
    each = sum(-(-m * (100 + part) // (100 * rows)) for part in UNEVEN) / len(UNEVEN)
    return max(1, round(groups * each))


def _epilogue(shape: Shape, uneven: bool = False) -> float:
    whole = shape.m == WARPGROUP_ROWS * shape.groups and shape.cut == 1  # a kernel that can cut takes 3 to 7 % more
    at_once = whole and STAGED_ALONE < shape.n <= shape.staging * STAGED_COLUMNS
    return (EPILOGUE_IN_GROUPS if uneven else 0 if shape.overlap else EPILOGUE[at_once]) + shape.m * shape.n / 16


def _waves(shape: Shape, m: int, n: int, units: int, at_once: int, k_bytes: int, sms: int, promoted: bool) -> float:
    """Waves of tiles; those that are cut count for what a part takes of a tile's time."""
    if not isinstance(shape.schedule, CutRemainder):
        return -(-units // at_once)
    whole, cut = shape.schedule.waves(units, at_once)
    part = replace(shape, n=shape.n // shape.cut, cut=1)
    blocks = (_block(each, m, n, units, sms, promoted)[1] for each in (part, shape))
    times = [-(-k_bytes // 128) * block + _epilogue(each) for block, each in zip(blocks, (part, shape), strict=True)]
    return whole + cut * CUT_PART * times[0] / times[1]


def _copies(shape: Shape, m: int, n: int, tiles: int, sms: int) -> float:
    """Cycles of the rows and columns of a tile: of the last one where all are in one wave, else of the mean one."""
    sizes = ((shape.m, m), (shape.n, n))
    past = sum(-extent % size / (1 if tiles <= sms else -(-extent // size)) for size, extent in sizes)
    return (shape.m + shape.n - past) * 128 / L2_BYTES + past * PAST_LINE


def _block(
    shape: Shape, m: int, n: int, tiles: int, sms: int, promoted: bool, uneven: bool = False
) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles, in a problem of so many tiles."""
    between = BETWEEN_IN_GROUPS[shape.overlap] if uneven and promoted else BETWEEN_PRODUCTS[promoted]
    between = BETWEEN_ROUNDS[uneven] if shape.rounds and promoted else between
    crowding = 1.0 if tiles * 4 >= 3 * sms else 0.8
    shared = shape.ctas_per_sm > 1
    bounds = {
        "products": _area(shape) / PRODUCT_ROWS + between,
        "copies": _copies(shape, m, n, tiles, sms) * crowding * (HALF_RING if shared else 1),
        "ring turn": TURN[promoted],
    }
    name = max(bounds, key=lambda each: bounds[each])
    return name, bounds[name] * (SHARED_SM if shared and tiles > sms else 1)


def _area(shape: Shape) -> int:
    """Rows x columns of a tile's products; a swapped one has the tile's rows on its columns."""
    return max(shape.m, LEAST_COLUMNS) * shape.n if shape.swap else shape.m * shape.n


def _few_rows(shape: Shape, splits: int, m: int, n: int, k_bytes: int, sms: int, promoted: bool) -> Cost:
    """Cycles with a CTA for every tile, or ``splits`` that share its K blocks."""
    rows, blocks = -(-m // shape.m), -(-k_bytes // 128)
    tiles = rows * -(-n // shape.n)
    at_once = max(1, int(sms * shape.ctas_per_sm * (PACKED if splits > 2 else 1)) // splits)
    beside = min(shape.ctas_per_sm, -(-tiles * splits // sms))
    bounds = {
        "products": max(shape.m, 64) * shape.n / PRODUCT_ROWS + FEW_BETWEEN,
        "copies": _copies(shape, m, n, tiles * splits, sms) * beside,
        "ring turn": FEW_TURN[promoted],
    }
    name = max(bounds, key=lambda each: bounds[each])
    elements = shape.m * shape.n
    tile = {name: -(-blocks // splits) * bounds[name], "epilogue": FEW_TAIL + elements / 16}
    compute = in_waves(tile, tiles / at_once, -(-tiles // at_once))
    push = {"push": PUSH + elements / 4 if splits > 1 else 0}
    again = rows if shape.m < 64 else 1  # short tiles below one another are for no problem
    drawing = min(1.0, tiles * splits / (FEW_SATURATE * sms))
    memory = ((m + again * n) * k_bytes + 2 * m * n) / (FEW_DEVICE_BYTES * drawing)
    return Cost(beside_memory({**compute, **push}, memory, FEW_OVERLAP))
