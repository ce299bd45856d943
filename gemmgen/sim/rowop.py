"""An instruction that is one function of register rows: blocks.py writes it as a line of code or merges it in batches.
It knows operands and masks; which function it is, the families say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .registry import Call
from .types import DTYPES, LANES, Array, Mask, Reg, Void
from .values import KIND_OF

if TYPE_CHECKING:
    from .warp import Warp

TypedOperand = tuple[Any, str]


class RowOp:
    """target and sources with the types they are seen under; called with a warp and a mask it binds like any decoder.

    function is a ufunc, called (rows..., out[, where]); or any callable, called (out, mask, rows...).
    batch, if there is one, maps stacked rows to the stacked result and must not care about their shape.
    """

    def __init__(
        self,
        function: Any,
        target: TypedOperand,
        sources: list[TypedOperand],
        batch: Callable[..., Array] | None = None,
        dtype: Any = None,
    ) -> None:
        self.function = function
        self.target = target
        self.sources = sources
        self.is_ufunc = isinstance(function, np.ufunc)
        self.dtype = dtype
        self.batch = function if batch is None and self.is_ufunc and dtype is None else batch

    def __call__(self, warp: Warp, mask: Mask | None) -> Call:
        out = self._out(warp)
        rows = [warp.src(operand, dtype) for operand, dtype in self.sources]
        if not self.is_ufunc:
            return partial(self.function, out, mask, *rows)
        return partial(self.function, *rows, **self.keywords(out, mask))

    def keywords(self, out: Array, mask: Mask | None) -> dict[str, Any]:
        """Keyword arguments of a ufunc call."""
        chosen: dict[str, Any] = {"out": out}
        if mask is not None:
            chosen["where"] = mask
        if self.dtype is not None:
            chosen["dtype"] = self.dtype
        return chosen

    def _out(self, warp: Warp) -> Array:
        operand, dtype = self.target
        return np.empty(LANES, DTYPES[dtype]) if isinstance(operand, Void) else warp.row(operand, dtype)

    @property
    def writes_whole_register(self) -> bool:
        """Whether the target is a register of exactly the type's width, so that code can name its row."""
        operand, dtype = self.target
        return isinstance(operand, Reg) and KIND_OF.get(dtype) == operand.kind
