"""The rows (or elements of k) that groups start at multiples of: one number for the process, as callers set it.

Set around a pair of calls and restored, mostly. A call reads it once; captured and compiled calls keep what they read.
"""

from __future__ import annotations

from gemmgen.ops.architecture import family_here
from gemmgen.ops.whole_numbers import whole_numbers

DEFAULT = 128
STEP = 16
"""Alignments are multiples of it: what a tile's rows are multiples of."""
TILES = {"sm90": (64, 128), "sm100": (16, 32, 64, 128), "sm120": (16, 32, 64, 128)}
"""Rows of the tiles that groups are cut into, by architecture; swapped ones, for few rows, count on sm100 and sm120.

On sm90 only swapped tiles divide an alignment of 16 or 32, and not every epilogue has a form for those. Others begin
where a launch finds a group, with 4095 and in 1024 times as many rows at most.
"""

_alignment: int = DEFAULT


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows that a contiguous layout's groups start at multiples of, and k of k-grouped products; 128 by default."""
    return _alignment


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Set it for the process, from the next call on: a multiple of 16.

    Kernels for it are made at the first call that needs them. Calls by row ids take tiles whose rows divide it; on sm90
    also others, to 4095 and in 1024 times as many rows at most: a launch finds where groups begin.
    """
    global _alignment
    _alignment = checked(new_value)


def stated_or_set(alignment: int | None) -> int:
    """An alignment as a caller states it, or the process's where it was left out."""
    return _alignment if alignment is None else alignment


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """The smallest alignment that still lets a group of ``expected_m`` rows be one tile of the current architecture.

    Fewer rows of padding are wasted with it; 128 where nothing is expected, or without an architecture. ``num_groups``
    is accepted as callers pass it, and checked; it changes nothing, as no tile depends on it.
    """
    for name, value in (("expected_m", expected_m), ("num_groups", num_groups)):
        if value is not None and ((found := whole_numbers((value,))) is None or found[0] < 0):
            raise ValueError(f"{name}: is {value!r}; must be a whole number, 0 or more, or None")
    tiles = TILES.get(family_here() or "")
    if expected_m is None or tiles is None:
        return DEFAULT
    return next((rows for rows in tiles if rows >= expected_m), tiles[-1])


def checked(value: int, name: str = "new_value") -> int:
    """The alignment; refuses what is none."""
    if (found := whole_numbers((value,))) is None or isinstance(value, bool):
        raise TypeError(f"{name}: is a {type(value).__name__}; must be a whole number, such as 128")
    (value,) = found
    if value < STEP or value % STEP:
        raise ValueError(f"{name}: is {value}; must be a positive multiple of {STEP}, such as 128")
    return value


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
