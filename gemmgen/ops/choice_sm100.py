"""Which tile serves a problem on datacenter Blackwell: arithmetic alone, as no such device was there to measure on.

A tile costs, per 128 bytes of k, its columns and ``ROWS`` for the 128 rows it also loads; then ``STORE`` times its
columns to be stored. That is hidden behind the next tile when two accumulators fit tensor memory, and paid once a wave
when they do not. Multiplied by waves, the cheapest shape wins. Pairs of CTAs load half of B each, so among equals they
win where there are more than one CTA's rows and the pairs fill the device; elsewhere single CTAs do. Then the wider.

Tiles with swapped factors compete by the same rule: a tile of few rows costs its rows, not the 128 columns it is wide,
so they win where the output has fewer rows than columns of the narrowest tile, as in decoding.

Launch control is for callers that ask. It pays where multiprocessors are not all free and alike throughout a call, as
beside another stream's kernels: a static walk ends with its slowest CTA, while one that takes over launches ends when
the last tile does. Where the device is one's own it only adds an answer to every tile; and the hardware's answers are
what no kernel that is known to work has calibrated, so nothing takes it unasked.
"""

from __future__ import annotations

from gemmgen.catalog import PairShape
from gemmgen.ops.cost import Cost, in_waves

ROWS = 64
"""Columns that loading a tile's 128 rows is worth, which is done however narrow it is."""
STORE = 4
"""K blocks that the store of a tile takes."""
COLUMNS_FOR_TWO = {False: 256, True: 224}
"""The widest tile of which two accumulators fit, without and with block scales beside them."""


def cost(shape: PairShape, m: int, n: int, k_bytes: int, sms: int, scaled: bool, groups: int = 1) -> Cost:
    """What a problem costs with this tile, in columns of a K block; pairs and width decide among equals.

    Groups are as many problems of ``m`` rows each.
    """
    (rows, columns), cluster = shape.tile, shape.cluster
    tiles = groups * -(-m // (rows * cluster.m)) * -(-n // (columns * cluster.n))
    at_once = max(1, sms // shape.ctas)
    waves, blocks = -(-tiles // at_once), -(-k_bytes // 128)
    stores = waves if shape.n > COLUMNS_FOR_TWO[scaled] else 1
    lanes, on_lanes = (columns, n) if shape.swap else (rows, m)
    pairs_fit = on_lanes > lanes and tiles * shape.ctas >= sms
    terms = in_waves({"products": blocks * shape.n, "rows": blocks * ROWS}, tiles / at_once, waves)
    return Cost({**terms, "epilogue": stores * STORE * shape.n}, ((shape.ctas == 2) != pairs_fit, -shape.n))
