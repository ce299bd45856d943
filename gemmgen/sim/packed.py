"""Arithmetic on bf16, f16x2, bf16x2, f16 and f32x2 registers.
Lanes are widened to float64, computed once and rounded once; opcode names come from the callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import assign, destination, predicate, value_call
from .errors import UnknownInstruction
from .registry import Bind, Call, Mods
from .types import LANES, Array, Instr, Mask, Pair, Void, dtype_of

if TYPE_CHECKING:
    from .warp import Warp

_PACKED = {"bf16": (1, "bf16"), "f16": (1, "f16"), "bf16x2": (2, "bf16"), "f16x2": (2, "f16"), "f32x2": (2, "f32")}


def is_packed(ptx_type: str) -> bool:
    """Whether the type is handled here rather than as plain float32 or float64."""
    return ptx_type in _PACKED


def widen(codes: Array) -> Array:
    """bf16 codes as float32."""
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(value: Array, element: str) -> Array:
    """Float64 to codes of bf16 or f16, rounded to nearest even once; NaN becomes 0x7fff."""
    if element == "f16":
        codes = value.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(value), np.uint16(0x7FFF), codes)
    near = value.astype(np.float32)
    wide = near.astype(np.float64)
    toward_zero = np.where(np.abs(wide) > np.abs(value), np.nextafter(near, np.float32(0)), near)
    bits = toward_zero.view(np.uint32) | (toward_zero.astype(np.float64) != value)  # round to odd
    bits = np.where(np.isinf(near) & np.isinf(value), near.view(np.uint32), bits)
    codes = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), codes)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of 16-bit values as float64 rounded to odd: rounding that to 16 bits rounds the exact sum once."""
    from .floats import two_sum_error

    product = a * b  # exact: two significands of at most 11 bits
    total = product + c
    error = two_sum_error(product, c, total)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    return np.where(even & (error != 0), np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def _elements(row: Array, element: str) -> Array:
    """Float64 values of all parts of a register row."""
    flat = np.ascontiguousarray(row)
    if element == "f32":
        return flat.view(np.float32).astype(np.float64)
    if element == "f16":
        return flat.view(np.float16).astype(np.float64)
    return widen(flat.view(np.uint16)).astype(np.float64)


def _codes(value: Array, element: str, out: Array) -> Array:
    codes = value.astype(np.float32).view(np.uint32) if element == "f32" else narrow(value, element)
    return np.ascontiguousarray(codes).view(out.dtype)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": lambda a, b, c: fused(a, b, c),
    "mad": lambda a, b, c: fused(a, b, c),
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "tanh": np.tanh,
    "rcp": lambda x: 1.0 / x,
}


def packed_operation(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """The operation on every part of the registers."""
    parts, element = _PACKED[ptx_type]
    mode = mods.pick(("rn", "rz", "rm", "rp"), "rn")
    mods.flag("approx")
    nan, relu, sat = mods.flag("NaN"), mods.flag("relu"), mods.flag("sat")
    ftz = mods.flag("ftz")
    mods.done()
    if mode != "rn" or (ftz and element != "f32"):
        raise UnknownInstruction(f"{instr.opcode!r}: this rounding is not modelled for {ptx_type}")
    function = _function(instr.base, nan, element)
    if element == "f32" and instr.base in ("fma", "mad"):
        return _fma_pairs(instr)
    if instr.base in ("neg", "abs"):
        return _sign_bits(instr, parts, element)

    def compute(out: Array, rows: list[Array]) -> Array:
        value = function(*(_elements(row, element) for row in rows))
        if relu:
            value = np.where(np.isnan(value), value, np.maximum(value, 0.0))
        if sat:
            value = np.clip(np.where(np.isnan(value), 0.0, value), 0.0, 1.0)
        return _codes(value, element, out)

    return _bind(instr, ptx_type, compute)


def _bind(instr: Instr, ptx_type: str, compute: Callable[[Array, list[Array]], Array]) -> Bind:
    dtype = "u16" if ptx_type in ("bf16", "f16") else dtype_of(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], dtype)
        rows = [warp.src(op, dtype) for op in instr.operands[1:]]
        return value_call(out, mask, lambda: compute(out, rows))

    return bind


def _function(base: str, nan: bool, element: str) -> Callable[..., Array]:
    if base in ("min", "max"):
        from .floats import min_max_of

        return lambda a, b: min_max_of(a, b, base == "max", nan)
    if base not in _FUNCTIONS:
        raise UnknownInstruction(f"{base} has no packed form in the simulator")
    return _FUNCTIONS[base]


def _fma_pairs(instr: Instr) -> Bind:
    from .floats import fma_f32

    def compute(out: Array, rows: list[Array]) -> Array:
        a, b, c = (np.ascontiguousarray(row).view(np.float32) for row in rows)
        return fma_f32(a, b, c).view(out.dtype)

    return _bind(instr, "f32x2", compute)


def _sign_bits(instr: Instr, parts: int, element: str) -> Bind:
    bits = 32 if element == "f32" else 16
    sign = sum(1 << (bits * (i + 1) - 1) for i in range(parts))
    dtype, nan = (np.uint32, 0x7FFFFFFF) if element == "f32" else (np.uint16, 0x7FFF)
    ptx_type = next(name for name, shape in _PACKED.items() if shape == (parts, element))

    def compute(out: Array, rows: list[Array]) -> Array:
        flipped: Array = rows[0] ^ out.dtype.type(sign)
        cleared: Array = rows[0] & out.dtype.type(~sign % (1 << bits * parts))
        result = np.ascontiguousarray(flipped if instr.base == "neg" else cleared).view(dtype)
        return np.where(np.isnan(_elements(rows[0], element)), dtype(nan), result).view(out.dtype)

    return _bind(instr, ptx_type, compute)


def packed_compare(instr: Instr, compare: Any, ptx_type: str, combine: str) -> Bind:
    """setp on f16, f16x2 and bf16x2: one predicate per part."""
    parts, element = _PACKED[ptx_type]
    target, a_op, b_op, *rest = instr.operands
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    dtype = "u16" if parts == 1 else "u32"

    def bind(warp: Warp, mask: Mask | None) -> Call:
        first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Void())
        outs = destination(warp, first, "p"), destination(warp, second, "p")
        a, b = warp.src(a_op, dtype), warp.src(b_op, dtype)
        extra = predicate(warp, rest[0]) if rest else None

        def call() -> None:
            result = compare(_elements(a, element), _elements(b, element)).reshape(LANES, parts)
            results = [result[:, 0], result[:, 1] if parts == 2 else ~result[:, 0]]
            for out, value in zip(outs, results, strict=True):
                if extra is not None:
                    value = join[combine](value, ~extra[0] if extra[1] else extra[0])
                assign(out, value, mask)

        return call

    return bind


__all__ = ["is_packed", "narrow", "packed_compare", "packed_operation", "widen"]
