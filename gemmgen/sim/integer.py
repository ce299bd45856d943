"""Integer arithmetic of PTX: add to mad, division, bit fields, carries and dot products.
One small function per opcode; it may not know memory or control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import assign, destination, expression, row_expression, simple
from .floats import float_binary, float_minmax, float_unary, fused_multiply_add
from .registry import Bind, Call, Mods, instruction
from .types import DTYPES, Array, Instr, Mask, bits_of, dtype_of

if TYPE_CHECKING:
    from .warp import Warp

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
_ROUNDING = ("rn", "rz", "rm", "rp", "rna")


@instruction("add", "sub")
def add_sub(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return float_binary(instr, mods, ptx_type)
    carry_out, saturate = mods.flag("cc"), mods.flag("sat")
    mods.done()
    ufunc = np.add if instr.base == "add" else np.subtract
    if carry_out:
        return _with_carry(instr, ptx_type, carry_in=False, carry_out=True)
    if saturate:
        return _saturating(instr, ufunc)
    return simple(ufunc, instr.operands, dtype_of(ptx_type))


@instruction("addc", "subc")
def add_carry(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type, carry_out = mods.type(), mods.flag("cc")
    mods.done()
    return _with_carry(instr, ptx_type, carry_in=True, carry_out=carry_out)


def _with_carry(instr: Instr, ptx_type: str, carry_in: bool, carry_out: bool) -> Bind:
    bits = bits_of(ptx_type)
    unsigned = f"u{bits}"
    subtract = instr.base.startswith("sub")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], unsigned)
        a, b = (warp.src(op, unsigned) for op in instr.operands[1:3])

        def call() -> None:
            extra = warp.carry.astype(a.dtype) if carry_in else np.zeros_like(a)
            if subtract:
                first, partial_ = a - b, a < b
                result, flag = first - extra, partial_ | (first < extra)
            else:
                first, partial_ = a + b, (a + b) < a
                result, flag = first + extra, partial_ | ((first + extra) < first)
            assign(out, result, mask)
            if carry_out:
                assign(warp.carry, flag, mask)

        return call

    return bind


def _saturating(instr: Instr, ufunc: Any) -> Bind:
    def compute(a: Array, b: Array) -> Array:
        wide = ufunc(a.astype(np.int64), b.astype(np.int64))
        result: Array = np.clip(wide, -(2**31), 2**31 - 1)
        return result

    return expression(instr.operands, "s32", compute)


@instruction("mul")
def mul(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return float_binary(instr, mods, ptx_type)
    part = mods.pick(("lo", "hi", "wide"))
    mods.done()
    if part == "lo":
        return simple(np.multiply, instr.operands, dtype_of(ptx_type))
    if part == "hi":
        return expression(instr.operands, dtype_of(ptx_type), lambda a, b: multiply_high(a, b, ptx_type))
    wide = _wide(ptx_type)
    return simple(np.multiply, instr.operands, dtype_of(ptx_type), wide, widen=True)


def _wide(ptx_type: str) -> str:
    return f"{ptx_type[0] if ptx_type[0] != 'b' else 'u'}{2 * bits_of(ptx_type)}"


def multiply_high(a: Array, b: Array, ptx_type: str) -> Array:
    """The upper half of the product."""
    bits = bits_of(ptx_type)
    if bits < 64:
        wide = DTYPES[_wide(ptx_type)]
        result: Array = (a.astype(wide) * b.astype(wide)) >> wide(bits)
        return result
    exact = [int(x) * int(y) >> 64 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array([x % (1 << 64) for x in exact], np.uint64).view(a.dtype)


@instruction("mad")
def mad(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return fused_multiply_add(instr, mods, ptx_type)
    part = mods.pick(("lo", "hi", "wide"))
    carry = mods.flag("cc")
    mods.done()
    narrow = dtype_of(ptx_type)
    out_type = _wide(ptx_type) if part == "wide" else narrow

    if not carry:
        wide_type = DTYPES[out_type]

        def compute(a: Array, b: Array, c: Array) -> Array:
            product = multiply_high(a, b, ptx_type) if part == "hi" else np.multiply(a, b, dtype=wide_type)
            result: Array = product + c
            return result

        target, first, second, third = instr.operands
        return row_expression((target, out_type), [(first, narrow), (second, narrow), (third, out_type)], compute)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], out_type)
        a, b = (warp.src(op, narrow) for op in instr.operands[1:3])
        c = warp.src(instr.operands[3], out_type)

        def product() -> Array:
            if part == "hi":
                return multiply_high(a, b, ptx_type)
            result: Array = np.multiply(a, b, dtype=DTYPES[out_type])
            return result

        return lambda: _mad_carry(warp, out, product(), c, mask)

    return bind


def _mad_carry(warp: Warp, out: Array, product: Array, c: Array, mask: Mask | None) -> None:
    unsigned = np.dtype(f"u{out.dtype.itemsize}")
    total = product.view(unsigned) + c.view(unsigned)
    assign(out, total.view(out.dtype), mask)
    assign(warp.carry, total < c.view(unsigned), mask)


@instruction("madc")
def madc(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type, part, carry_out = mods.type(), mods.pick(("lo", "hi")), mods.flag("cc")
    mods.done()
    unsigned = f"u{bits_of(ptx_type)}"

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], unsigned)
        a, b, c = (warp.src(op, dtype_of(ptx_type)) for op in instr.operands[1:4])

        def call() -> None:
            product = multiply_high(a, b, ptx_type) if part == "hi" else np.multiply(a, b)
            first = product.astype(out.dtype) + c.view(out.dtype)
            total = first + warp.carry.astype(out.dtype)
            flag = (first < c.view(out.dtype)) | (total < first)
            assign(out, total, mask)
            if carry_out:
                assign(warp.carry, flag, mask)

        return call

    return bind


@instruction("mul24", "mad24")
def mul24(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type, part = mods.type(), mods.pick(("lo", "hi"))
    mods.done()

    def compute(a: Array, b: Array, c: Array | None = None) -> Array:
        wide = np.int64
        if ptx_type == "s32":
            low_a, low_b = (a << 8 >> 8).astype(wide), (b << 8 >> 8).astype(wide)
        else:
            low_a, low_b = (a & 0xFFFFFF).astype(wide), (b & 0xFFFFFF).astype(wide)
        product = low_a * low_b >> (16 if part == "hi" else 0)
        return product.astype(a.dtype) + (c if c is not None else a.dtype.type(0))

    return expression(instr.operands, dtype_of(ptx_type), compute)


@instruction("div", "rem")
def div_rem(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return float_binary(instr, mods, ptx_type)
    mods.done()
    compute = _quotient if instr.base == "div" else _remainder
    return expression(instr.operands, dtype_of(ptx_type), compute)


def _quotient(a: Array, b: Array) -> Array:
    """Truncating division; by zero gives all ones as the hardware does."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe
    if a.dtype.kind == "i":
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(b.dtype), floor)


def _remainder(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, np.fmod(a, safe))


@instruction("min", "max")
def min_max(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return float_minmax(instr, mods, ptx_type)
    relu = mods.flag("relu")
    mods.done()
    ufunc = np.minimum if instr.base == "min" else np.maximum
    if relu:
        return expression(instr.operands, dtype_of(ptx_type), lambda a, b: np.maximum(ufunc(a, b), 0))
    return simple(ufunc, instr.operands, dtype_of(ptx_type))


@instruction("neg", "abs")
def neg_abs(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    if ptx_type in FLOATS:
        return float_unary(instr, mods, ptx_type)
    mods.done()
    return simple(np.negative if instr.base == "neg" else np.absolute, instr.operands, dtype_of(ptx_type))


@instruction("sad")
def sad(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    return expression(instr.operands, dtype_of(ptx_type), lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c)
