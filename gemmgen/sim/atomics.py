"""atom and red on global and shared memory, scalars and vectors.
Lanes take effect in lane order; addresses and bounds are memory_ops.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import destination
from .errors import Fault, UnknownInstruction
from .global_order import Order, level_of, order_of
from .memory_ops import SPACES, active_lanes, address_call, spans
from .packed import narrow, widen
from .registry import CACHE_HINTS, SCOPES, Bind, Call, Mods, instruction
from .types import DTYPES, Array, Instr, Mask, Vec, bits_of, dtype_of

if TYPE_CHECKING:
    from .memory_ops import Span
    from .warp import Warp

_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")


def _halves(value: Array, element: str) -> Array:
    return widen(value).astype(np.float64) if element == "bf16" else value.view(np.float16).astype(np.float64)


def _packed(function: Callable[[Array, Array], Array], ptx_type: str) -> Callable[[Array, Array], Array]:
    element = "bf16" if ptx_type.startswith("bf16") else "f16"

    def apply(old: Array, new: Array) -> Array:
        a, b = (_halves(np.atleast_1d(x).view(np.uint16), element) for x in (old, new))
        return narrow(function(a, b), element).view(old.dtype)

    return apply


def _operation(name: str, ptx_type: str) -> Callable[[Array, Array], Array]:
    """old, operand -> new, on arrays of one element."""
    table: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "min": np.fmin if ptx_type.startswith("f") else np.minimum,
        "max": np.fmax if ptx_type.startswith("f") else np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, new: new,
        "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
        "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype),
    }
    if ptx_type in ("f16x2", "bf16x2", "f16", "bf16"):
        return _packed({"add": np.add, "min": np.fmin, "max": np.fmax}[name], ptx_type)
    return table[name]


@instruction("atom", "red")
def atomic(instr: Instr) -> Bind:
    mods = Mods(instr)
    order = order_of(instr) or ("relaxed", level_of(instr))
    mods.flag("relaxed", "acquire", "release", "acq_rel", "noftz", *SCOPES, *CACHE_HINTS)
    if mods.flag("async"):
        raise UnknownInstruction(f"{instr.opcode!r}: red.async is not modelled")
    space = mods.pick(SPACES, "generic")
    name = mods.pick(_OPERATIONS)
    count = int(mods.pick(("v2", "v4", "v8"), "v1")[1:])
    ptx_type = mods.type()
    mods.done()
    first = 1 if instr.base == "atom" else 0
    size = bits_of(ptx_type) // 8
    dtype = "u16" if ptx_type in ("f16", "bf16") else dtype_of(ptx_type)
    apply = None if name == "cas" else _operation(name, ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, instr.operands[first])
        sources = [_rows(warp, op, dtype) for op in instr.operands[first + 1 : first + 3]]
        outs = _rows(warp, instr.operands[0], dtype, out=True) if first else []

        def call() -> None:
            lanes = active_lanes(mask)
            if not lanes.size:
                return
            warp.effects += 1
            for span in spans(warp, space, address()[lanes], lanes, size * count, size * count):
                _order(warp, span, size * count, order, bool(first))
                for i in range(count):
                    _apply(span, i, size, dtype, apply, [rows[i] for rows in sources], outs[i] if outs else None)

        return call

    return bind


def _rows(warp: Warp, operand: Any, dtype: str, out: bool = False) -> list[Array]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    return [destination(warp, item, dtype) if out else warp.src(item, dtype) for item in items]


def _order(warp: Warp, span: Span, nbytes: int, order: Order, returns: bool) -> None:
    """Atomics pass order on, those on global memory as far as they say, and their words are not judged as data."""
    if span.cta is None:
        if not span.block.writable:
            raise Fault(f"{span.block.name}: atomic on memory mapped read-only")
        if warp.unwaited:
            warp.cta.gpu.in_use.check_lanes(warp, span, nbytes, write=True)
        if (maps := warp.cta.gpu.map_order) is not None:
            maps.written(warp, span.block, span.offsets, span.lanes)
        if (keeper := warp.cta.gpu.global_order) is not None:
            keeper.touch(warp, span, nbytes, order, reads=returns, writes=True)
        return
    np.maximum(span.cta.flag_clock, warp.release(), out=span.cta.flag_clock)
    warp.acquire(span.cta.flag_clock)
    span.cta.shadow.forget(span.offsets >> 2)


def _apply(span: Span, part: int, size: int, dtype: str, apply: Any, sources: list[Array], out: Array | None) -> None:
    view = span.block.view(size).view(DTYPES[dtype])
    index = span.offsets // size + part
    if apply is not None and len(set(index.tolist())) == index.size:
        old = view[index]
        view[index] = apply(old, sources[0][span.lanes])
        if out is not None:
            out[span.lanes] = old
        return
    for lane, where in zip(span.lanes.tolist(), index.tolist(), strict=True):
        before = view[where : where + 1].copy()
        if apply is None:
            if before[0] == sources[0][lane]:
                view[where] = sources[1][lane]
        else:
            view[where] = apply(before, sources[0][lane : lane + 1])[0]
        if out is not None:
            out[lane] = before[0]
