"""Float arithmetic of PTX with its roundings: add to fma, square roots, exponentials, minimum and maximum.
Everything is computed in float64 and rounded once; approximate instructions give the rounded exact value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import NONE_SET, assign, expression, simple
from .errors import UnknownInstruction
from .registry import Bind, Mods
from .rowop import RowOp
from .types import LANES, Array, Instr, Mask, dtype_of

if TYPE_CHECKING:
    pass

ROUNDINGS = ("rn", "rz", "rm", "rp")
_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
_TINY = np.float32(2.0**-126)
_LOW, _TIE = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)  # bits of a float64 that a float32 drops; half a float32 ulp


def flush(value: Array) -> Array:
    """.ftz: subnormals become zeros of their sign."""
    return np.where(np.abs(value) < _TINY, np.copysign(np.float32(0), value), value)


def saturate(value: Array) -> Array:
    """.sat: clamp to [0, 1], NaN to 0."""
    return np.fmin(np.fmax(np.where(np.isnan(value), 0, value), 0), 1)


def round_directed(value: Array, error: Array, mode: str) -> Array:
    """Float32 of the exact sum value + error (|error| below an ulp of value), rounded in a direction."""
    near = value.astype(np.float32)
    wide = near.astype(np.float64)
    above = (wide > value) | ((wide == value) & (error < 0))
    below = (wide < value) | ((wide == value) & (error > 0))
    down, up = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    negative = (value < 0) | ((value == 0) & (error < 0))
    if mode == "rm" or mode == "rp":
        return np.where(above, down, near) if mode == "rm" else np.where(below, up, near)
    return np.where(above & ~negative, down, np.where(below & negative, up, near))


def two_sum_error(a: Array, b: Array, total: Array) -> Array:
    """The rounding error of total = a + b."""
    part = total - a
    error: Array = (a - (total - part)) + (b - part)
    return np.where(np.isfinite(total), error, 0.0)


def nearest(value: Array, error: Array) -> Array:
    """Float32 nearest to the exact value + error, for a float64 that may sit exactly on a tie."""
    tie = (value.view(np.uint64) & _LOW) == _TIE
    fixed = np.where(tie & (error != 0), np.nextafter(value, np.where(error > 0, np.inf, -np.inf)), value)
    return fixed.astype(np.float32)


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a * b + c of float32 arrays with one rounding."""
    product = a.astype(np.float64) * b
    addend = c.astype(np.float64)
    total = product + addend
    error = two_sum_error(product, addend, total)
    return nearest(total, error) if mode == "rn" else round_directed(total, error, mode)


def _shape(instr: Instr, mods: Mods) -> tuple[str, bool, bool]:
    """Rounding, flush to zero, saturate."""
    mode = mods.pick(ROUNDINGS, "rn")
    return mode, mods.flag("ftz"), mods.flag("sat")


def _wrapped(compute: Callable[..., Array], ftz: bool, sat: bool) -> Callable[..., Array]:
    def with_modes(*args: Array) -> Array:
        value = compute(*(flush(a) for a in args)) if ftz else compute(*args)
        if ftz:
            value = flush(value)
        return saturate(value) if sat else value

    return with_modes


def float_binary(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """add, sub, mul, div of any float type."""
    from .packed import is_packed, packed_operation

    if is_packed(ptx_type):
        return packed_operation(instr, mods, ptx_type)
    mode, ftz, sat = _shape(instr, mods)
    if instr.base == "div":
        mods.flag("approx", "full")
    mods.done()
    ufunc = _BINARY[instr.base]
    if mode == "rn" and not ftz and not sat:
        return simple(ufunc, instr.operands, dtype_of(ptx_type))
    compute = ufunc if mode == "rn" or ptx_type == "f64" else _directed(instr.base, mode)
    return expression(instr.operands, dtype_of(ptx_type), _wrapped(compute, ftz, sat))


def _directed(base: str, mode: str) -> Callable[[Array, Array], Array]:
    def compute(a: Array, b: Array) -> Array:
        if base == "mul":
            return round_directed(a.astype(np.float64) * b, np.zeros(LANES), mode)
        if base == "div":
            quotient = a.astype(np.float64) / b
            return round_directed(quotient, np.zeros(LANES), mode)
        x, y = a.astype(np.float64), (b if base == "add" else -b).astype(np.float64)
        return round_directed(x + y, two_sum_error(x, y, x + y), mode)

    return compute


_T0, _T1 = np.empty(LANES), np.empty(LANES)
_U, _B = np.empty(LANES, np.uint64), np.empty(LANES, np.bool_)
_LOW_ROW, _TIE_ROW = np.full(LANES, _LOW), np.full(LANES, _TIE)


def fused_multiply_add(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """fma, and mad of floats."""
    from .packed import is_packed, packed_operation

    if is_packed(ptx_type):
        return packed_operation(instr, mods, ptx_type)
    mode, ftz, sat = _shape(instr, mods)
    mods.done()
    if ptx_type == "f64":
        wide = np.longdouble
        return expression(instr.operands, "f64", lambda a, b, c: (a.astype(wide) * b + c).astype(np.float64))
    if mode == "rn" and not ftz and not sat:
        return _fast_fma(instr)
    return expression(instr.operands, "f32", _wrapped(lambda a, b, c: fma_f32(a, b, c, mode), ftz, sat))


def _fast_fma(instr: Instr) -> Bind:
    """fma.rn.f32 with shared scratch rows; the exact path only where a tie shows."""
    copyto, multiply, add, bit_and, equal = np.copyto, np.multiply, np.add, np.bitwise_and, np.equal
    bits = _T1.view(np.uint64)

    def run(out: Array, mask: Mask | None, a: Array, b: Array, c: Array) -> None:
        copyto(_T0, a)
        copyto(_T1, b)
        multiply(_T0, _T1, _T0)
        add(_T0, c, _T1)
        bit_and(bits, _LOW_ROW, _U)
        equal(_U, _TIE_ROW, _B)
        if _B.tobytes() != NONE_SET:
            assign(out, fma_f32(a, b, c), mask)
        elif mask is None:
            copyto(out, _T1, "unsafe")
        else:
            copyto(out, _T1, "unsafe", mask)

    target, *sources = instr.operands
    return RowOp(run, (target, "f32"), [(op, "f32") for op in sources], batch=fma_batch)


def fma_batch(a: Array, b: Array, c: Array) -> Array:
    """fma.rn.f32 of stacked rows, as float64 that rounds to the right float32."""
    product = a.astype(np.float64) * b
    total = product + c
    tie = (total.view(np.uint64) & _LOW) == _TIE
    if tie.any():
        return nearest(total, two_sum_error(product, c.astype(np.float64), total))
    return total


def float_minmax(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """min and max, of two or three values; +0 is greater than -0 and NaN loses unless .NaN."""
    from .packed import is_packed, packed_operation

    if is_packed(ptx_type):
        return packed_operation(instr, mods, ptx_type)
    ftz, nan, xorsign, absolute = mods.flag("ftz"), mods.flag("NaN"), mods.flag("xorsign"), mods.flag("abs")
    mods.done()
    if xorsign or (absolute and xorsign):
        raise UnknownInstruction(f"{instr.opcode!r}: .xorsign.abs is not modelled")
    largest = instr.base == "max"

    def compute(*args: Array) -> Array:
        result = min_max_of(args[0], args[1], largest, nan)
        for extra in args[2:]:
            result = min_max_of(result, extra, largest, nan)
        return result

    return expression(instr.operands, dtype_of(ptx_type), _wrapped(compute, ftz, False))


def min_max_of(a: Array, b: Array, largest: bool, nan: bool) -> Array:
    """One minimum or maximum with PTX's rules for zeros and NaN."""
    ufunc = (np.maximum if nan else np.fmax) if largest else (np.minimum if nan else np.fmin)
    result: Array = ufunc(a, b)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    zeros = (a == 0) & (b == 0)
    if zeros.tobytes() != NONE_SET:
        signs = (a.view(unsigned) & b.view(unsigned)) if largest else (a.view(unsigned) | b.view(unsigned))
        result = np.where(zeros, signs.view(a.dtype), result)
    return result


def float_unary(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """neg and abs: only the sign changes."""
    from .packed import is_packed, packed_operation

    if is_packed(ptx_type):
        return packed_operation(instr, mods, ptx_type)
    ftz = mods.flag("ftz")
    mods.done()
    ufunc = np.negative if instr.base == "neg" else np.absolute
    if ftz:
        return expression(instr.operands, dtype_of(ptx_type), _wrapped(ufunc, True, False))
    return simple(ufunc, instr.operands, dtype_of(ptx_type))


def _rcp(x: Array) -> Array:
    result: Array = 1.0 / x
    return result


def _rsqrt(x: Array) -> Array:
    result: Array = 1.0 / np.sqrt(x)
    return result


SPECIAL_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rcp": _rcp,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def special_function(instr: Instr, mods: Mods, ptx_type: str) -> Bind:
    """rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh."""
    from .packed import is_packed, packed_operation

    if is_packed(ptx_type):
        return packed_operation(instr, mods, ptx_type)
    mode, ftz, sat = _shape(instr, mods)
    mods.flag("approx")
    mods.done()
    function = SPECIAL_FUNCTIONS[instr.base]
    dtype = dtype_of(ptx_type)

    def compute(x: Array) -> Array:
        wide = function(x.astype(np.float64))
        if ptx_type == "f32" and mode != "rn":
            return round_directed(wide, np.zeros(LANES), mode)
        rounded: Array = wide.astype(x.dtype)
        return rounded

    return expression(instr.operands, dtype, _wrapped(compute, ftz, sat))
