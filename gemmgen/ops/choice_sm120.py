"""Which tile serves a problem on workstation Blackwell: arithmetic alone, as no such device was there to measure on.

A K block of 128 bytes costs a CTA the longest of three: its products, ``rows * columns / PRODUCTS`` cycles whatever the
type (half the bytes are multiplied twice as fast); its copies, at ``COPIES`` bytes a cycle a line of 128 bytes for each
row and column that there is; and ``TURN`` cycles. CTAs that share an SM share both. A tile costs ``TILE`` cycles more.
Where CTAs share the K blocks of a tile, each has its share, in whole words of scales, and ``SPLIT`` cycles and the
way of the sums to memory and back come on top. Multiplied by waves, and never below what device memory needs for the
factors and the output, the cheapest shape wins; among equals the one listed first. Shares whose sums would take more
than ``WORKSPACE`` bytes are no choice.
"""

from __future__ import annotations

from gemmgen.catalog import WarpShape
from gemmgen.ops.cost import Cost, beside_memory, in_waves

PRODUCTS = 8
"""Products of 128 bytes of k that an SM finishes in a cycle: 1024 of 8 bits."""
COPIES = 16
"""Bytes a cycle from L2 into one SM."""
TURN = 300
"""Cycles of the shortest turn of the ring."""
MEMORY = 700
"""Bytes a cycle from device memory, all SMs together."""
TILE = 1500
"""Cycles to fill the ring and to store a tile."""
SPLIT = 1500
"""Cycles until the last of the CTAs that share a tile knows that it is."""
WORKSPACE = 32 << 20


def workspace(shape: WarpShape, m: int, n: int) -> int:
    """Bytes of the sums of CTAs that share tiles."""
    if shape.splits == 1:
        return 0
    return -(-m // shape.m) * -(-n // shape.n) * shape.splits * shape.m * shape.n * 4


def allowed(shapes: tuple[WarpShape, ...], m: int, n: int) -> tuple[WarpShape, ...]:
    """The tiles whose sums take no more memory than ``WORKSPACE``."""
    return tuple(shape for shape in shapes if workspace(shape, m, n) <= WORKSPACE)


def cost(shape: WarpShape, m: int, n: int, k_bytes: int, sms: int, word_bytes: int = 128, groups: int = 1) -> Cost:
    """Cycles a problem takes with this tile, by term; ``word_bytes`` of k have their scales in one word.

    Groups are as many problems of ``m`` rows each.
    """
    units = groups * -(-m // shape.m) * -(-n // shape.n) * shape.splits
    at_once = sms * shape.ctas_per_sm
    words = -(-k_bytes // word_bytes)
    share = min(k_bytes, -(-words // shape.splits) * word_bytes)
    bounds = {
        "products": shape.m * shape.n / PRODUCTS,
        "copies": (min(shape.m, m) + min(shape.n, n)) * 128 / COPIES,
        "ring turn": TURN,
    }
    name = max(bounds, key=lambda each: bounds[each])
    tile = {name: -(-share // 128) * bounds[name] * shape.ctas_per_sm, "epilogue": TILE}
    if shape.splits > 1:
        tile["meeting"] = SPLIT + (1 + shape.splits) * shape.m * shape.n * 4 / COPIES
    memory = groups * ((m + n) * k_bytes + 2 * m * n) / MEMORY
    return Cost(beside_memory(in_waves(tile, units / at_once, -(-units // at_once)), memory, 0))
