"""Tiles of sm90 that dense operators take beside those every combination is written out with.

What inference calls most, ``nt`` into bf16 without C, has all of its tiles written out (``shapes``). Other layouts,
outputs, C and scales have a few written out and these besides: their text is that of a written one but for a few lines,
and is made when a problem first asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.catalog.dense import Shape
from gemmgen.catalog.shapes import ALL_BUT_BESIDE, FEWER_REGISTERS
from gemmgen.ir import DType

_FEW_ROWS = tuple(Shape(rows, 64, groups=1, unroll=1, ctas_per_sm=2, splits=4) for rows in (32, 64))
_STREAMING = tuple(Shape(64, n, groups=1, stream=True) for n in (64, 192))
_SWAPPED = (
    Shape(16, 64, groups=1, ctas_per_sm=2, stream=True, swap=True),
    Shape(16, 128, stream=True, swap=True),
)
_BESIDE_C = (
    Shape(128, 64),
    Shape(128, 192, unroll=1, staging=3, raster=16),
    Shape(128, 224, unroll=1, raster=16),
    Shape(192, 176, groups=3),
    Shape(256, 128, unroll=1),
)
_WITHOUT_C = (Shape(128, 128, unroll=1, share=True), Shape(256, 192, unroll=1, staging=3))
"""Of ``_WITHOUT_C``: registers do not suffice for a C beside these."""

_WIDE = Shape(128, 256, width=128, unroll=1, rounds=True, strips=32, raster=16)
_TALL = Shape(256, 128, unroll=1, staging=4, overlap=True, rounds=True, strips=32)
_THREE = Shape(192, 128, groups=3, unroll=1, rounds=True, strips=32)
_THREE_OF_COLUMNS = Shape(192, 128, groups=3, unroll=1, rounds=True)
"""With a scale of B for each column, which no strip holds; and where lanes that copy A's have no time for strips."""


def further_bf16(layout: str, d: DType, residual: bool) -> Iterator[Shape]:
    """For ``bf16_gemm_{layout}`` but nt into bf16 without C; a factor that lies along n comes in boxes of 64.

    In nn and tn the fastest of all tiles of nt took 0.86 to 0.88 of cuBLAS's time for 16 to 128 rows and 0.97 above,
    where the fastest of four written out took 1.07 to 1.10, and 1.05 (48 problems, H200). These are most of those that
    were the fastest somewhere, without boxes of a part of the rows; what the rule picks of them takes 6 to 10 % less
    than the fastest written out (28 problems of four other combinations).
    """
    if (layout, d, residual) == ("nt", DType.BF16, False):
        return
    along_k = layout[0] == "n"  # else a tile has whole products' rows
    yield from _FEW_ROWS if along_k else _FEW_ROWS[1:]
    yield from _STREAMING
    if along_k:
        yield from _SWAPPED
    yield from _BESIDE_C
    if not residual:
        yield from _WITHOUT_C


def further_fp8(d: DType, residual: bool, sfa_major: str, sfb_columns: int) -> Iterator[Shape]:
    """For ``fp8_gemm_nt``, but into bf16 without C and with 128x128 scales of B and A's along m.

    The tiles that the rule picks take 11 % less than those written out for 1024 to 8192 rows (30 problems), and 4 to 6
    % less for 16 to 2048 (28 problems, H200). Where A's scales lie along k, 10 to 16 % less for 1024 to 8192 (four
    problems); scales along m take another 6 to 12 % less then, and with few rows nothing else was faster.
    """
    common = (d, residual, sfb_columns) == (DType.BF16, False, 128)
    if sfa_major != "m":
        if common:
            yield from (replace(_WIDE, overlap=True), _THREE_OF_COLUMNS)
        return
    if common:
        return
    yield from _FEW_ROWS
    yield from _STREAMING if sfb_columns == 128 else _STREAMING[:1]
    if sfb_columns == 128:
        yield from (_WIDE, _THREE) if residual or d != DType.F32 else (_WIDE, _THREE, _TALL)
    elif not residual:
        yield from (FEWER_REGISTERS, replace(_THREE_OF_COLUMNS, overlap=True))
        yield ALL_BUT_BESIDE if d == DType.F32 else replace(_WIDE, strips=1)
    elif d == DType.F32:  # a C in bf16 is widened, for which registers do not suffice
        yield from (ALL_BUT_BESIDE, _THREE_OF_COLUMNS)
