"""Float-only opcodes: fma, the special functions, and tests of float classes.
The numbers come from floats.py and packed.py; this file only names opcodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import destination, value_call
from .floats import fused_multiply_add, special_function
from .registry import Bind, Call, Mods, instruction
from .types import Array, Instr, Mask, dtype_of

if TYPE_CHECKING:
    from .warp import Warp


@instruction("fma")
def fma(instr: Instr) -> Bind:
    mods = Mods(instr)
    return fused_multiply_add(instr, mods, mods.type())


@instruction("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def special(instr: Instr) -> Bind:
    mods = Mods(instr)
    return special_function(instr, mods, mods.type())


@instruction("copysign")
def copysign(instr: Instr) -> Bind:
    mods = Mods(instr)
    dtype = dtype_of(mods.type())
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], dtype)
        sign, magnitude = (warp.src(op, dtype) for op in instr.operands[1:3])
        return value_call(out, mask, lambda: np.copysign(magnitude, sign))

    return bind


def _subnormal(x: Array) -> Array:
    result: Array = (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)
    return result


_CLASSES: dict[str, Any] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": _subnormal,
}


@instruction("testp")
def testp(instr: Instr) -> Bind:
    mods = Mods(instr)
    which, dtype = mods.pick(_CLASSES), dtype_of(mods.type())
    mods.done()
    test = _CLASSES[which]

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, x = destination(warp, instr.operands[0], "p"), warp.src(instr.operands[1], dtype)
        return value_call(out, mask, lambda: test(x))

    return bind
