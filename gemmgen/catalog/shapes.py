"""Which tiles each dense operator ships with: every choice the dispatcher may make is one of these."""

from __future__ import annotations

from gemmgen.catalog.dense import Shape

FP8_SHAPES = (
    Shape(64, 16, groups=1),
    Shape(64, 32, groups=1),
    Shape(64, 64, groups=1),
    Shape(64, 128, groups=1),
    Shape(128, 32),
    Shape(128, 64),
    Shape(128, 128),
    Shape(128, 144),
    Shape(128, 192),
    Shape(192, 176, groups=3, width=88),
    Shape(256, 128, unroll=8),
    Shape(128, 256, width=128),
    Shape(128, 128, cluster=(2, 1)),
)
"""For D in bf16, no C, A's scales m-contiguous and B's 128x128: the form inference calls."""

BF16_SHAPES = (
    Shape(64, 16, groups=1),
    Shape(64, 32, groups=1),
    Shape(64, 64, groups=1),
    Shape(64, 128, groups=1),
    Shape(128, 32),
    Shape(128, 64),
    Shape(128, 128),
    Shape(128, 192),
    Shape(256, 128),
    Shape(128, 256),
    Shape(128, 256, cluster=(2, 1)),
    Shape(128, 128, cluster=(1, 2)),
)
"""For A [m, k] times B [n, k] into bf16 without C."""

GENERAL_SHAPES = (Shape(64, 32, groups=1), Shape(64, 128, groups=1), Shape(128, 128))
"""For every other combination of layout, output type, C and scale layout."""

DIRECT_SHAPES = (Shape(64, 128, groups=1),)
"""For outputs whose pitch is no multiple of 16 bytes, which TMA cannot store to."""
