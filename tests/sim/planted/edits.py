"""All planted mistakes, gathered."""

from __future__ import annotations

from . import (
    barrier_edits,
    copy_edits,
    early_edits,
    found_group_edits,
    matrix_edits,
    meeting_edits,
    partials_edits,
    prologue_edits,
    push_edits,
    reduction_edits,
    sm90_swapped_edits,
    sm100_barrier_edits,
    sm100_group_edits,
    sm100_launch_edits,
    sm100_product_edits,
    sm120_group_edits,
    sm120_product_edits,
    sm120_ring_edits,
    strip_edits,
    tile_edits,
)
from .edit import EDITS, Edit

__all__ = [
    "EDITS",
    "Edit",
    "barrier_edits",
    "copy_edits",
    "early_edits",
    "found_group_edits",
    "matrix_edits",
    "meeting_edits",
    "partials_edits",
    "prologue_edits",
    "push_edits",
    "reduction_edits",
    "sm90_swapped_edits",
    "sm100_barrier_edits",
    "sm100_group_edits",
    "sm100_launch_edits",
    "sm100_product_edits",
    "sm120_group_edits",
    "sm120_product_edits",
    "sm120_ring_edits",
    "strip_edits",
    "tile_edits",
]
