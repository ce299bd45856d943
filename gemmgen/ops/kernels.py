"""From a spec to what a target loads: plan, CUDA text, launch numbers and names for the simulator's messages.

Pure functions with a cache by spec; nothing is compiled here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gemmgen.backends import lower, render
from gemmgen.ir import AnyPlan, AnySpec, LayoutPlan, Plan, RingPlan
from gemmgen.runtime.kernel_text import KernelText


@dataclass(frozen=True)
class Kernel:
    """A spec with its plan and text."""

    spec: AnySpec
    plan: AnyPlan
    text: KernelText


@lru_cache(maxsize=1024)
def kernel_of(spec: AnySpec) -> Kernel:
    """The kernel of a spec; raises ``ValueError`` in sentences when the spec does not fit its architecture."""
    plan = lower(spec)
    return Kernel(spec, plan, kernel_text(plan))


def kernel_text(plan: AnyPlan) -> KernelText:
    """What a target needs to load and launch a plan's kernel."""
    return KernelText(
        source=render(plan),
        entry=plan.name,
        arch=plan.arch.value,
        threads=plan.threads,
        shared_bytes=plan.shared_bytes,
        cluster=(1 if isinstance(plan, LayoutPlan) else plan.launched_together, 1, 1),
        labels=labels(plan),
    )


def labels(plan: AnyPlan) -> Any:
    """The spec's names for barriers, ring slots and roles, so that the simulator reports in them."""
    from gemmgen.sim import Labels

    if isinstance(plan, LayoutPlan):
        line = plan.shared_bytes // plan.tile_lines
        return Labels(regions=[("tile line", 0, line, line, plan.tile_lines)])
    return Labels(
        barriers=plan.barriers,
        regions=[region for each in plan.rings for region in _regions(plan, each)] + _pushed(plan),
        roles=[(role.name, role.first_warp, role.warps) for role in plan.roles],
    )


def _pushed(plan: Plan) -> list[tuple[str, int, int, int, int]]:
    """The buffers of partial sums, one for each CTA of the cluster."""
    if plan.push is None:
        return []
    size = plan.push.bytes // plan.splits
    return [("push.sums", plan.push.buffers, size, size, plan.splits)]


def _regions(plan: Plan, ring: RingPlan) -> list[tuple[str, int, int, int, int]]:
    """The slots of a ring as the simulator's labels want them; staging buffers lie warp by warp."""
    if ring.turns != "store":
        return [(f"{ring.name}.{part.operand}", part.offset, part.bytes, part.bytes, ring.slots) for part in ring.parts]
    role = plan.storing
    (part,) = ring.parts
    size = part.bytes // role.warps
    return [
        (
            f"{ring.name}.{part.operand}[{slot}] of {role.name} warp",
            part.offset + slot * size,
            size,
            ring.slots * size,
            role.warps,
        )
        for slot in range(ring.slots)
    ]
