"""What templates print of a prologue, and of splits that the launch decides on: finished strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemmgen.backends.groups import extents
from gemmgen.ir import Arch, Cast, ClusterSplitK, CutRemainder, KGroups, MmaPlan, Plan, SplitK, SumOfSquares

CAST_HEADERS = {
    Arch.SM90: "gemmgen/cast_fragments.cuh",
    Arch.SM100: "gemmgen/cast_rows.cuh",
    Arch.SM120: "gemmgen/cast_mma.cuh",
}
"""What reads A and casts it."""


def prologue_view(plan: Plan) -> dict[str, Any]:
    """Extents of the schedule, this CTA's K blocks, the sums that meet, and where sums of squares go."""
    shared = isinstance(plan.schedule, SplitK | ClusterSplitK)
    squares = next((step.to for step in plan.prologue if isinstance(step, SumOfSquares)), None)
    sums = "x" if plan.arch == Arch.SM100 else "acc"
    meets = shared and not plan.sliced and not plan.splits
    return {
        "extents": _extents(plan, shared),
        "first_block": "tile.first(k_blocks)" if shared else "0",
        "last_block": "tile.last(k_blocks)" if shared else "k_blocks",
        "blocks_of_tile": "tile.last(k_blocks) - tile.first(k_blocks)" if shared else "k_blocks",
        "any_blocks": "tile.first(k_blocks) < tile.last(k_blocks)" if shared else "k_blocks > 0",
        "shared_sums": f"{sums}, squares" if squares else sums,
        "meeting": (f"{sums}, squares" if squares else sums) if meets else "",
        "squares": squares and f"p.{squares}{_slice(plan, squares)}",
        "prologue": ", ".join(f"{step.kind} to {step.to}" for step in plan.prologue),
        "headers": list(_headers(plan)),
    }


def _extents(plan: Plan, shared: bool) -> str:
    if plan.groups is not None:
        return extents(plan)
    return "p.m, p.n, p.s" if shared and not plan.splits else "p.m, p.n"


def _headers(plan: Plan) -> Iterator[str]:
    if plan.groups is not None:
        if plan.map_edits is not None:
            yield "gemmgen/group_maps.cuh"
        yield "gemmgen/k_groups.cuh" if isinstance(plan.groups, KGroups) else "gemmgen/groups.cuh"
    if isinstance(plan.mma, MmaPlan) and plan.mma.shares > 1:
        yield "gemmgen/shared_k.cuh"
    if isinstance(plan.schedule, ClusterSplitK):
        yield "gemmgen/cluster_split_k.cuh"
    if isinstance(plan.mma, MmaPlan) and plan.mma.sfb_by_lanes:
        yield "gemmgen/lane_scales.cuh"
    if isinstance(plan.mma, MmaPlan) and plan.mma.partials > 1 and plan.mma.whole_rounds:
        yield "gemmgen/partials.cuh"
    if isinstance(plan.mma, MmaPlan) and plan.mma.row_axis == "n":
        if plan.mma.sfa:
            yield "gemmgen/swapped_promote.cuh"
        yield "gemmgen/swapped_store.cuh"
    if isinstance(plan.schedule, SplitK) and not plan.splits:
        yield "gemmgen/even_splits.cuh"
    if isinstance(plan.schedule, CutRemainder):
        yield "gemmgen/cut_remainder.cuh"
    for step in plan.prologue:
        if isinstance(step, Cast):
            yield CAST_HEADERS[plan.arch]
        elif plan.arch != Arch.SM100:
            yield "gemmgen/row_squares.cuh"


def _slice(plan: Plan, operand: str) -> str:
    """What to add to a pointer for this split's slice of an output."""
    return f" + tile.split() * p.{operand}_slice" if plan.sliced else ""


def slice_place(plan: Plan) -> str:
    """Where the output's first element lies, of this split's slice if it has any."""
    return f"p.{plan.store.operand}{_slice(plan, plan.store.operand)}"


def even_splits(plan: Plan) -> str:
    """The schedule of splits that the launch decides on."""
    whole = ", true" if plan.schedule.kind == "split_k" and plan.schedule.whole_waves else ""
    return f"gemmgen::EvenSplits<TILE_M, TILE_N, {plan.raster_group}{whole}>"
