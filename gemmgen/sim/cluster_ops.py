"""barrier.cluster, mapa and getctarank.
They join the warps of a cluster and name its CTAs' shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .cta_barrier_ops import gathered
from .elementwise import destination, value_call
from .errors import Fault
from .fence_ops import fence_own_barriers
from .groups import YIELD, Wait
from .memory import RANK_SHIFT, SHARED_WINDOW
from .memory_ops import active_lanes
from .registry import CONTROL, Bind, Call, Mods, instruction
from .types import Array, Instr, Mask, dtype_of

if TYPE_CHECKING:
    from .warp import Warp


@instruction("barrier.cluster", kind=CONTROL)
def cluster_barrier(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    action, semantics = mods.pick(("arrive", "wait")), mods.pick(("release", "relaxed", "acquire"))
    mods.flag("aligned")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def control() -> int:
            if not gathered(warp, instr):
                return warp.wait_for_lanes(instr)
            barrier = warp.cta.cluster.barrier
            warp.effects += 1
            warp.group.pc = instr.pc + 1
            if action == "arrive":
                if semantics != "relaxed":
                    fence_own_barriers(warp)
                barrier.arrive(warp, warp.fence_clock if semantics == "relaxed" else warp.release())
                return YIELD
            if barrier.passed(warp):
                barrier.join(warp)
                return instr.pc + 1
            barrier.waiting.append((warp, warp.group))
            warp.group.wait = Wait(
                "cluster", lambda: f"waits at {warp.cta.program.place(instr)} for barrier.cluster: {barrier.status()}"
            )
            return YIELD

        return control

    return bind


@instruction("mapa")
def mapa(instr: Instr) -> Bind:
    mods = Mods(instr)
    shared = mods.flag("shared::cluster", "shared")
    dtype = dtype_of(mods.type())
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, address = destination(warp, instr.operands[0], dtype), warp.src(instr.operands[1], dtype)
        rank = warp.src(instr.operands[2], "u32")
        window = 0 if shared else SHARED_WINDOW

        def compute() -> Array:
            if int(rank[active_lanes(mask)].max(initial=0)) >= warp.cta.cluster.size:
                raise Fault(f"mapa: rank {int(rank.max())} in a cluster of {warp.cta.cluster.size} CTAs")
            low = address & address.dtype.type((1 << RANK_SHIFT) - 1)
            result: Array = low.astype(np.int64) + (rank.astype(np.int64) << RANK_SHIFT) + window
            return result

        return value_call(out, mask, compute)

    return bind


@instruction("getctarank")
def getctarank(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("shared::cluster", "shared")
    dtype = dtype_of(mods.type())
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, address = destination(warp, instr.operands[0], "u32"), warp.src(instr.operands[1], dtype)
        return value_call(out, mask, lambda: (address.astype(np.int64) & 0xFFFFFFFF) >> RANK_SHIFT)

    return bind
