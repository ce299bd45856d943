"""A prologue on sm100: A goes through registers of a role of its own into tensor memory, and splits of k with it.

Knows specs and plans; refuses what that role and the one that stores cannot do, in sentences.
"""

from __future__ import annotations

from gemmgen.backends.common import launch_splits
from gemmgen.backends.placement import Footprint, align
from gemmgen.backends.sm100_product import multiplier
from gemmgen.ir import Cast, Gate, KernelSpec, Quantise, Reduce, SplitK, SumOfSquares, TmemCast, UmmaPlan

CAST_WARPS = 4
"""Each reaches 32 lanes of tensor memory."""
WIDTHS = (16, 32, 64, 128)
"""Columns of a row that one load brings to a lane's registers; more would not fit beside what is added up."""
SQUARES = 4
"""Columns of a row's sums of squares, behind those of its products."""
MOST_SLOTS = 4
"""Slots of cast A that a ring gets unless it says how many."""
BLOCK = 64
"""K of a block: 128 bytes of bf16."""


def check_cast(spec: KernelSpec) -> None:
    """Refuse prologues, and splits of k, that are not lowered for sm100."""
    body, roles = multiplier(spec), [role for role in spec.roles if isinstance(role.body, TmemCast)]
    if isinstance(spec.schedule, SplitK) and not (spec.prologue and launch_splits(spec)):
        raise ValueError(
            f"spec {spec.name!r} splits k; sm100 does where a prologue casts A and the launch says how often "
            "(SplitK(splits=None)), use Persistent otherwise"
        )
    if not spec.prologue:
        return
    if roles[0].warps != CAST_WARPS:
        raise ValueError(f"role {roles[0].name!r} has {roles[0].warps} warps; {CAST_WARPS} reach all of A's rows")
    if body.ctas != 1 or spec.cluster.size != 1:
        raise ValueError(
            f"role {spec.math.name!r} multiplies for a pair; A that is cast lies in one CTA, so use ctas=1"
        )
    if spec.tile.n not in WIDTHS or spec.tile.k != BLOCK:
        raise ValueError(
            f"tile is {spec.tile.m}x{spec.tile.n}x{spec.tile.k}; where A is cast, n must be one of {WIDTHS} and k "
            f"{BLOCK}"
        )
    for index, step in enumerate(spec.epilogue):
        if isinstance(step, Gate | Quantise | Reduce):
            raise ValueError(
                f"spec {spec.name!r}, epilogue[{index}]: {step.kind} behind a prologue, which sm100 is not lowered "
                "with; sm90 and sm120 are"
            )
        if step.kind == "store" and step.through is not None:
            raise ValueError(
                f"spec {spec.name!r}, epilogue[{index}]: where A is cast, sm100 stores from registers; leave out "
                f"through={step.through!r}"
            )


def casts(spec: KernelSpec) -> bool:
    """Whether A is cast on its way to the tensor core."""
    return any(isinstance(step, Cast) for step in spec.prologue)


def sums_squares(spec: KernelSpec) -> bool:
    """Whether squares of A's rows come beside the accumulators."""
    return any(isinstance(step, SumOfSquares) for step in spec.prologue)


def accumulator_columns(spec: KernelSpec, mma: UmmaPlan) -> int:
    """Columns of a slot of sums."""
    return align(mma.columns + SQUARES * sums_squares(spec), 32)


def cast_ring(spec: KernelSpec, mma: UmmaPlan, taken: int, columns: int) -> list[Footprint]:
    """A K block of A as fp32, a column for each element of k; as many slots as fit beside what is taken."""
    if not spec.prologue:
        return []
    (role,) = (role for role in spec.roles if isinstance(role.body, TmemCast))
    if role.body.drains != (multiplier(spec).drains[0],) or role.body.fills != multiplier(spec).drains[1:]:
        raise ValueError(
            f"role {role.name!r} drains {role.body.drains} and fills {role.body.fills}; it must drain the ring of A "
            f"and fill one more that {spec.math.name!r} drains, which has {multiplier(spec).drains}"
        )
    ring = spec.ring(role.body.fills[0])
    if ring.space != "tmem" or ring.turns != "k":
        raise ValueError(
            f"ring {ring.name!r} holds what {role.name!r} casts; it is in space 'tmem' and turns every 'k'"
        )
    room = (columns - taken) // BLOCK
    slots = ring.slots or min(room, MOST_SLOTS)
    if slots > room or slots < 2:
        raise ValueError(
            f"ring {ring.name!r} with {slots} slots of {BLOCK} columns needs {slots * BLOCK} of tensor memory, "
            f"{columns - taken} are left beside the accumulators; it needs 2 at least"
        )
    return [Footprint(name=ring.name, parts=(), slots=slots, full_count=CAST_WARPS, empty_count=1, columns=BLOCK)]
