"""Which tiles serve groups of rows: each has to be of one group.

Knows what a layout holds and what its groups start at multiples of, and no tile's costs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from gemmgen.ir import FOUND_PARTS, FOUND_ROWS, Arch
from gemmgen.ops.family import S
from gemmgen.ops.groups import Groups

FACTOR_ROWS = 8
"""Rows of a factor along m whose 16-bit elements are the whole 16 bytes that the copy engine starts at."""


def dividing(groups: Groups, shapes: tuple[S, ...], rows: Callable[[S], int], searched: bool = False) -> tuple[S, ...]:
    """The tiles whose rows divide what groups start at; where a launch finds them, also those that begin with them."""
    if groups.by != "ids":
        return shapes

    def fits(rows: int) -> bool:
        return groups.alignment % rows == 0 or (searched and _may_begin(groups.alignment, rows))

    return tuple(shape for shape in shapes if fits(rows(shape)))


def unless_found(arch: str) -> str:
    """What else than tiles that divide serves on sm90, for a message that says why none does."""
    if arch != Arch.SM90:
        return ""
    return f", or begin where a launch finds groups: with {FOUND_ROWS} and {FOUND_PARTS} times as many rows at most"


def _may_begin(alignment: int, rows: int) -> bool:
    """Whether tiles of so many rows may begin at any multiple of the alignment, and at every tile's rows from there."""
    return gcd(alignment, rows) % FACTOR_ROWS == 0 and alignment <= FOUND_ROWS
