"""Which of an operator's shipped tiles serves a problem: a small rule that anybody can work out by hand.

A tile costs, per K block, the slowest of three: its products on the tensor core plus what the math warps do between
products; its bytes through L2; and the latency of one turn of the ring. Add an epilogue, multiply by the number of
waves, and never go below the time device memory needs. The cheapest shape wins; among equals the one listed first.
``cost`` keeps these as named terms that add up, which is what ``gemmgen explain`` prints.
The constants were fitted to an H100's times for 42 problems (docs/performance.md) and are in cycles and bytes.
"""

from __future__ import annotations

from dataclasses import replace

from gemmgen.catalog import Shape
from gemmgen.ir import CutRemainder
from gemmgen.ops.cost import Cost, beside_memory, in_waves

PRODUCT_ROWS = 32
"""Rows x columns of the tile over this are the cycles a tensor core needs for 128 bytes of K."""
BETWEEN_PRODUCTS = {False: 60, True: 200}
"""Cycles between K blocks without and with promotion."""
TURN = {False: 180, True: 255}
"""Cycles of the shortest turn of the ring."""
L2_BYTES = 70
"""Bytes a cycle from L2 into one SM."""
DEVICE_BYTES = 1690
"""Bytes a cycle from device memory, all SMs together."""
EPILOGUE = 600
"""Cycles of an epilogue that runs beside no products, beside one for every 16 elements of the tile."""
SHARED_SM = 1.25
"""How much longer a tile takes when another CTA works on the same SM."""
HALF_RING = 1.6
"""How much slower copies come through the half ring of a CTA made to share its SM."""
SOLE_START = 1000
"""Cycles that a CTA made to fill its SM needs more to start."""
OVERLAP = 0.1
"""Share of the smaller of compute and memory time that is not hidden by the larger."""

MHZ = 1650
"""Cycles a microsecond: the clock of an H100 under these loads."""
LAUNCH_US = 4.7
"""What every launch takes beside its cycles, as CUDA events see it."""


def microseconds(cycles: float) -> float:
    """About the time of a launch that costs so many cycles."""
    return LAUNCH_US + cycles / MHZ


def cost(shape: Shape, m: int, n: int, k_bytes: int, sms: int, promoted: bool) -> Cost:
    """Cycles the problem takes with this tile, by term. ``k_bytes`` is k times the bytes of an element of A."""
    ctas = shape.cluster[0] * shape.cluster[1]
    units = -(-m // (shape.m * shape.cluster[0])) * -(-n // (shape.n * shape.cluster[1]))
    at_once = max(1, sms * shape.ctas_per_sm // ctas)
    name, block = _block(shape, units * ctas, sms, promoted)
    tile = {name: -(-k_bytes // 128) * block, "epilogue": _epilogue(shape)}
    compute = in_waves(tile, units / at_once, _waves(shape, units, at_once, k_bytes, sms, promoted))
    start = {"start": SOLE_START if shape.ctas_per_sm == 1 else 0}
    memory = ((m + n) * k_bytes + 2 * m * n) / DEVICE_BYTES
    return Cost(beside_memory({**compute, **start}, memory, OVERLAP))


def _epilogue(shape: Shape) -> float:
    return (0 if shape.overlap else EPILOGUE) + shape.m * shape.n / 16


def _waves(shape: Shape, units: int, at_once: int, k_bytes: int, sms: int, promoted: bool) -> float:
    """Waves of tiles; those that are cut count for what a part takes of a tile's time."""
    if not isinstance(shape.schedule, CutRemainder):
        return -(-units // at_once)
    whole, cut = shape.schedule.waves(units, at_once)
    part = replace(shape, n=shape.n // shape.cut, cut=1)
    times = [-(-k_bytes // 128) * _block(each, units, sms, promoted)[1] + _epilogue(each) for each in (part, shape)]
    return whole + cut * times[0] / times[1]


def _block(shape: Shape, tiles: int, sms: int, promoted: bool) -> tuple[str, float]:
    """What bounds a K block of 128 bytes, and its cycles, in a problem of so many tiles."""
    crowding = 1.0 if tiles * 4 >= 3 * sms else 0.8
    shared = shape.ctas_per_sm > 1
    bounds = {
        "products": shape.m * shape.n / PRODUCT_ROWS + BETWEEN_PRODUCTS[promoted],
        "copies": (shape.m + shape.n) * 128 / L2_BYTES * crowding * (HALF_RING if shared else 1),
        "ring turn": TURN[promoted],
    }
    name = max(bounds, key=lambda each: bounds[each])
    return name, bounds[name] * (SHARED_SM if shared and tiles > sms else 1)
