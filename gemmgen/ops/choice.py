"""Which of an operator's shipped tiles serves a problem: a small rule that anybody can work out by hand.

A tile's cost is the time its waves take: the number of waves (tiles over resident CTAs, rounded up) times the time of
one tile, which is the slower of its products and of the bytes it pulls from L2, per K block, plus a fixed epilogue.
The smallest cost wins; among equals the one listed first.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.catalog import Shape

PRODUCTS_PER_CYCLE = 4096
"""Rows x columns a tensor core of one SM advances per cycle over 128 bytes of K: 1024 cycles for 256 x 128, over 8."""
BYTES_PER_CYCLE = 42
"""L2 to shared memory, one SM, measured on an H100 streaming weights."""
LATENCY = 1500
"""Cycles to the first full slot."""


def tile_cost(shape: Shape, k_blocks: int) -> float:
    """Cycles one tile takes on one SM."""
    rows = max(shape.m, 64)
    products = rows * shape.n / 32
    copies = (shape.m + shape.n) * 128 / BYTES_PER_CYCLE
    overhead = 60 if shape.m * shape.n >= 128 * 192 else 90
    return k_blocks * (max(products, copies) + overhead) + shape.m * shape.n / 16 + LATENCY


def choose(shapes: Sequence[Shape], m: int, n: int, k: int, sms: int) -> Shape:
    """The shape with the cheapest waves. ``k`` in elements of one byte (double it for bf16)."""
    k_blocks = -(-k // 128)

    def cost(shape: Shape) -> float:
        cluster_m, cluster_n = shape.cluster
        units = -(-m // (shape.m * cluster_m)) * -(-n // (shape.n * cluster_n))
        waves = -(-units // (sms * shape.ctas_per_sm // (cluster_m * cluster_n)))
        return waves * tile_cost(shape, k_blocks)

    return min(shapes, key=cost)
