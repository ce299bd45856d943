"""tcgen05.alloc, dealloc, relinquish_alloc_permit, commit and the fences.
They bind instructions; columns are tmem.py's, commits the pipe's, mbarriers barriers.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .async_copy import lane_value
from .barrier_ops import find_barrier, locate
from .control import active_bits
from .errors import Fault, UnknownInstruction
from .machine import Cta
from .memory_ops import active_lanes, address_call
from .registry import CONTROL, SYNC, Bind, Call, Mods, instruction
from .shadow import EVERY_LANE
from .tcgen05_pipe import Tensor, check_group, commit, describe, tensor_of
from .tmem import COLUMNS, MINIMUM, Region, split_address
from .types import Array, Instr, Mask
from .warp import YIELD, Wait

if TYPE_CHECKING:
    from .barriers import MBarrier
    from .warp import Warp


def _group(mods: Mods) -> int:
    return int(mods.pick(("cta_group::1", "cta_group::2"), "x::1")[-1])


@instruction("tcgen05.alloc", kind=CONTROL)
def alloc(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    group = _group(mods)
    mods.flag("sync", "aligned", "shared::cta", "b32")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, count = address_call(warp, instr.operands[0]), warp.src(instr.operands[1], "u32")

        def control() -> int:
            if not warp.gather(instr.pc, warp.live):
                return warp.wait_for_lanes(instr)
            tensor = check_group(warp, group, "tcgen05.alloc")
            columns = int(count[0])
            _check_alloc(tensor, columns)
            start = _allocate(tensor, columns, warp, group)
            if start is None:
                return _wait_for_columns(warp, instr, tensor, columns, group)
            _store_address(warp, int(target()[0]), start)
            warp.effects += 1
            warp.group.pc = instr.pc + 1
            return YIELD

        return control

    return bind


def _check_alloc(tensor: Tensor, columns: int) -> None:
    if columns not in (32, 64, 128, 256, 512):
        raise Fault(f"tcgen05.alloc of {columns} columns; it must be a power of two from {MINIMUM} to {COLUMNS}")
    if not tensor.permit:
        raise Fault("tcgen05.alloc after tcgen05.relinquish_alloc_permit in this CTA")


def _allocate(tensor: Tensor, columns: int, warp: Warp, group: int) -> int | None:
    """First column, or None as long as columns, or the peer's request, are missing."""
    if group == 1:
        return tensor.memory.allocate(columns, warp)
    if tensor.granted is not None:
        start, tensor.granted, tensor.asked = tensor.granted, None, None
        return start
    peer = tensor_of(_peer(warp))
    tensor.asked = columns, warp
    if peer.asked is None:
        return None
    if peer.asked[0] != columns:
        raise Fault(f"tcgen05.alloc: the CTAs of a pair ask for {columns} and {peer.asked[0]} columns")
    found = tensor.memory.allocate(columns, warp, peer.asked[1])
    if found is None:
        return None
    if peer.memory.allocate(columns, peer.asked[1], warp) != found:
        raise Fault("tcgen05.alloc: the CTAs of a pair hold different allocations")
    peer.granted, tensor.asked = found, None
    peer.wake()
    return found


def _peer(warp: Warp) -> Cta:
    return warp.cta.cluster.cta(warp.cta.rank ^ 1)


def _wait_for_columns(warp: Warp, instr: Instr, tensor: Tensor, columns: int, group: int) -> int:
    def describe_wait() -> str:
        peer = ", or for the other CTA of the pair to allocate" if group == 2 else ""
        held = sum(a.columns for a in tensor.memory.allocations)
        return f"waits at {warp.cta.program.place(instr)} for {columns} TMEM columns ({held} of 512 are taken){peer}"

    result = warp.block_group(instr.pc, Wait("tmem", describe_wait))
    tensor.waiting.append(warp.group)
    return result


def _store_address(warp: Warp, address: int, start: int) -> None:
    """The address of the first column goes to shared memory, as an ordinary store of the whole warp."""
    cta, offset = locate(warp, address)
    if cta is not warp.cta or offset % 4:
        raise Fault(
            f"tcgen05.alloc writes to {address:#x}; it must be a 4-byte aligned address of the own shared memory"
        )
    cta.shadow.generic_write(warp, np.array([offset // 4]), np.array([EVERY_LANE], np.int8))
    cta.smem.view(4)[offset // 4] = start
    warp.fence_clock = warp.clock.copy()  # known-good kernels pass it on by a relaxed cluster arrive


@instruction("tcgen05.dealloc", kind=SYNC)
def dealloc(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    group = _group(mods)
    mods.flag("sync", "aligned", "b32")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address, count = warp.src(instr.operands[0], "u32"), warp.src(instr.operands[1], "u32")

        def call() -> None:
            tensor = check_group(warp, group, "tcgen05.dealloc")
            lane, column = split_address(int(address[0]))
            if lane:
                raise Fault(f"tcgen05.dealloc of address {int(address[0]):#x}, which names lane {lane}")
            tensor.memory.release(column, int(count[0]), warp)
            if group == 2:
                _check_peer(warp, Region(column, column + int(count[0])))
            warp.effects += 1
            tensor.wake()

        return call

    return bind


def _check_peer(warp: Warp, region: Region) -> None:
    """A pair's columns go together: the other CTA must be done with its own, and use them no more."""
    peer = warp.cta.cluster.ctas[warp.cta.rank ^ 1]
    if not peer.exited:
        memory = tensor_of(peer).memory
        memory.check_unused(region, warp)
        memory.freed_by_peer.append(region)


@instruction("tcgen05.relinquish_alloc_permit", kind=SYNC)
def relinquish(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    group = _group(mods)
    mods.flag("sync", "aligned")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            check_group(warp, group, "tcgen05.relinquish_alloc_permit").permit = False

        return call

    return bind


# commit and fences


@instruction("tcgen05.commit", kind=CONTROL)
def tensor_commit(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    group = int(mods.pick(("cta_group::1", "cta_group::2"), "x::0")[-1])
    arrives = mods.flag("mbarrier::arrive::one")
    multicast = mods.flag("multicast::cluster")
    mods.flag("shared::cluster", "b64")
    mods.done()
    if not group or not arrives:
        raise UnknownInstruction(f"{instr.opcode!r}: cta_group or .mbarrier::arrive::one is missing")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target = address_call(warp, instr.operands[0])
        ranks = lane_value(warp, instr.operands[1], "u16") if multicast else None

        def control() -> int:
            lanes = active_lanes(mask).tolist()
            for lane in lanes:
                chosen = None if ranks is None else ranks(lane)
                _commit_lane(warp, instr, lane, group, int(target()[lane]), chosen)
            warp.group.pc = instr.pc + 1
            return YIELD if lanes and warp.cta.gpu.schedule.yields() else instr.pc + 1

        return control

    return bind


def _commit_lane(warp: Warp, instr: Instr, lane: int, group: int, address: int, ranks: int | None) -> None:
    check_group(warp, group, "tcgen05.commit")
    warp.effects += 1
    barriers = _barriers(warp, address, ranks)

    def arrive(clock: Array) -> None:
        for barrier in barriers:
            if barrier.cta.exited:
                raise Fault(f"it arrives on {barrier.name}, but CTA {barrier.cta.position} has already exited")
            barrier.cta.mbarrier(barrier.offset).arrive(clock)

    commit(warp, lane, describe(warp, instr), arrive)


def _barriers(warp: Warp, address: int, ranks: int | None) -> list[MBarrier]:
    """The barrier at the address, or those at its offset in every CTA of the mask."""
    if ranks is None:
        found = [find_barrier(warp, address)]
    else:
        _, offset = locate(warp, address)
        chosen = [rank for rank in range(16) if ranks >> rank & 1]
        if not chosen or chosen[-1] >= warp.cta.cluster.size:
            raise Fault(f"tcgen05.commit: multicast mask {ranks:#x} in a cluster of {warp.cta.cluster.size} CTAs")
        found = [find_barrier(warp, rank << 24 | offset) for rank in chosen]
    for barrier in found:
        barrier.check_fenced("the async proxy")
    return found


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def tensor_fence(instr: Instr) -> Bind:
    Mods(instr, 2).done()
    after = instr.parts[1] == "fence::after_thread_sync"
    act: Callable[[Warp], Any] = _fence_after if after else _fence_before

    def bind(warp: Warp, mask: Mask | None) -> Call:
        return lambda: act(warp) if active_bits(warp, mask) else None

    return bind


def _fence_after(warp: Warp) -> None:
    np.copyto(tensor_of(warp.cta).of(warp).fenced, warp.clock[0])


def _fence_before(warp: Warp) -> None:
    """What this warp did in tensor memory so far goes along with its next release."""
    state = tensor_of(warp.cta).of(warp)
    warp.clock[0, warp.cta.cluster.tensor_component(warp.number)] = state.epoch
    state.epoch += 1
