"""Branches, exits, traps, warp-level joins and the instructions that only hint or check.
It moves groups of lanes between program counters; it may not touch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .elementwise import ALL_SET, NONE_SET
from .errors import Fault, UnknownInstruction
from .groups import FULL, REPICK, YIELD, Wait, bits_of_mask, lanes_of
from .registry import CONTROL, Bind, Call, Mods, instruction
from .types import Array, Instr, Mask
from .warp import Warp

if TYPE_CHECKING:
    from .groups import Group


@instruction("bra", kind=CONTROL)
def bra(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("uni")
    mods.done()
    target = instr.operands[0].pc
    if instr.guard is None:
        return lambda warp, mask: lambda: target
    guard = instr.guard

    def bind(warp: Warp, mask: Mask | None) -> Call:
        row = warp.rows["p"][guard.index]
        if mask is None:
            return _converged_branch(warp, row, instr.negated, target, instr.pc + 1)
        return _diverged_branch(warp, row, instr.negated, target, instr.pc + 1)

    return bind


def _converged_branch(warp: Warp, row: Array, negated: bool, target: int, after: int) -> Callable[[], int]:
    always, never = (NONE_SET, ALL_SET) if negated else (ALL_SET, NONE_SET)

    def control() -> int:
        lanes = row.tobytes()
        if lanes == always:
            return target
        if lanes == never:
            return after
        taken = bits_of_mask(row)
        return warp.split(taken ^ FULL if negated else taken, target, after)

    return control


def _diverged_branch(warp: Warp, row: Array, negated: bool, target: int, after: int) -> Callable[[], int]:
    def control() -> int:
        bits = warp.group.bits
        taken = bits_of_mask(row)
        taken = bits & (~taken if negated else taken)
        if taken == bits:
            return target
        return warp.split(taken, target, after) if taken else after

    return control


@instruction("exit", "ret", kind=CONTROL)
def exit_(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("uni")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def control() -> int:
            bits = warp.group.bits if instr.guard is None else active_bits(warp, mask)
            return warp.exit_lanes(bits, instr.pc + 1) if bits else instr.pc + 1

        return control

    return bind


def active_bits(warp: Warp, mask: Mask | None) -> int:
    """Bits of the lanes an instruction acts on."""
    return FULL if mask is None else bits_of_mask(mask)


@instruction("trap", "brkpt")
def trap(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            if active_bits(warp, mask):
                raise Fault(
                    f"{instr.base} executed"
                    + (f"; the kernel printed {warp.cta.gpu.report.output[-1]!r}" if warp.cta.gpu.report.output else "")
                )

        return call

    return bind


@instruction("bar.warp", kind=CONTROL)
def bar_warp_sync(instr: Instr) -> Bind:
    """Lanes may join from different bar.warp.sync instructions; all named live lanes must be at one."""

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def control() -> int:
            group = warp.group
            needed = warp.scalar(instr.operands[0], mask, "u32") & warp.live
            if not needed & ~group.bits:
                warp.lane_sync()
                return instr.pc + 1
            joined = [g for g in warp.groups if g is not group and g.wait is not None and g.wait.kind == "warp"]
            present = group.bits
            for other in joined:
                present |= other.bits
            if needed & ~present:
                return warp.block_group(instr.pc, Wait("warp", _missing(warp, group, instr)))
            warp.lane_sync()
            for other in joined:
                other.wait = None
                other.pc += 1
            group.pc = instr.pc + 1
            return REPICK

        return control

    return bind


def _missing(warp: Warp, group: Group, instr: Instr) -> Callable[[], str]:
    return lambda: f"bar.warp.sync (PTX line {instr.line}): waits for lanes {lanes_of(warp.live & ~group.bits)[:8]}"


@instruction("nanosleep", kind=CONTROL)
def nanosleep(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def control() -> int:
            warp.group.pc = instr.pc + 1
            return YIELD

        return control

    return bind


@instruction("setmaxnreg")
def setmaxnreg(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.pick(("inc", "dec"))
    mods.flag("sync")
    mods.flag("aligned")
    mods.flag("u32")
    mods.done()
    count = instr.operands[0].value
    if not 24 <= count <= 256 or count % 8:
        raise Fault(f"setmaxnreg: {count} registers; it must be a multiple of 8 from 24 to 256")
    return _nothing


def _nothing(warp: Warp, mask: Mask | None) -> Call:
    return lambda: None


@instruction("griddepcontrol")
def griddepcontrol(instr: Instr) -> Bind:
    mods = Mods(instr)
    which = mods.pick(("wait", "launch_dependents"))
    if not which:
        raise UnknownInstruction(f"{instr.opcode!r}: only .wait and .launch_dependents exist")
    mods.done()
    if which == "launch_dependents":
        return _nothing

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            warp.unwaited &= ~active_bits(warp, mask)

        return call

    return bind


@instruction("prefetch", "prefetchu", "discard", "applypriority", "createpolicy", "pmevent")
def hint(instr: Instr) -> Bind:
    """No effect on results; a policy is an opaque number."""
    if instr.base != "createpolicy":
        return _nothing

    def bind(warp: Warp, mask: Mask | None) -> Call:
        return lambda: warp.row(instr.operands[0], "u64").fill(0)

    return bind


@instruction("call")
def call_function(instr: Instr) -> Bind:
    """Only the runtime's vprintf and __assertfail, both of which end up in the report."""
    name = next((word for word in ("vprintf", "__assertfail") if word in instr.text), "")
    if not name:
        raise UnknownInstruction(f"{instr.text[:80]!r}: calls of device functions are not modelled; inline them")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            if not active_bits(warp, mask):
                return
            lane = 0 if mask is None else int(mask.argmax())
            texts = [_text(warp, int(row[lane])) for row in warp.call_params.values()]
            text = next((t for t in texts if t), name)
            warp.cta.gpu.report.output.append(text)
            if name == "__assertfail":
                raise Fault(f"device assertion failed: {text}")

        return call

    return bind


def _text(warp: Warp, address: int) -> str:
    """A zero-terminated string in global memory, or empty."""
    block = warp.cta.gpu.memory.blocks.get(address >> 32)
    if block is None or not 0 <= address - block.base < block.nbytes:
        return ""
    data = block.data[address - block.base :].tobytes()
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")
