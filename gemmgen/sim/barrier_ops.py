"""Bindings of mbarrier.*, bar/barrier.*, barrier.cluster.*, fences and mapa.
They find the barrier and the lanes; counting and waking is barriers.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .barriers import MBarrier
from .elementwise import destination
from .errors import Fault, UnknownInstruction
from .groups import REPICK, YIELD, Wait
from .memory import RANK_SHIFT, SHARED_WINDOW
from .memory_ops import active_lanes, address_call
from .registry import CONTROL, SCOPES, SEMANTICS, SHARED_SPACES, Bind, Call, Mods, instruction
from .types import Instr, Mask, Mem
from .warp_state import Spin

if TYPE_CHECKING:
    from .machine import Cta
    from .warp import Warp


def locate(warp: Warp, address: int) -> tuple[Cta, int]:
    """CTA and offset of a shared address, generic or not."""
    if address >> 32 == SHARED_WINDOW >> 32:
        address &= 0xFFFFFFFF
    if address >> 32:
        raise Fault(f"address {address:#x} is not in shared memory")
    rank, offset = address >> RANK_SHIFT, address & (1 << RANK_SHIFT) - 1
    cta = warp.cta if rank == warp.cta.rank else warp.cta.cluster.cta(rank)
    if offset + 8 > cta.smem.nbytes:
        raise Fault(f"shared address {address:#x}: offset {offset} lies outside the {cta.smem.nbytes} bytes of the CTA")
    return cta, offset


def find_barrier(warp: Warp, address: int) -> MBarrier:
    """The barrier an instruction of this warp names, checked for use."""
    cta, offset = locate(warp, address)
    if offset % 8:
        raise Fault(f"mbarrier address {address:#x} is not a multiple of 8")
    barrier = cta.mbarrier(offset)
    barrier.check_use(warp, remote=cta is not warp.cta)
    return barrier


Addresses = Callable[[], list[tuple[int, int]]]


def lane_addresses(warp: Warp, operand: Mem, mask: Mask | None) -> Addresses:
    """(lane, address) of the active lanes."""
    address = address_call(warp, operand)

    def call() -> list[tuple[int, int]]:
        lanes = active_lanes(mask)
        return list(zip(lanes.tolist(), address()[lanes].tolist(), strict=True))

    return call


def _value(warp: Warp, operands: list[Any], position: int, default: int) -> Callable[[int], int]:
    if len(operands) <= position:
        return lambda lane: default
    row = warp.src(operands[position], "u32")
    return lambda lane: int(row[lane])


@instruction("mbarrier.init")
def mbarrier_init(instr: Instr) -> Bind:
    _mods(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets, count = lane_addresses(warp, instr.operands[0], mask), _value(warp, instr.operands, 1, 1)

        def call() -> None:
            warp.effects += 1
            for lane, address in targets():
                cta, offset = locate(warp, address)
                if cta is not warp.cta or offset % 8:
                    raise Fault(
                        f"mbarrier.init at {address:#x}: it must be an 8-byte aligned address of the CTA's own "
                        "shared memory"
                    )
                cta.init_mbarrier(offset, count(lane), warp)
                cta.shadow.protect(offset // 4)

        return call

    return bind


def _mods(instr: Instr, *extra: str) -> Mods:
    """The modifiers every mbarrier instruction may have, consumed."""
    mods = Mods(instr, 2)
    mods.flag("b64", *SHARED_SPACES, *SCOPES, *SEMANTICS, *extra)
    mods.done()
    return mods


@instruction("mbarrier.inval")
def mbarrier_inval(instr: Instr) -> Bind:
    _mods(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets = lane_addresses(warp, instr.operands[0], mask)

        def call() -> None:
            warp.effects += 1
            for _, address in targets():
                barrier = find_barrier(warp, address)
                if barrier.tx or barrier.sleepers:
                    raise Fault(f"{barrier.name}: mbarrier.inval while it is in use ({barrier.status()})")
                del barrier.cta.mbarriers[barrier.offset]
                barrier.cta.shadow.unprotect(barrier.offset // 4, warp)

        return call

    return bind


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def mbarrier_tx(instr: Instr) -> Bind:
    _mods(instr)
    expect = instr.parts[1] == "expect_tx"

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets, nbytes = lane_addresses(warp, instr.operands[0], mask), _value(warp, instr.operands, 1, 0)

        def call() -> None:
            warp.effects += 1
            for lane, address in targets():
                barrier = find_barrier(warp, address)
                if expect:
                    barrier.expect(nbytes(lane))
                else:
                    barrier.complete(nbytes(lane), warp.clock)

        return call

    return bind


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", kind=CONTROL)
def mbarrier_arrive(instr: Instr) -> Bind:
    _mods(instr, "expect_tx", "noComplete")
    with_bytes = "expect_tx" in instr.parts
    operands = instr.operands
    first = 0 if isinstance(operands[0], Mem) else 1
    relaxed = "relaxed" in instr.parts

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets = lane_addresses(warp, operands[first], mask)
        amount = _value(warp, operands, first + 1, 1)
        state = destination(warp, operands[0], "u64") if first else None

        def control() -> int:
            found = targets()
            if not found:
                return instr.pc + 1
            warp.effects += 1
            if warp.readers or warp.writers:
                first_barrier = find_barrier(warp, found[0][1]).name
                warp.check_speaks_for_warp(sum(1 << lane for lane, _ in found), first_barrier)
            clock = warp.clock.copy() if relaxed else warp.release()
            for lane, address in found:
                barrier = find_barrier(warp, address)
                phase = barrier.phase
                if with_bytes:
                    barrier.expect(amount(lane))
                barrier.arrive(clock, 1 if with_bytes else amount(lane))
                if instr.parts[1] == "arrive_drop":
                    barrier.drop(1 if with_bytes else amount(lane))
                if state is not None:
                    state[lane] = phase
            warp.group.pc = instr.pc + 1
            return YIELD if warp.cta.gpu.schedule.yields() else instr.pc + 1

        return control

    return bind


@instruction("mbarrier.pending_count")
def mbarrier_pending_count(instr: Instr) -> Bind:
    raise UnknownInstruction(f"{instr.opcode!r}: the state of an mbarrier is opaque in the simulator")


@instruction("mbarrier.test_wait", "mbarrier.try_wait", kind=CONTROL)
def mbarrier_wait(instr: Instr) -> Bind:
    _mods(instr, "parity")
    parity = "parity" in instr.parts

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets = lane_addresses(warp, instr.operands[1], mask)
        out = destination(warp, instr.operands[0], "p")
        phases = warp.src(instr.operands[2], "u32" if parity else "u64")

        def control() -> int:
            failed: tuple[MBarrier, int] | None = None
            seen: dict[tuple[int, int], bool] = {}
            for lane, address in targets():
                key = address, int(phases[lane])
                if key not in seen:
                    barrier = find_barrier(warp, address)
                    if barrier.cta is not warp.cta:
                        raise Fault(f"{barrier.name}: {instr.base}.{instr.parts[1]} on a barrier of another CTA")
                    seen[key] = _passed(barrier, key[1], parity)
                    if seen[key]:
                        warp.acquire(barrier.completed)
                    else:
                        failed = barrier, key[1]
                out[lane] = seen[key]
            if failed is None:
                warp.spin.pop(instr.pc, None)
                return instr.pc + 1
            return _retry(warp, instr, *failed)

        return control

    return bind


def _passed(barrier: MBarrier, wanted: int, parity: bool) -> bool:
    return barrier.passed(wanted & 1) if parity else barrier.phase != wanted


def _retry(warp: Warp, instr: Instr, barrier: MBarrier, wanted: int) -> int:
    """A failed wait returns false and yields; failing again with no effect between is a pure spin, which sleeps."""
    key = (id(barrier), barrier.phase, wanted)
    last = warp.spin.get(instr.pc)
    warp.spin[instr.pc] = Spin(key, warp.effects)
    warp.group.pc = instr.pc + 1
    if last is None or last.key != key or last.effects != warp.effects:
        return YIELD

    def describe() -> str:
        place = warp.cta.program.place(instr)
        goal = f"{barrier.name} to complete the phase of parity {wanted & 1}"
        return f"waits at {place} for {goal}; it is in {barrier.status()}"

    warp.group.wait = Wait("mbarrier", describe)
    barrier.sleepers.append((warp, warp.group))
    return REPICK


__all__ = ["find_barrier", "lane_addresses", "locate"]
