"""Moves, bitwise operations, shifts, comparisons and selections.
Bits only; arithmetic on values lives in integer.py and floats.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import (
    assign,
    copy_call,
    destination,
    expression,
    row_copy,
    row_expression,
    simple,
    ufunc_call,
    value_call,
)
from .errors import UnknownInstruction
from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from .registry import Bind, Call, Mods, instruction
from .types import LANES, Array, Imm, Instr, Mask, Not, Reg, Special, Vec, Void, bits_of, dtype_of
from .values import literal

if TYPE_CHECKING:
    from .warp import Warp

_CLOCKS = ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi")


@instruction("mov")
def mov(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    target, source = instr.operands
    if isinstance(target, Vec):
        return _unpack(target, source, ptx_type)
    if isinstance(source, Vec):
        return _pack(target, source, ptx_type)
    dtype = "b128" if ptx_type == "b128" else "p" if ptx_type == "pred" else f"u{bits_of(ptx_type)}"
    if isinstance(source, Special) and source.name in _CLOCKS:
        return _clock(target, source.name, dtype)
    literal_type = dtype_of(ptx_type)
    if dtype not in ("p", "b128") and isinstance(source, Reg | Imm):
        return row_copy((target, dtype), (_as_bits(source, literal_type), dtype))
    if dtype == "p":
        return row_copy((target, "p"), (source, "p"))

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, target, dtype)
        row = warp.src(source, literal_type if dtype not in ("p", "b128") else dtype).view(out.dtype)
        if dtype == "b128":
            return lambda: np.copyto(out, row, where=True if mask is None else mask[:, None])
        return copy_call(out, row, mask)

    return bind


def _as_bits(source: Any, literal_type: str) -> Any:
    """A literal as the integer of its bits, so that moves copy bits."""
    if not isinstance(source, Imm):
        return source
    row = literal(source, literal_type)
    return Imm(int(row.view(f"u{row.dtype.itemsize}")[0]))


def _clock(target: Any, name: str, dtype: str) -> Bind:
    shift = 32 if name.endswith("_hi") else 0

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, target, dtype)

        def call() -> None:
            now = warp.cta.gpu.report.warp_instructions + warp.executed >> shift
            assign(out, np.full(LANES, now, np.uint64), mask)

        return call

    return bind


def _unpack(target: Vec, source: Any, ptx_type: str) -> Bind:
    part_bits = bits_of(ptx_type) // len(target.items)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        whole = warp.src(source, dtype_of(ptx_type))
        parts = np.ascontiguousarray(whole) if not whole.flags.c_contiguous else whole
        columns = parts.view(f"u{part_bits // 8}").reshape(LANES, len(target.items))
        rows = [
            (i, destination(warp, item, f"u{part_bits}"))
            for i, item in enumerate(target.items)
            if not isinstance(item, Void)
        ]

        def call() -> None:
            values = columns.copy()
            for i, out in rows:
                assign(out, values[:, i], mask)

        return call

    return bind


def _pack(target: Any, source: Vec, ptx_type: str) -> Bind:
    part_bits = bits_of(ptx_type) // len(source.items)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, target, dtype_of(ptx_type))
        columns = out.view(f"u{part_bits // 8}").reshape(LANES, len(source.items))
        rows = [warp.src(item, f"u{part_bits}") for item in source.items]
        if mask is None and len(rows) == 2 and len({id(r) for r in rows}) == 2:
            first, second = columns[:, 0], columns[:, 1]
            low, high = rows

            def quick() -> None:
                np.copyto(first, low)
                np.copyto(second, high)

            return quick

        def call() -> None:
            values = [row.copy() for row in rows]
            for i, value in enumerate(values):
                assign(columns[:, i], value, mask)

        return call

    return bind


@instruction("cvta")
def cvta(instr: Instr) -> Bind:
    mods = Mods(instr)
    backwards = mods.flag("to")
    space = mods.pick(("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"))
    ptx_type = mods.type()
    mods.done()
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}.get(space.split("::")[0], 0)
    dtype = dtype_of(ptx_type)
    if window and bits_of(ptx_type) == 32:
        raise UnknownInstruction(f"{instr.opcode!r}: 32-bit generic addresses do not exist here")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, row = destination(warp, instr.operands[0], dtype), warp.src(instr.operands[1], dtype)
        if not window:
            return copy_call(out, row, mask)
        shift = np.full(LANES, window, np.uint64)
        return ufunc_call(np.subtract if backwards else np.add, (row, shift), out, mask)

    return bind


@instruction("isspacep")
def isspacep(instr: Instr) -> Bind:
    mods = Mods(instr)
    space = mods.pick(("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"))
    mods.done()

    def test(warp: Warp, address: Array) -> Array:
        window = address >> np.uint64(32)
        if space.startswith("shared"):
            inside: Array = window == SHARED_WINDOW >> 32
            if space != "shared::cluster" and warp.cta.cluster.size > 1:
                inside &= (address >> np.uint64(24) & np.uint64(0xFF)) == warp.cta.rank
            return inside
        if space in ("local", "param"):
            own: Array = window == {"local": LOCAL_WINDOW, "param": PARAM_WINDOW}[space] >> 32
            return own
        result: Array = (
            (window != SHARED_WINDOW >> 32) & (window != LOCAL_WINDOW >> 32) & (window != PARAM_WINDOW >> 32)
        )
        return result

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, row = destination(warp, instr.operands[0], "p"), warp.src(instr.operands[1], "u64")
        return value_call(out, mask, lambda: test(warp, row))

    return bind


_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.bitwise_not, "cnot": None}


@instruction("and", "or", "xor", "not")
def bitwise(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    logical = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
    if any(isinstance(op, Not) for op in instr.operands):
        raise UnknownInstruction(f"{instr.text!r}: a negated predicate operand")
    dtype = "p" if ptx_type == "pred" else f"u{bits_of(ptx_type)}"
    return simple(logical[instr.base] if dtype == "p" else _BITWISE[instr.base], instr.operands, dtype)


@instruction("cnot")
def cnot(instr: Instr) -> Bind:
    mods = Mods(instr)
    dtype = dtype_of(mods.type())
    mods.done()
    return expression(instr.operands, dtype, lambda a: (a == 0).astype(a.dtype))


@instruction("lop3")
def lop3(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("b32")
    combine = mods.pick(("or", "and"))
    mods.done()
    if combine:
        raise UnknownInstruction(f"{instr.opcode!r}: the predicate form is not modelled")
    table = instr.operands[4].value
    *operands, _ = instr.operands
    return expression(operands, "u32", lambda a, b, c: _lookup(a, b, c, table))


def _lookup(a: Array, b: Array, c: Array, table: int) -> Array:
    result = np.zeros_like(a)
    for minterm in range(8):
        if table >> minterm & 1:
            result |= (a if minterm & 4 else ~a) & (b if minterm & 2 else ~b) & (c if minterm & 1 else ~c)
    return result


@instruction("shl", "shr")
def shift(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    dtype = dtype_of(ptx_type)
    ufunc = np.left_shift if instr.base == "shl" else np.right_shift

    amount = instr.operands[2]
    if isinstance(amount, Imm):  # clamp once, in the type of the value
        fixed = Imm(min(amount.value & 0xFFFFFFFF, bits_of(ptx_type)))
        return simple(ufunc, [*instr.operands[:2], fixed], dtype)
    widest = bits_of(ptx_type)

    def compute(a: Array, count: Array) -> Array:
        result: Array = ufunc(a, np.minimum(count, widest).astype(a.dtype))
        return result

    return row_expression((instr.operands[0], dtype), [(instr.operands[1], dtype), (amount, "u32")], compute)


@instruction("shf")
def funnel_shift(instr: Instr) -> Bind:
    mods = Mods(instr)
    direction, mode = mods.pick(("l", "r")), mods.pick(("clamp", "wrap"))
    mods.flag("b32")
    mods.done()

    def compute(low: Array, high: Array, amount: Array) -> Array:
        count = (np.minimum(amount, 32) if mode == "clamp" else amount & 31).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        if direction == "r":
            return both >> count
        return (both << count) >> np.uint64(32)

    return expression(instr.operands, "u32", compute)


@instruction("prmt")
def permute(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("b32")
    mode = mods.pick(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
    mods.done()

    def compute(a: Array, b: Array, selector: Array) -> Array:
        pool = np.stack([a, b], axis=1).view(np.uint8)
        nibbles = _selectors(selector, mode)
        taken = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), axis=1)
        signs = np.where(taken & 0x80, 0xFF, 0).astype(np.uint8)
        return np.ascontiguousarray(np.where(nibbles & 8, signs, taken)).view(np.uint32).reshape(LANES)

    return expression(instr.operands, "u32", compute)


def _selectors(selector: Array, mode: str) -> Array:
    byte = np.arange(4, dtype=np.uint32)
    if not mode:
        return (selector[:, None] >> (4 * byte)) & 0xF
    s = (selector & 3)[:, None]
    table = {
        "f4e": s + byte,
        "b4e": (s - byte) & 7,
        "rc8": s + 0 * byte,
        "ecl": np.maximum(s, byte),
        "ecr": np.minimum(s, byte),
        "rc16": ((s & 1) << 1) + (byte & 1),
    }
    result: Array = table[mode]
    return result
