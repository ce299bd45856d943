"""bar and barrier: the sixteen named barriers of a CTA.
They gather the lanes of a warp and arrive; counting is barriers.py's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .control import active_bits
from .elementwise import assign, destination, predicate
from .errors import UnknownInstruction
from .groups import YIELD, Wait
from .registry import CONTROL, Bind, Call, Mods, instruction
from .types import Instr, Mask

if TYPE_CHECKING:
    from .warp import Warp


def _named_operands(instr: Instr, first: int) -> tuple[Any, Any]:
    operands = instr.operands[first:]
    return operands[0], operands[1] if len(operands) > 1 else None


def gathered(warp: Warp, instr: Instr) -> bool:
    return warp.gather(instr.pc, warp.live)


@instruction("bar", "barrier", kind=CONTROL)
def named_barrier(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("cta", "aligned")
    action = mods.pick(("sync", "arrive", "red"))
    operation, ptx_type = mods.pick(("popc", "and", "or")), mods.pick(("u32", "pred"))
    mods.done()
    if not action:
        raise UnknownInstruction(f"{instr.opcode!r}: which barrier action?")
    if action == "red":
        return _barrier_reduction(instr, operation, ptx_type)
    number_operand, count_operand = _named_operands(instr, 0)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        number = warp.src(number_operand, "u32")
        count = warp.src(count_operand, "u32") if count_operand is not None else None

        def control() -> int:
            if instr.guard is not None and not active_bits(warp, mask):
                return instr.pc + 1
            if not gathered(warp, instr):
                return warp.wait_for_lanes(instr)
            lane = warp.active[0]
            barrier = warp.cta.named_barrier(int(number[lane]))
            warp.effects += 1
            barrier.arrive(warp, None if count is None else int(count[lane]))
            return _after_arrival(warp, instr, barrier, waits=action == "sync")

        return control

    return bind


def _after_arrival(warp: Warp, instr: Instr, barrier: Any, waits: bool) -> int:
    group = warp.group
    group.pc = instr.pc + 1
    if waits:
        barrier.waiting.append((warp, group, instr))
        group.wait = Wait(
            "bar", lambda: f"waits at {warp.cta.program.place(instr)} for {barrier.name}: {barrier.status()}"
        )
    if barrier.complete():
        barrier.release()
    return YIELD


def _barrier_reduction(instr: Instr, operation: str, ptx_type: str) -> Bind:
    """bar.red: every thread's predicate is combined; the result is written when the barrier opens."""
    number_operand = instr.operands[1]
    count_operand = instr.operands[2] if len(instr.operands) == 4 else None
    operation = operation or "popc"

    def bind(warp: Warp, mask: Mask | None) -> Call:
        number = warp.src(number_operand, "u32")
        count = warp.src(count_operand, "u32") if count_operand is not None else None
        row, negated = predicate(warp, instr.operands[-1])
        out = destination(warp, instr.operands[0], "u32" if operation == "popc" else "p")
        waiting: list[Any] = []

        def control() -> int:
            if waiting:
                total, every, some = waiting.pop().result
                value = {"popc": np.array(total, np.uint32), "and": np.array(every), "or": np.array(some)}[operation]
                assign(out, value, mask)
                return instr.pc + 1
            if not gathered(warp, instr):
                return warp.wait_for_lanes(instr)
            lanes = warp.active
            barrier = warp.cta.named_barrier(int(number[lanes[0]]))
            barrier.values += [bool(row[lane]) != negated for lane in lanes]
            barrier.arrive(warp, None if count is None else int(count[lanes[0]]))
            waiting.append(barrier)
            result = _after_arrival(warp, instr, barrier, waits=True)
            warp.group.pc = instr.pc
            return result

        return control

    return bind
