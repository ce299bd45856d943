"""Which of an operator's shipped tiles serves a problem: a small rule that anybody can work out by hand.

A tile costs, per K block, the slowest of four: its products on the tensor core plus what the math warps do between
products; its bytes through L2, and in and out of shared memory; and the latency of one turn of the ring. Add an
epilogue, multiply by the number of waves, and never go below the time device memory needs. The cheapest shape wins;
among equals the one listed first. ``cost`` keeps these as named terms that add up, which is what ``gemmgen explain``
prints.
A CTA that has one tile, or a share of its K blocks, has a turn, a tail and memory of its own; sums that are pushed come
on top, and large clusters leave some SMs out. Where CTAs share tiles behind full waves, so does their meeting. Weights
that L2 does not drop first push other lines out, which are written; short tiles below one another read some again.
Lines of a tile past the end of the matrix cost more than those inside, so tiles that just miss are no bargain.
The constants were fitted to an H200's times (benchmarks/fit.py). On an H100's, of kernels of 2026-11-28, picks lose 2.1
% (FP8) and 2.3 % (BF16) by them. They are in cycles and bytes; docs/performance.md has how near picks are.
"""

from __future__ import annotations

from dataclasses import replace

from gemmgen.catalog import Shape
from gemmgen.ir import READ_ONCE_BYTES, CutRemainder, SplitK
from gemmgen.ops.cost import Cost, added, beside_memory, in_waves

PRODUCT_ROWS = {False: 30.4, True: 27.8}
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K, without and with
promotion: 32 is the most, and at a card's power less of it is found."""
BETWEEN_PRODUCTS = {False: 101, True: 190}
"""Cycles between K blocks without and with promotion."""
BETWEEN_ROUNDS = 70
"""Those with promotion where whole rounds are copied out."""
GATHERED = 95
"""Those beside them where lanes gather scales that lie along k, of groups too: 59 to 120 in ten problems, H200."""
TURN = {False: 146, True: 370}
"""Cycles of the shortest turn of the ring."""
L2_BYTES = 65.9
"""Bytes a cycle from L2 into one SM."""
L2_ALL = 6800
"""Bytes a cycle from L2 into all SMs together."""
SHARED_BYTES = 133
"""Bytes a cycle that copies write to shared memory and products read there."""
PAST_LINE = 3.3
"""Cycles of a row or column of a tile that lies past the end of the matrix and is fetched all the same."""
DEVICE_BYTES = {False: 2540, True: 2770}
"""Bytes a cycle from device memory, all SMs together, by whether weights are evicted first."""
WRITTEN_BYTES = 31e6
"""Of an L2 full of written lines, which go to memory to make room for weights that are not."""
EPILOGUE = {"staged": 1100, "whole": 600, "swapped": 700, "direct": 1250}
"""Cycles of an epilogue that runs beside no products, by how a tile is stored, beside those for its elements."""
STORED = {"staged": 11, "whole": 13, "swapped": 9, "direct": 3.6}
"""Elements that it stores a cycle."""
STAGED_COLUMNS, STAGED_ALONE = 64, 128
"""Columns of bf16 in a staging buffer, and of narrow tiles, whose other costs are as if they were not."""
HALF_RING = 1.49
"""How much slower copies come through the half ring of a CTA made to share its SM."""
SOLE_START = 1530
"""Cycles that a CTA made to fill its SM needs more to start."""
CUT_PART = 1.4
"""How much longer a part of a tile takes in a ring of fewer, larger slots than in one made for it."""
OVERLAP = 0.265
"""Share of the smaller of compute and memory time that is not hidden by the larger."""
SWAPPED_TURN = {False: 194, True: 334}
"""Cycles of the shortest turn of a swapped tile's ring."""
SWAPPED_RING = 2030
"""Cycles in which a swapped tile's ring fills once, where it has all of an SM's shared memory."""
SWAPPED_OVERLAP = 0.08
"""Share of the smaller of compute and memory time that is not hidden by the larger, with swapped tiles of few rows."""
RING_BYTES = 216 * 1024
"""Of an SM's shared memory."""
FEW_BETWEEN = 60
"""Cycles between K blocks of a CTA that has one tile."""
FEW_TURN = {False: 163, True: 298}
"""Cycles of the shortest turn of its ring."""
FEW_TAIL = 2350
"""Cycles of its start and epilogue, beside one for every 16 elements of the tile."""
FEW_DEVICE_BYTES = {False: 3450, True: 3000}
"""Bytes a cycle from device memory of tiles that a CTA has one of."""
FEW_SATURATE = 0.3
"""Share of the SMs that must have a CTA for that; fewer get as much less."""
FEW_OVERLAP = 0.83
"""Share of the smaller of compute and memory time that is not hidden by the larger, with one tile."""
PUSH = 400
"""Cycles until pushed sums are added up, beside one for every 4 elements of the tile."""
MEETING = 2300
"""Cycles until who comes last knows it, of CTAs that share a tile."""
MEETING_SUMS = 0.146
"""Cycles for every element of the sums of each of them."""
READ_AGAIN = 0.3
"""How much of B each further row of tiles seems to read again, where tiles are shorter than a product."""
SMS, CLUSTERS = 132, {1: 132, 2: 66, 3: 39, 4: 30, 6: 17, 8: 15}
"""SMs of an H200, and how many clusters of so many CTAs were there at once on it, with a CTA an SM; two make twice as
many. One cluster more took a second turn. A cluster lies in one GPC, so sizes that do not divide its SMs leave some
out."""
WARPGROUP_ROWS = 64
"""Rows of a product."""
LEAST_COLUMNS = 32
"""Columns that a product takes the time of at least: it reads 64 rows of its first factor from shared memory."""
FITTED_ON = "NVIDIA H200"
"""The card that constants were fitted to, by its name."""
MHZ = 1940
"""Cycles a microsecond: the clock of an H200 under loads that power does not bound."""
LAUNCH_US = 4.6
"""What every launch takes beside its cycles, as CUDA events see it."""


def microseconds(cycles: float) -> float:
    """About the time of a launch that costs so many cycles."""
    return LAUNCH_US + cycles / MHZ


def cost(shape: Shape, m: int, n: int, k_bytes: int, sms: int, promoted: bool, gathered: bool = False) -> Cost:
    """Cycles the problem takes with this tile, by term. ``k_bytes`` is k times the bytes of an element of A.

    ``gathered`` are scales of A that lie along k.
    """
    if shape.splits is not None:
        return _few_rows(shape, shape.splits, m, n, k_bytes, sms, promoted)
    ctas = shape.cluster[0] * shape.cluster[1]
    units = -(-m // (shape.m * shape.cluster[0])) * -(-n // (shape.n * shape.cluster[1]))
    at_once, blocks = max(1, sms * shape.ctas_per_sm // ctas), -(-k_bytes // 128)
    name, block = _block(shape, m, n, units * ctas, sms, promoted, gathered)
    tile = {name: blocks * block, "epilogue": _epilogue(shape, blocks * block)}
    left, splits = _sharing(shape, units, at_once, blocks)
    if left:
        name, block = _block(shape, m, n, left * splits, sms, promoted, gathered)
        loop = -(-blocks // splits) * block
        share = {name: loop, "epilogue": _epilogue(shape, loop)}
        meeting = MEETING + splits * shape.m * shape.n * MEETING_SUMS
        compute = added({each: units // at_once * time for each, time in tile.items()}, share, {"meeting": meeting})
    else:
        compute = in_waves(tile, units / at_once, _waves(shape, m, n, units, at_once, k_bytes, sms, promoted))
    start = {"start": SOLE_START if shape.ctas_per_sm == 1 else 0}
    few_rows = shape.swap and shape.m < WARPGROUP_ROWS
    memory = _moved(shape, m, n, k_bytes) / DEVICE_BYTES[_goes_first(shape, n, k_bytes)]
    return Cost(beside_memory({**compute, **start}, memory, SWAPPED_OVERLAP if few_rows else OVERLAP))


def _epilogue(shape: Shape, loop: float) -> float:
    """Cycles behind a K loop of so many, which is what the next one can hide where it runs beside."""
    stored = _stored(shape)
    return max(0, EPILOGUE[stored] - (loop if shape.overlap else 0)) + shape.m * shape.n / STORED[stored]


def _stored(shape: Shape) -> str:
    """How a tile of bf16 is stored: by each warp, or staged, swapped or not; a wide one as a whole, if never cut."""
    if shape.swap:
        return "direct" if shape.share or shape.m < WARPGROUP_ROWS else "swapped"
    whole = shape.m == WARPGROUP_ROWS * shape.groups and shape.cut == 1  # a kernel that can cut takes 3 to 7 % more
    return "whole" if whole and STAGED_ALONE < shape.n <= shape.staging * STAGED_COLUMNS else "staged"


def _sharing(shape: Shape, units: int, at_once: int, blocks: int) -> tuple[int, int]:
    """Tiles behind whole waves whose K blocks CTAs share, and how many share one; none where nobody does."""
    if not isinstance(shape.schedule, SplitK):
        return 0, 1
    left, splits = shape.schedule.shared(units, at_once), shape.schedule.sharing(units, at_once, blocks)
    return (left, splits) if splits > 1 else (0, 1)


def _waves(shape: Shape, m: int, n: int, units: int, at_once: int, k_bytes: int, sms: int, promoted: bool) -> float:
    """Waves of tiles; those that are cut count for what a part takes of a tile's time."""
    if not isinstance(shape.schedule, CutRemainder):
        return -(-units // at_once)
    whole, cut = shape.schedule.waves(units, at_once)
    part = replace(shape, n=shape.n // shape.cut, cut=1)
    blocks = (_block(each, m, n, units, sms, promoted)[1] for each in (part, shape))
    loops = [-(-k_bytes // 128) * block for block in blocks]
    times = [loop + _epilogue(each, loop) for loop, each in zip(loops, (part, shape), strict=True)]
    return whole + cut * CUT_PART * times[0] / times[1]


def _copies(shape: Shape, m: int, n: int, tiles: int, sms: int) -> float:
    """Cycles of the rows and columns of a tile: of the slowest one where all are in one wave, else of the mean one.

    They come as fast as an SM can take them, or as L2 can serve all CTAs that are there at once.
    """
    beside, at_once = min(shape.ctas_per_sm, -(-tiles // sms)), min(tiles, sms * shape.ctas_per_sm)
    line, zeros = 128 * max(beside / L2_BYTES, at_once / L2_ALL), beside * PAST_LINE
    sides = ((shape.m, m, shape.part_rows), (shape.n, n, None))
    return sum(_side(size, extent, part, line, zeros, tiles <= sms) for size, extent, part in sides)


def _side(size: int, extent: int, part: int | None, line: float, zeros: float, one_wave: bool) -> float:
    """Cycles of a tile's rows, or columns, by those of one and of one past the end, where whole parts stay away."""
    count, past = -(-extent // size), -extent % size
    whole, last = size * line, (size - past) * line + (past % part if part else past) * zeros
    if one_wave:
        return max(whole, last) if count > 1 else last
    return whole + (last - whole) / count


def _shared(shape: Shape) -> float:
    """Cycles that shared memory needs for a K block: it is written once, and read by every product of 64 rows."""
    rows, columns = (shape.n, shape.m) if shape.swap else (shape.m, shape.n)
    read = -(-rows // WARPGROUP_ROWS) * (WARPGROUP_ROWS + columns)
    return (shape.m + shape.n + read) * 128 / SHARED_BYTES


def _block(
    shape: Shape, m: int, n: int, tiles: int, sms: int, promoted: bool, gathered: bool = False
) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles, in a problem of so many tiles."""
    between = BETWEEN_ROUNDS if shape.rounds and promoted else BETWEEN_PRODUCTS[promoted]
    between += GATHERED if gathered else 0
    rows, half, turn = shape.m, shape.ctas_per_sm > 1, float(TURN[promoted])
    if shape.swap:
        slot = (shape.m + shape.n) * 128 * shape.ctas_per_sm
        rows, half = max(shape.m, LEAST_COLUMNS), False
        turn = max(SWAPPED_TURN[promoted], SWAPPED_RING * slot / RING_BYTES)
    bounds = {
        "products": rows * shape.n / PRODUCT_ROWS[promoted] + between,
        "shared memory": _shared(shape),
        "copies": _copies(shape, m, n, tiles, sms) * (HALF_RING if half else 1),
        "ring turn": turn,
    }
    name = max(bounds, key=lambda each: bounds[each])
    return name, bounds[name]


def _goes_first(shape: Shape, n: int, k_bytes: int) -> bool:
    """Whether L2 evicts B first."""
    return (shape.stream or shape.splits is not None) and n * k_bytes <= READ_ONCE_BYTES


def _moved(shape: Shape, m: int, n: int, k_bytes: int) -> float:
    """Bytes from and to device memory: tiles below one another read B at once, not always the same time."""
    again = READ_AGAIN * (-(-m // shape.m) - 1) if shape.m < WARPGROUP_ROWS else 0
    written = 0 if _goes_first(shape, n, k_bytes) else min(n * k_bytes, WRITTEN_BYTES)
    return (m + (1 + again) * n) * k_bytes + 2 * m * n + written


def _few_rows(shape: Shape, splits: int, m: int, n: int, k_bytes: int, sms: int, promoted: bool) -> Cost:
    """Cycles with a CTA for every tile, or ``splits`` that share its K blocks."""
    rows, blocks = -(-m // shape.m), -(-k_bytes // 128)
    tiles = rows * -(-n // shape.n)
    at_once = max(1, CLUSTERS[splits] * shape.ctas_per_sm * sms // SMS)
    lines = max(shape.m, LEAST_COLUMNS if shape.swap else WARPGROUP_ROWS)
    bounds = {
        "products": lines * shape.n / PRODUCT_ROWS[promoted] + FEW_BETWEEN,
        "shared memory": _shared(shape),
        "copies": _copies(shape, m, n, tiles * splits, sms),
        "ring turn": FEW_TURN[promoted],
    }
    name = max(bounds, key=lambda each: bounds[each])
    elements = shape.m * shape.n
    tile = {name: -(-blocks // splits) * bounds[name], "epilogue": FEW_TAIL + elements / 16}
    compute = in_waves(tile, tiles / at_once, -(-tiles // at_once))
    push = {"push": PUSH + elements / 4 if splits > 1 else 0}
    drawing = min(1.0, max(1, tiles) * splits / (FEW_SATURATE * sms))  # an empty problem has no tile
    memory = _moved(shape, m, n, k_bytes) / (FEW_DEVICE_BYTES[_goes_first(shape, n, k_bytes)] * drawing)
    return Cost(beside_memory({**compute, **push}, memory, FEW_OVERLAP))
