"""Which tiles each dense operator has on workstation Blackwell. Chosen by arithmetic: no such device was measured on.

A K block of 64 bytes leaves room for four or five of them beside a tile of 128x128 in 99 KB, one of 128 bytes for two.
"""

from __future__ import annotations

from gemmgen.catalog.dense_sm120 import WarpShape

SQUARE = WarpShape(128, 128, k_bytes=64)
SMALL = WarpShape(64, 64, warps=(2, 4))
LOW = WarpShape(16, 128, warps=(8, 1), swap=True)

LOW_SHAPES_SM120 = (
    LOW,
    WarpShape(16, 128, warps=(8, 1), swap=True, splits=4),
    WarpShape(16, 128, warps=(8, 1), swap=True, splits=8),
    WarpShape(32, 128, warps=(8, 1), swap=True),
    WarpShape(32, 128, warps=(8, 1), swap=True, splits=4),
)
"""For outputs of few rows, as decoding has them: columns of the output are on the fragments' rows."""

NARROW_SHAPES_SM120 = (WarpShape(128, 16, warps=(8, 1)), WarpShape(128, 32, warps=(8, 1)))
"""For outputs of few columns."""

COMMON_SHAPES_SM120 = (
    *LOW_SHAPES_SM120,
    *NARROW_SHAPES_SM120,
    SMALL,
    WarpShape(64, 64, warps=(2, 4), splits=2),
    WarpShape(64, 64, warps=(2, 4), splits=4),
    WarpShape(64, 64, warps=(2, 2), k_bytes=64, ctas_per_sm=2),
    WarpShape(64, 128, warps=(2, 4)),
    WarpShape(128, 64),
    SQUARE,
    WarpShape(128, 256, warps=(2, 4), k_bytes=64),
    WarpShape(256, 128, k_bytes=64),
)
"""For bf16 outputs without C of k-contiguous factors. Two CTAs of 64x64 an SM copy a third more than one of 128x64, and
one stores its tile while the other multiplies: that pays for short k."""

GENERAL_SHAPES_SM120 = (LOW, SMALL, SQUARE)
"""For every other combination of layout, output type, C and granularity."""

SPREAD_SHAPES_SM120 = (LOW, SMALL, WarpShape(64, 128, warps=(2, 4)), WarpShape(128, 128))
"""For mixes of 8 and 4 bits: a row of 128 elements takes 128 bytes, however narrow the elements."""

DIRECT_SHAPES_SM120 = (WarpShape(64, 128, warps=(2, 4)),)
"""For outputs whose pitch or row is no multiple of 16 bytes, which TMA cannot store to."""

WIDE_WARPS_SM120 = (WarpShape(128, 128, warps=(8, 1), k_bytes=64),)
"""For epilogues that need 128 columns of a row in one warp, as blocks of 128 quantised columns do."""

WIDE_GROUPED_WARPS_SM120 = tuple(WarpShape(rows, 128, warps=(rows // 16, 1), k_bytes=64) for rows in (128, 64, 32, 16))
"""Likewise, for groups by row ids, which may start at multiples of few rows."""
