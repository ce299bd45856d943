"""Comparisons and selections: setp, set, selp, slct, szext.
Predicates in and out; what is compared comes as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import assign, destination, expression, predicate, row_expression, simple, value_call
from .errors import UnknownInstruction
from .registry import Bind, Call, Mods, instruction
from .types import Array, Instr, Mask, Not, Pair, Void, dtype_of

if TYPE_CHECKING:
    from .warp import Warp


def _ordered_ne(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


_ORDERED: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_UNORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "equ": lambda a, b: ~_ordered_ne(a, b),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(name: str, ptx_type: str) -> Any:
    """The function of two rows behind a comparison modifier."""
    if name in _UNORDERED:
        return _UNORDERED[name]
    if name == "ne" and ptx_type in ("f32", "f64", "f16", "bf16"):
        return _ordered_ne
    return _ORDERED[name]


@instruction("setp")
def setp(instr: Instr) -> Bind:
    from .packed import is_packed, packed_compare, widen

    mods = Mods(instr)
    name = mods.pick((*_ORDERED, *_UNORDERED))
    combine = mods.pick(_COMBINE)
    ptx_type, ftz = mods.type(), mods.flag("ftz")
    mods.done()
    if is_packed(ptx_type) and ptx_type != "bf16":
        return packed_compare(instr, comparison(name, "f32"), ptx_type, combine)
    compare = comparison(name, ptx_type)
    target, a_op, b_op, *rest = instr.operands
    dtype = dtype_of(ptx_type)
    if (
        not isinstance(target, Pair)
        and not combine
        and isinstance(compare, np.ufunc)
        and not ftz
        and ptx_type != "bf16"
    ):
        return simple(compare, instr.operands, dtype, "p")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Void())
        out, other = destination(warp, first, "p"), destination(warp, second, "p")
        a, b = warp.src(a_op, dtype), warp.src(b_op, dtype)
        extra = predicate(warp, rest[0]) if rest else None

        def call() -> None:
            result = compare(widen(a), widen(b)) if ptx_type == "bf16" else compare(a, b)
            opposite = ~result
            if extra is not None:
                third = ~extra[0] if extra[1] else extra[0]
                result, opposite = _COMBINE[combine](result, third), _COMBINE[combine](opposite, third)
            assign(out, result, mask)
            assign(other, opposite, mask)

        return call

    return bind


@instruction("set")
def set_(instr: Instr) -> Bind:
    mods = Mods(instr)
    name = mods.pick((*_ORDERED, *_UNORDERED))
    combine = mods.pick(_COMBINE)
    types = mods.types()
    mods.flag("ftz")
    mods.done()
    if combine:
        raise UnknownInstruction(f"{instr.opcode!r}: the combining form is not modelled")
    compare = comparison(name, types[1])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], dtype_of(types[0]))
        a, b = (warp.src(op, dtype_of(types[1])) for op in instr.operands[1:3])
        yes = 1.0 if types[0] == "f32" else -1
        return value_call(out, mask, lambda: np.where(compare(a, b), yes, 0))

    return bind


@instruction("selp")
def selp(instr: Instr) -> Bind:
    mods = Mods(instr)
    ptx_type = mods.type()
    mods.done()
    dtype = dtype_of(ptx_type)

    target, a, b, chosen = instr.operands
    if isinstance(chosen, Not):
        a, b, chosen = b, a, chosen.reg
    return row_expression((target, dtype), [(chosen, "p"), (a, dtype), (b, dtype)], np.where, batch=True)


@instruction("slct")
def slct(instr: Instr) -> Bind:
    mods = Mods(instr)
    types = mods.types()
    mods.flag("ftz")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], dtype_of(types[0]))
        a, b = (warp.src(op, dtype_of(types[0])) for op in instr.operands[1:3])
        c = warp.src(instr.operands[3], dtype_of(types[1]))
        return value_call(out, mask, lambda: np.where(c >= 0, a, b))

    return bind


@instruction("szext")
def szext(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.pick(("clamp", "wrap"))
    ptx_type = mods.type()
    mods.done()

    def compute(a: Array, width: Array) -> Array:
        shift_by = np.where(width >= 32, 0, 32 - width.astype(np.int64)).astype(a.dtype)
        extended = (a << shift_by) >> shift_by
        result: Array = np.where(width == 0, a.dtype.type(0), extended)
        return result

    return expression(instr.operands, dtype_of(ptx_type), compute)
