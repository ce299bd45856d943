"""Which kernels of a choice the process's settings leave: no shared K where sums are fixed, few CTAs where SMs are.

Knows specs and settings; what a problem costs with each kernel is the rules' business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gemmgen.ir import AnyPlan, ClusterSplitK, KernelSpec, SplitK
from gemmgen.ops.settings import now

C = TypeVar("C")
WALKING = ("persistent", "split_k", "cut_remainder")
"""Schedules whose grid is as large as the launch has it, and not one CTA for each tile."""


def shares_k(spec: KernelSpec) -> bool:
    """Whether several CTAs or warpgroups add up a tile's K blocks, each its share."""
    schedule = spec.schedule
    if isinstance(schedule, SplitK) or (isinstance(schedule, ClusterSplitK) and schedule.splits > 1):
        return True
    return any(getattr(role.body, "share_k", False) for role in spec.roles)


def left_of(shapes: tuple[C, ...], spec_of: Callable[[C], KernelSpec]) -> tuple[C, ...]:
    """The shapes whose kernels the present settings leave; a limit of CTAs leaves all where it would leave none."""
    return in_few_ctas(shapes, spec_of) or _unshared(shapes, spec_of)


def in_few_ctas(shapes: tuple[C, ...], spec_of: Callable[[C], KernelSpec]) -> tuple[C, ...]:
    """Those that the settings leave without an exception from a limit of CTAs."""
    shapes, limit = _unshared(shapes, spec_of), now().num_sms
    return shapes if limit is None else tuple(each for each in shapes if _fits(spec_of(each), limit))


def _unshared(shapes: tuple[C, ...], spec_of: Callable[[C], KernelSpec]) -> tuple[C, ...]:
    return tuple(each for each in shapes if not shares_k(spec_of(each))) if now().deterministic else shapes


def begun_alike(shapes: tuple[C, ...], plan_of: Callable[[C], AnyPlan]) -> tuple[C, ...]:
    """Where sums are fixed, those of which all add a bias first or all last: kernels that start with it, if any do."""
    if not now().deterministic:
        return shapes
    return tuple(each for each in shapes if getattr(plan_of(each), "starts", False)) or shapes


def _fits(spec: KernelSpec, limit: int) -> bool:
    """Whether a launch may have so few CTAs."""
    return spec.schedule.kind in WALKING and max(spec.cluster.size, spec.ctas_per_sm) <= limit
