"""Bit counting, bit fields and byte dot products.
Bits of one or two registers; arithmetic on whole values lives in integer.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import destination, expression, value_call
from .registry import Bind, Call, Mods, instruction
from .types import DTYPES, Array, Instr, Mask, bits_of, dtype_of

if TYPE_CHECKING:
    from .warp import Warp


@instruction("popc")
def popc(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    return _to_u32(instr, dtype_of(ptx_type), np.bitwise_count)


@instruction("clz")
def clz(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    bits = bits_of(ptx_type)

    def compute(a: Array) -> Array:
        value = a.copy()
        for shift in (1, 2, 4, 8, 16, 32):
            if shift < bits:
                value |= value >> value.dtype.type(shift)
        return bits - np.bitwise_count(value).astype(np.int64)

    return _to_u32(instr, dtype_of(ptx_type), compute)


def _to_u32(instr: Instr, dtype: str, compute: Any) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, a = destination(warp, instr.operands[0], "u32"), warp.src(instr.operands[1], dtype)
        return value_call(out, mask, lambda: compute(a))

    return bind


@instruction("brev")
def brev(instr: Instr) -> Bind:
    mods = Mods(instr)
    dtype = dtype_of(mods.type())
    mods.done()

    def compute(a: Array) -> Array:
        bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8), bitorder="little").reshape(a.size, -1)
        return np.packbits(bits[:, ::-1], axis=1, bitorder="little").copy().view(a.dtype).reshape(-1)

    return expression(instr.operands, dtype, compute)


@instruction("bfind")
def bfind(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type, as_shift = mods.type(), mods.flag("shiftamt")
    mods.done()
    bits = bits_of(ptx_type)

    def compute(a: Array) -> Array:
        out = []
        for value in a.tolist():
            position = (~value if value < 0 else value).bit_length() - 1
            out.append((bits - 1 - position if as_shift else position) if position >= 0 else -1)
        return np.array(out)

    return _to_u32(instr, dtype_of(ptx_type), compute)


@instruction("dp4a", "dp2a")
def dot_product(instr: Instr) -> Bind:
    mods = Mods(instr)
    types = mods.types()
    half = mods.pick(("lo", "hi"))
    mods.done()
    narrow_b = {"u32": np.uint8, "s32": np.int8}[types[1]]
    narrow_a = (
        {"u32": np.uint8, "s32": np.int8}[types[0]]
        if instr.base == "dp4a"
        else {"u32": np.uint16, "s32": np.int16}[types[0]]
    )

    def compute(a: Array, b: Array, c: Array) -> Array:
        lanes_a = np.ascontiguousarray(a).view(narrow_a).reshape(32, -1).astype(np.int64)
        lanes_b = np.ascontiguousarray(b).view(narrow_b).reshape(32, -1).astype(np.int64)
        if half:
            lanes_b = lanes_b[:, :2] if half == "lo" else lanes_b[:, 2:]
        total: Array = (lanes_a * lanes_b).sum(axis=1) + c.astype(np.int64)
        return total

    return expression(instr.operands, "u32", compute)


@instruction("bfe")
def bfe(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    bits, dtype = bits_of(ptx_type), dtype_of(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, a = destination(warp, instr.operands[0], dtype), warp.src(instr.operands[1], dtype)
        start, length = (warp.src(op, "u32") for op in instr.operands[2:4])
        return value_call(out, mask, lambda: _extract(a, start, length, bits))

    return bind


def _extract(a: Array, start: Array, length: Array, bits: int) -> Array:
    out = []
    for value, first, count in zip(a.tolist(), (start & 255).tolist(), (length & 255).tolist(), strict=True):
        sign = 0
        if a.dtype.kind == "i" and count:
            sign = value >> min(first + count - 1, bits - 1) & 1
        field = (value % (1 << bits)) >> first if first < bits else 0
        kept = min(count, max(bits - first, 0))
        field &= (1 << kept) - 1
        if sign and count:
            field |= -1 << kept
        out.append(field % (1 << bits))
    return np.array(out, np.uint64).astype(DTYPES[f"u{bits}"]).view(a.dtype)


@instruction("bfi")
def bfi(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    bits, dtype = bits_of(ptx_type), dtype_of(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], dtype)
        a, b = (warp.src(op, dtype) for op in instr.operands[1:3])
        start, length = (warp.src(op, "u32") for op in instr.operands[3:5])

        def compute() -> Array:
            one = DTYPES[dtype](1)
            first = np.minimum(start & 255, bits).astype(DTYPES[dtype])
            count = np.minimum(length & 255, bits).astype(DTYPES[dtype])
            ones = np.where(count >= bits, ~DTYPES[dtype](0), (one << count) - one)
            field = ones << first
            result: Array = (b & ~field) | ((a << first) & field)
            return result

        return value_call(out, mask, compute)

    return bind


@instruction("bmsk")
def bmsk(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.type()
    mods.pick(("clamp", "wrap"))
    mods.done()

    def compute(start: Array, width: Array) -> Array:
        wide_start, wide = start.astype(np.uint64), np.minimum(width, 32).astype(np.uint64)
        ones = (np.uint64(1) << wide) - np.uint64(1)
        return np.where(wide_start < 32, ones << wide_start, np.uint64(0)) & np.uint64(0xFFFFFFFF)

    return expression(instr.operands, "u32", compute)
