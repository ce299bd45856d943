"""Which tiles each dense operator ships with; those it may take besides are in ``further``."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.catalog.dense import Shape
from gemmgen.ir import DType

PART_ROWS = 32
"""Rows of the boxes that the last tiles of A come in, where they are less than the tile's."""


def _in_parts(*shapes: Shape) -> tuple[Shape, ...]:
    """The same tiles, for which no rows past the end are fetched in whole parts.

    That is for tiles which copies bound, in which 33 rows or more may be past the end: on an H200 with k of 4096 and
    7168 those took up to half as long, and 5 to 30 % less where they are the fastest. It gains nothing for tiles of 256
    columns, which products bound.
    """
    return tuple(replace(shape, part_rows=PART_ROWS) for shape in shapes)


FEW_ROWS = tuple(
    Shape(rows, n, groups=1, unroll=1, ctas_per_sm=2, splits=splits)
    for rows in (16, 32, 64)
    for n, splits in ((32, 1), (32, 2), (32, 8), (64, 4), (64, 8))
)
"""For up to 64 rows: a CTA for every tile, or for a share of its K blocks."""

STREAMING = (
    Shape(64, 32, groups=1, stream=True),
    Shape(64, 64, groups=1, ctas_per_sm=2, stream=True),
    Shape(64, 64, groups=1, stream=True),
    Shape(64, 96, groups=1, ctas_per_sm=2, stream=True),
    Shape(64, 96, groups=1, stream=True),
    Shape(64, 128, groups=1, stream=True),
    Shape(64, 160, groups=1, stream=True),
    Shape(64, 192, groups=1, stream=True),
)
"""For few rows too, where a CTA walks several tiles."""

SWAPPED = (
    Shape(16, 64, groups=1, ctas_per_sm=2, stream=True, swap=True),
    Shape(16, 128, ctas_per_sm=2, stream=True, swap=True),
    Shape(16, 128, stream=True, swap=True),
)
"""For up to 16 rows of much weight: no tile has rows that nobody asked for, so its ring holds twice as much of B.

On an H200 the fastest of them takes 5 % (FP8) and 3 % (BF16) less than that of seven others, over six problems each.
"""


def _swapped_few(m: int, n: int, splits: int, ctas_per_sm: int = 1, k_bytes: int = 128) -> Shape:
    return Shape(m, n, groups=n // 64, unroll=1, splits=splits, swap=True, ctas_per_sm=ctas_per_sm, k_bytes=k_bytes)


FP8_SWAPPED_FEW = (
    *(_swapped_few(8, 128, splits, ctas_per_sm=2) for splits in (1, 2, 4, 8)),
    *(_swapped_few(16, 128, splits, ctas_per_sm=2) for splits in (1, 4, 8)),
    _swapped_few(24, 64, 8, ctas_per_sm=2),
    _swapped_few(32, 64, 4, ctas_per_sm=2),
    _swapped_few(40, 128, 2),
)
"""For up to 40 rows: a CTA for every tile, or for a share of its K blocks, and no rows that nobody asked for.

On an H200, over 94 problems of up to 40 rows, the fastest of them takes 2.0 % less than the fastest of the twelve or
fourteen others that cost least by the rule, 9 % at best.
"""
BF16_SWAPPED_FEW = (
    *(_swapped_few(8, 128, splits, k_bytes=256) for splits in (1, 4, 8)),
    _swapped_few(8, 64, 8, ctas_per_sm=2, k_bytes=256),
    _swapped_few(16, 128, 8, k_bytes=256),
    _swapped_few(24, 64, 8, ctas_per_sm=2, k_bytes=256),
    _swapped_few(40, 128, 8, k_bytes=256),
)
"""Likewise, 1.3 % less. K blocks of 128 elements are half as many turns of the ring."""

SHARED = _in_parts(
    Shape(128, 128, unroll=1, share=True),
    Shape(128, 160, unroll=1, share=True),
)
"""For narrow outputs of long k, whose tiles fill less than half of the SMs, or of a last wave."""

SWAPPED_TALL = (
    *_in_parts(Shape(96, 128, unroll=1, staging=1, swap=True), Shape(160, 128, unroll=1, staging=1, swap=True)),
    Shape(136, 128, unroll=1, staging=1, swap=True),
    Shape(144, 128, unroll=1, staging=1, swap=True, part_rows=48),
    Shape(176, 128, unroll=1, staging=1, staged_rows=88, swap=True),
    Shape(112, 256, unroll=1, staging=1, swap=True),
    Shape(96, 256, unroll=1, staging=1, swap=True),
    Shape(104, 256, unroll=1, staging=1, swap=True),
    Shape(144, 256, unroll=1, staging=1, staged_rows=24, swap=True),
    Shape(168, 256, unroll=1, staging=1, staged_rows=24, swap=True),
    Shape(112, 192, groups=3, unroll=1, staging=1, staged_rows=56, swap=True),
    Shape(136, 192, groups=3, unroll=1, staging=1, swap=True),
    Shape(144, 192, groups=3, unroll=1, staging=1, swap=True),
    Shape(160, 192, groups=3, unroll=1, staging=1, staged_rows=80, swap=True),
    Shape(200, 192, groups=3, unroll=1, staging=1, staged_rows=40, swap=True),
)
"""For some hundreds of rows that fill other tiles badly; in steps of 8 there is a tile for most waves.

On an H200, over 155 problems drawn at random, the fastest of the last eight takes 1.4 % less than the fastest of seven
others that cost least by the rule, 15 % at best. In FP8, whose scales of B are one a product's row then, such tiles
were 2 to 40 % slower (32 problems).
"""

SWAPPED_SHARED = (
    Shape(72, 192, groups=3, unroll=1, swap=True, share=True),
    Shape(80, 192, groups=3, unroll=1, swap=True, share=True),
    Shape(88, 192, groups=3, unroll=1, swap=True, share=True),
    Shape(112, 128, unroll=1, swap=True, share=True),
)
"""For up to some hundreds of rows, narrow outputs and long k, in BF16.

On an H200, over 86 problems of 40 to 420 rows and k from 3840 on, the fastest of them takes 1.2 % less than the fastest
of the others that cost least by the rule, 12 % at best. 104x192 would gain another 0.2 %, but spills.
"""

FP8_SHAPES = (
    *FEW_ROWS,
    *SWAPPED,
    *FP8_SWAPPED_FEW,
    *_in_parts(
        Shape(64, 64, groups=1, unroll=1, splits=1),
        Shape(64, 64, groups=1, unroll=1, ctas_per_sm=2, splits=1),
        Shape(64, 96, groups=1, unroll=1, ctas_per_sm=3, splits=1),
        Shape(128, 128, unroll=1, splits=1),
        Shape(64, 96, groups=1, unroll=1, splits=3),
        Shape(128, 48, unroll=1, splits=8),
        Shape(128, 64, unroll=1, splits=6),
        Shape(128, 96, unroll=1, splits=4),
        Shape(64, 96, groups=1, unroll=1, ctas_per_sm=2, splits=1),
        Shape(128, 32, unroll=1, splits=2),
        Shape(128, 64, unroll=1, splits=1),
        Shape(128, 64, unroll=1, splits=2),
        Shape(128, 64, unroll=1, splits=4),
        Shape(64, 16, groups=1, unroll=8, stream=True),
        *STREAMING,
        Shape(128, 16, unroll=8),
        Shape(128, 32),
        Shape(128, 64),
        Shape(128, 128, unroll=8, staging=4),
        Shape(128, 144, unroll=1, rounds=True, strips=32),
        Shape(128, 160, unroll=1, rounds=True, strips=32),
        Shape(128, 176, unroll=1, overlap=True),
        Shape(128, 192, unroll=1, staging=3, rounds=True, strips=32, raster=16),
        Shape(128, 192, unroll=1, staging=3, cut=3, rounds=True, strips=32, raster=16),
    ),
    Shape(192, 128, groups=3, unroll=1, rounds=True, strips=32),
    Shape(192, 160, groups=3, width=80, unroll=1, rounds=True, strips=32),
    Shape(128, 224, width=112, unroll=1, rounds=True, strips=32, raster=16),
    Shape(128, 256, width=128, unroll=1, overlap=True, rounds=True, strips=32, raster=16),
    Shape(256, 128, unroll=1, staging=4, overlap=True, rounds=True, strips=32),
    Shape(256, 128, unroll=1, staging=4, cluster=(2, 1)),
    *SHARED,
    Shape(192, 96, groups=3, unroll=1, share=True),
)
"""For D in bf16, no C, A's scales m-contiguous and B's 128x128: the form inference calls.

The loop tests the next slot itself, so large tiles gain nothing from more unrolling, and compile in half the time. Two
products of a warpgroup are staged beside others that follow, 0.5 to 7 % faster, the more the shorter k is; with strips
of scales and whole rounds a single one gains nothing from that, and 128x176 is as fast without those: what two
warpgroups do to each other's turns at the tensor core is measured, not understood. Walking 2048 rows together gains 1
to 4 % where n is large; 4096 gain as much there, and lose 1 to 5 % at 128x192 where k is 7168 and more. A tile of 192
columns is staged as a whole. 192x160 and 128x224 serve problems of which other tiles leave the last wave mostly empty,
with up to a fifth less time.
"""

BF16_SHAPES = (
    *(replace(shape, k_bytes=256) if shape.n == 32 and shape.splits != 2 else shape for shape in FEW_ROWS),
    *SWAPPED,
    *BF16_SWAPPED_FEW,
    *SWAPPED_TALL,
    *SWAPPED_SHARED,
    *_in_parts(
        Shape(128, 48, unroll=1, splits=8),
        Shape(128, 64, unroll=1, splits=4),
        Shape(128, 96, unroll=1, splits=4),
        Shape(64, 16, groups=1, k_bytes=256, stream=True),
        *STREAMING,
        Shape(128, 16),
        Shape(128, 32),
        Shape(128, 64),
        Shape(128, 128),
        Shape(128, 144),
        Shape(128, 160, unroll=1, raster=16),
        Shape(128, 176, unroll=1, staging=3, raster=16),
        Shape(128, 192, unroll=1, staging=3, raster=16),
    ),
    Shape(128, 208, unroll=1, staging=3, raster=16),
    Shape(128, 224, unroll=1, raster=16),
    Shape(192, 128, groups=3, unroll=1, raster=16),
    Shape(192, 176, groups=3),
    Shape(128, 256, unroll=1, raster=16),
    Shape(128, 256, unroll=1, cluster=(2, 1)),
    Shape(256, 128, unroll=1),
    Shape(256, 160, unroll=1, raster=16),
    Shape(256, 192, unroll=1, staging=3),
    Shape(192, 192, groups=3, unroll=1, staging=1),
    Shape(256, 128, unroll=1, cluster=(1, 2)),
    *SHARED,
    Shape(192, 112, groups=3, unroll=1, share=True),
    *_in_parts(Shape(64, 96, groups=1, unroll=1, share=True)),
)
"""For A [m, k] times B [n, k] into bf16 without C. Among equal tiles the pair that shares B is up to 2 % faster.

Widths of 160, 176, 208 and 224 serve problems of which other tiles leave the last wave mostly empty. 128x208, 192x128,
256x160 and the swapped 136x128, 176x128 and 144x256 take 0.5 % less where the rule picks among them, too, over 520
problems drawn at random (H200).
"""

FP8_GENERAL_SHAPES = _in_parts(Shape(64, 32, groups=1), Shape(64, 128, groups=1, stream=True), Shape(128, 128))
"""For every other combination of output type, C and scale layout; ``further`` has more."""

BF16_GENERAL_SHAPES = (*FP8_GENERAL_SHAPES, Shape(128, 256, unroll=1))
"""For every other combination of operand layout, output type and C."""

DIRECT_SHAPES = _in_parts(Shape(64, 128, groups=1, unroll=2))
"""For outputs whose pitch is no multiple of 16 bytes, which TMA cannot store to."""

ALL_REGISTERS = Shape(256, 128, unroll=1, overlap=True, rounds=True, staging=4, raster=4, registers=(24, 240))
"""For gradients in FP8: what it holds, sums, a product, scales of columns, leaves the threads that copy 24 registers.

Two products of 64 rows share scales of columns, which a warpgroup else takes half a product's time to read. In four
problems of groups of k it takes 5 to 10 % less than at 112 columns, or than three warpgroups of 64 rows, before it was
staged beside products, and 4 % less since (H200); of single products waves decide which of these is faster.
"""
ALL_BUT_BESIDE = replace(ALL_REGISTERS, overlap=False, staging=2)
"""In its place where nothing is added: an output is then written for a k of 0, too, which is where registers end."""
FEWER_REGISTERS = Shape(256, 112, unroll=1)
"""In its place where lanes copy scales or a C is read."""

GRADIENT_SHAPES: dict[DType, tuple[Shape, ...]] = {
    DType.BF16: (
        Shape(64, 32, groups=1),
        Shape(64, 128, groups=1),
        Shape(128, 128),
        Shape(128, 256, unroll=1),
        Shape(256, 128, unroll=1),
    ),
    DType.E4M3: (
        Shape(64, 32, groups=1),
        Shape(64, 128, groups=1),
        Shape(128, 128),
        Shape(192, 128, groups=3, unroll=1, overlap=True, rounds=True),
        ALL_REGISTERS,
    ),
}
"""For products that are added to fp32 sums where they lie, dense and of groups of k, by the type of the factors."""


def gradient_shapes(
    factors: DType, direct_store: bool, sfa_major: str = "m", residual: bool = False, added: bool = False
) -> tuple[Shape, ...]:
    """Tiles of weight gradients, which are often ``added`` up where they lie; one where TMA cannot store.

    Where lanes copy scales along k, or an epilogue reads a C, registers do not suffice for the largest tiles in FP8:
    that of three warpgroups is left out, that of all registers has a smaller one in its place.
    """
    if direct_store:
        return tuple(replace(shape, part_rows=None) for shape in DIRECT_SHAPES)  # in groups of k rows are the same
    shapes, largest = GRADIENT_SHAPES[factors], ALL_REGISTERS if added else ALL_BUT_BESIDE
    if sfa_major != "m" or residual:
        shapes, largest = tuple(shape for shape in shapes if shape.groups < 3), FEWER_REGISTERS
    return tuple(largest if shape is ALL_REGISTERS else shape for shape in shapes)
