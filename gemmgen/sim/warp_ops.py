"""Exchanges between the lanes of a warp: shuffles, votes, matches, reductions, elections.
Registers only; waiting for the lanes is the warp's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import assign, destination, predicate, value_call
from .errors import Fault, UnknownInstruction
from .registry import SYNC, Bind, Call, Mods, instruction
from .types import LANES, Array, Imm, Instr, Mask, Pair, Void, dtype_of

if TYPE_CHECKING:
    from .warp import Warp

_LANE = np.arange(LANES, dtype=np.int64)
_EVERY = np.ones(LANES, np.bool_)


def _targets(operand: Any) -> tuple[Any, Any]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Void())


def shuffle_sources(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane each lane reads, and whether that lane is in range."""
    segment, clamp = (c >> 8) & 31, c & 31
    low = _LANE & segment
    high = low | (clamp & ~segment & 31)
    b = b & 31
    source = {"up": _LANE - b, "down": _LANE + b, "bfly": _LANE ^ b, "idx": low | (b & ~segment & 31)}[mode]
    inside = source >= high if mode == "up" else source <= high
    return np.where(inside, source, _LANE), inside


@instruction("shfl", kind=SYNC)
def shfl(instr: Instr) -> Bind:
    mods = Mods(instr)
    if not mods.flag("sync"):
        raise UnknownInstruction(f"{instr.opcode!r}: shuffles without .sync do not exist on sm_70 and later")
    mode = mods.pick(("up", "down", "bfly", "idx"))
    mods.flag("b32")
    mods.done()
    first, second = _targets(instr.operands[0])
    fixed = all(isinstance(op, Imm) for op in instr.operands[2:4])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, flag = destination(warp, first, "u32"), destination(warp, second, "p")
        value, b, c = (warp.src(op, "u32") for op in instr.operands[1:4])
        if fixed:
            source, inside = shuffle_sources(mode, b.astype(np.int64), c.astype(np.int64))
            if mask is None:
                return _fixed_shuffle(warp, out, value, source, flag, inside)

        def call() -> None:
            warp.soft_sync()
            lanes, ok = (source, inside) if fixed else shuffle_sources(mode, b.astype(np.int64), c.astype(np.int64))
            taken = value[lanes]
            if mask is not None:
                taken = np.where(mask[lanes], taken, np.uint32(0xFFFFFFFF))
            assign(out, taken, mask)
            assign(flag, ok, mask)

        return call

    return bind


def _fixed_shuffle(warp: Warp, out: Array, value: Array, source: Array, flag: Array, inside: Array) -> Call:
    def call() -> None:
        warp.soft_sync()
        np.copyto(out, value.take(source))
        np.copyto(flag, inside)

    return call


@instruction("vote", kind=SYNC)
def vote(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync")
    mode = mods.pick(("all", "any", "uni", "ballot"))
    mods.flag("pred", "b32")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], "u32" if mode == "ballot" else "p")
        row, negated = predicate(warp, instr.operands[1])

        def compute() -> Array:
            warp.soft_sync()
            active = _EVERY if mask is None else mask
            values = (~row if negated else row) & active
            if mode == "ballot":
                return np.packbits(values, bitorder="little").view(np.uint32)
            count, total = int(values.sum()), int(active.sum())
            return np.array({"all": count == total, "any": count > 0, "uni": count in (0, total)}[mode])

        return value_call(out, mask, compute)

    return bind


@instruction("activemask")
def activemask(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], "u32")
        return value_call(out, mask, lambda: np.array(warp.group.bits, np.uint32))

    return bind


@instruction("match", kind=SYNC)
def match(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync")
    mode, dtype = mods.pick(("any", "all")), dtype_of(mods.type())
    mods.done()
    first, second = _targets(instr.operands[0])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, flag = destination(warp, first, "u32"), destination(warp, second, "p")
        value = warp.src(instr.operands[1], dtype)

        def call() -> None:
            warp.soft_sync()
            active = _EVERY if mask is None else mask
            same = (value[:, None] == value[None, :]) & active[None, :]
            bits = np.packbits(same, axis=1, bitorder="little").view(np.uint32).reshape(LANES)
            if mode == "all":
                everyone = np.packbits(active, bitorder="little").view(np.uint32)[0]
                assign(flag, bits == everyone, mask)
                bits = np.where(bits == everyone, everyone, np.uint32(0))
            assign(out, bits, mask)

        return call

    return bind


_REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "add": lambda x: x.astype(np.int64).sum() & 0xFFFFFFFF,
    "min": np.min,
    "max": np.max,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@instruction("redux", kind=SYNC)
def redux(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync")
    mode, ptx_type = mods.pick(_REDUCTIONS), mods.type()
    mods.done()
    if ptx_type == "f32":
        raise UnknownInstruction(f"{instr.opcode!r}: redux of floats is not modelled")
    dtype = dtype_of(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, value = destination(warp, instr.operands[0], dtype), warp.src(instr.operands[1], dtype)

        def compute() -> Array:
            warp.soft_sync()
            active = value if mask is None else value[mask]
            result = int(_REDUCTIONS[mode](active)) & 0xFFFFFFFF
            return np.array(result, np.uint32).view(value.dtype)

        return value_call(out, mask, compute)

    return bind


@instruction("elect", kind=SYNC)
def elect(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync")
    mods.done()
    first, second = _targets(instr.operands[0])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, flag = destination(warp, first, "u32"), destination(warp, second, "p")
        members = warp.src(instr.operands[1], "u32")

        def call() -> None:
            bits = int(members[warp.active[0]]) & warp.group.bits
            if not bits:
                raise Fault("elect.sync: the membermask names no active lane")
            if bits == warp.live:
                warp.elected()
            leader = (bits & -bits).bit_length() - 1
            assign(out, np.array(leader, np.uint32), mask)
            assign(flag, np.equal(_LANE, leader), mask)

        return call

    return bind
