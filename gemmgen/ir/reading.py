"""Rules of what is read otherwise than by a plain copy behind a wait: by lanes, ahead of a launch, with a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.ir.roles import TmaLoad, Wgmma
from gemmgen.ir.schedule import ClusterSplitK, CutRemainder, Persistent
from gemmgen.ir.steps import Store

if TYPE_CHECKING:
    from gemmgen.ir.spec import KernelSpec


def reads_fit(spec: KernelSpec) -> None:
    """Only scales of B come by no ring, and only where tiles have all of k or a share that does not change."""
    body = spec.math.body
    if not isinstance(body, Wgmma):
        return
    if body.reads and not isinstance(spec.schedule, ClusterSplitK | CutRemainder | Persistent):
        raise ValueError(
            f"role {spec.math.name!r} reads {body.reads} itself; with schedule {spec.schedule.kind} let a ring hold "
            "them, or use Persistent"
        )
    for name in body.reads:
        if body.promote is None or name != body.promote.b:
            scales = body.promote and body.promote.b
            raise ValueError(
                f"role {spec.math.name!r} reads {name!r}; only the scales of B, {scales!r}, come by no ring"
            )
        if held := [ring.name for ring in spec.rings if name in ring.holds]:
            raise ValueError(
                f"role {spec.math.name!r} reads {name!r} itself, but ring {held[0]!r} holds it; remove one"
            )


def hints_fit(spec: KernelSpec) -> None:
    """Hints to L2 are about operands that the loading role copies."""
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    held = [name for ring in body.fills for name in spec.ring(ring).holds]
    for name in body.evict_first:
        if name not in held:
            raise ValueError(
                f"role {spec.load.name!r} has a hint for {name!r}, which it does not copy; it copies {held}"
            )


def fetched_fit(spec: KernelSpec) -> None:
    """What is only fetched to L2 is an output that is added to, of the tile's columns, where CTAs have whole tiles."""
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    for name in body.to_l2:
        last = spec.epilogue[-1]
        staged = isinstance(last, Store) and last.accumulate and last.through is not None
        where = f"role {spec.load.name!r} has to_l2={body.to_l2}"
        if not staged or name != spec.output.name or spec.gate is not None or spec.output.heads is not None:
            raise ValueError(
                f"{where}, but {name!r} is no output that a Store through a ring adds the tile's columns to; leave it "
                "out"
            )
        if not isinstance(spec.schedule, Persistent):
            raise ValueError(
                f"{where} and schedule {spec.schedule.kind}; only with Persistent are tiles fetched, so use it"
            )


def ahead_fits(spec: KernelSpec) -> None:
    """Reading ahead of the wait is for launches that wait, and for what roles load."""
    if spec.ahead and not spec.programmatic_launch:
        raise ValueError(f"spec {spec.name!r}: nothing is read ahead of a launch that waits; set programmatic_launch")
    if spec.ahead and not isinstance(spec.schedule, ClusterSplitK):
        raise ValueError(
            f"spec {spec.name!r} reads {spec.ahead} ahead; only a schedule cluster_split_k does, else leave it out"
        )
    loaded = {name for ring in spec.rings if ring.turns == "k" for name in ring.holds}
    loaded |= set(getattr(spec.math.body, "reads", ()))
    for name in spec.ahead:
        if name not in loaded:
            raise ValueError(
                f"spec {spec.name!r} reads {name!r} ahead, which no role loads; known are {sorted(loaded)}"
            )
