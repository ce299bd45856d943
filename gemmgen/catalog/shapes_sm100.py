"""Which tiles each dense operator has on datacenter Blackwell. Chosen by arithmetic: no such device was measured on."""

from __future__ import annotations

from gemmgen.catalog.dense_sm100 import PairShape

NARROW_SHAPES = (PairShape(16), PairShape(32), PairShape(64))
"""For outputs of few columns, or few tiles; B must be k-contiguous to be cut this fine."""

LOW_SHAPES = (PairShape(16, swap=True), PairShape(32, swap=True), PairShape(64, swap=True))
"""For outputs of few rows, as decoding has them: columns of the output are on the lanes."""

BF16_SHAPES_SM100 = (*LOW_SHAPES, *NARROW_SHAPES, PairShape(128), PairShape(128, ctas=2), PairShape(256, ctas=2))
"""For A [m, k] times B [n, k] into bf16 without C: 256 columns leave room for two accumulators."""

SCALED_SHAPES_SM100 = (*BF16_SHAPES_SM100[:-1], PairShape(224, ctas=2), PairShape(256, ctas=2))
"""Likewise with block scales: two accumulators of 224 columns fit beside them, of 256 only one."""

GENERAL_SHAPES_SM100 = (*LOW_SHAPES, PairShape(128), PairShape(256, ctas=2))
"""For every other combination of output type, C and granularity; A must be k-contiguous for the low ones."""

TURNED_SHAPES_SM100 = GENERAL_SHAPES_SM100[len(LOW_SHAPES) :]
"""For A that is m-contiguous: 64 rows of bf16 are the fewest that it is cut into, 128 of 8 bits."""

TF32_SHAPES_SM100 = (LOW_SHAPES[0], PairShape(128), PairShape(256, ctas=2))
"""For fp32 factors that are multiplied as tf32."""

LAUNCH_CONTROL_SHAPES = (PairShape(128, launch_control=True), PairShape(224, ctas=2, launch_control=True))
"""Written out for callers that ask for launch control; any other tile takes it as well."""

DIRECT_SHAPES_SM100 = (PairShape(128),)
"""For outputs whose pitch or row is no multiple of 16 bytes, which TMA cannot store to."""
