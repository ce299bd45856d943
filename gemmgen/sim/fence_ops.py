"""fence and membar in all kinds but that of tensor maps (map_ops.py): what each makes visible to whom.
They change clocks and caches; they never wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .control import active_bits
from .global_order import level_of
from .registry import SCOPES, SEMANTICS, SHARED_SPACES, Bind, Call, Mods, instruction
from .types import Instr, Mask

if TYPE_CHECKING:
    from .warp import Warp


def fence_own_barriers(warp: Warp) -> None:
    """Initialisations this warp knows of are now visible to other CTAs and the async proxy."""
    for barrier in warp.cta.mbarriers.values():
        if not barrier.fenced and warp.clock[0, barrier.initialiser] >= barrier.init_epoch:
            barrier.fenced = True


@instruction("fence", "membar")
def fence(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("proxy")
    kind = mods.pick(("async", "alias", "async::generic", "mbarrier_init"))
    mods.flag(
        "gl",
        "sys",
        "global",
        *SHARED_SPACES,
        *SCOPES,
        *SEMANTICS,
        "sync_restrict::shared::cta",
        "sync_restrict::shared::cluster",
    )
    mods.done()
    level = level_of(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            if not active_bits(warp, mask):
                return
            if kind in ("async", "mbarrier_init"):
                fence_own_barriers(warp)
            if kind == "async":
                warp.proxy_fence()
            warp.fence_clock = warp.clock.copy()
            if not kind and (order := warp.cta.gpu.global_order) is not None:
                order.fence(warp, active_bits(warp, mask), level)

        return call

    return bind
