"""Helpers that turn a numpy expression over lanes into a bound call, converged or masked.
They know rows and masks; what is computed is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .registry import Call
from .rowop import RowOp
from .types import DTYPES, LANES, Array, Mask, Not, Reg, Void

if TYPE_CHECKING:
    from .warp import Warp

NONE_SET = bytes(LANES)
ALL_SET = bytes([1]) * LANES


def destination(warp: Warp, operand: Any, dtype: str) -> Array:
    """The row to write; `_` gets a scratch row."""
    if isinstance(operand, Void):
        return np.empty(LANES, DTYPES[dtype])
    return warp.row(operand, dtype)


def ufunc_call(ufunc: Any, args: tuple[Array, ...], out: Array, mask: Mask | None, **kwargs: Any) -> Call:
    """One numpy call per execution."""
    if ufunc in (np.minimum, np.maximum):  # these take their output by name only
        return partial(ufunc, *args, out=out, **kwargs, **({} if mask is None else {"where": mask}))
    if mask is None:
        return partial(ufunc, *args, out, **kwargs)
    return partial(ufunc, *args, out, where=mask, **kwargs)


def copy_call(out: Array, source: Array, mask: Mask | None) -> Call:
    if mask is None:
        return partial(np.copyto, out, source, "unsafe")
    return partial(np.copyto, out, source, "unsafe", mask)


def assign(out: Array, value: Array, mask: Mask | None) -> None:
    if mask is None:
        np.copyto(out, value, "unsafe")
    else:
        np.copyto(out, value, "unsafe", mask)


def value_call(out: Array, mask: Mask | None, compute: Callable[[], Array]) -> Call:
    """Evaluate an expression, then write the lanes of the mask."""
    if mask is None:
        return lambda: np.copyto(out, compute(), "unsafe")
    return lambda: np.copyto(out, compute(), "unsafe", mask)


def simple(ufunc: Any, operands: list[Any], dtype: str, out_dtype: str = "", widen: bool = False) -> RowOp:
    """dst, sources... through one ufunc of one type; widen computes in the destination's type."""
    out_type = out_dtype or dtype
    sources = [(operand, dtype) for operand in operands[1:]]
    return RowOp(ufunc, (operands[0], out_type), sources, dtype=DTYPES[out_type] if widen else None)


def expression(
    operands: list[Any], dtype: str, compute: Callable[..., Array], out_dtype: str = "", batch: bool = False
) -> RowOp:
    """dst, sources... through a Python function of rows; batch says that it does not care about their shape."""
    return row_expression((operands[0], out_dtype or dtype), [(op, dtype) for op in operands[1:]], compute, batch)


def row_expression(
    target: tuple[Any, str], sources: list[tuple[Any, str]], compute: Callable[..., Array], batch: bool = False
) -> RowOp:
    """The same with a type for every operand."""
    copyto = np.copyto

    def run(out: Array, mask: Mask | None, *rows: Array) -> None:
        if mask is None:
            copyto(out, compute(*rows), "unsafe")
        else:
            copyto(out, compute(*rows), "unsafe", mask)

    return RowOp(run, target, sources, batch=compute if batch else None)


def row_copy(target: tuple[Any, str], source: tuple[Any, str]) -> RowOp:
    """A move of bits or values between rows."""
    return RowOp(copy_row, target, [source], batch=_same)


def copy_row(out: Array, mask: Mask | None, row: Array) -> None:
    """out = row where the mask is set."""
    if mask is None:
        np.copyto(out, row, "unsafe")
    else:
        np.copyto(out, row, "unsafe", mask)


def _same(row: Array) -> Array:
    return row


def predicate(warp: Warp, operand: Any) -> tuple[Array, bool]:
    """A predicate source row and whether it is negated."""
    if isinstance(operand, Not):
        return warp.rows["p"][operand.reg.index], True
    return warp.src(operand, "p"), False


def raw_row(warp: Warp, operand: Reg) -> Array:
    return warp.registers.raw(operand)
