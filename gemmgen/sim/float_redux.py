"""redux.sync of float32: minimum or maximum over the lanes of a warp, which sm_100a adds to the integer forms.
It knows one reduction; lanes and masks are the warp's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .elementwise import destination, value_call
from .formats import F32_NAN
from .registry import SYNC, Bind, Call, Mods, instruction
from .types import Array, Instr, Mask

if TYPE_CHECKING:
    from .warp import Warp

_FORMS = [f"redux.sync.{mode}.{rest}" for mode in ("min", "max") for rest in ("abs", "NaN", "f32")]


@instruction(*_FORMS, kind=SYNC)
def redux_f32(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    largest = mods.pick(("min", "max")) == "max"
    magnitude, keeps_nan = mods.flag("abs"), mods.flag("NaN")
    mods.flag("f32")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, value = destination(warp, instr.operands[0], "f32"), warp.src(instr.operands[1], "f32")

        def compute() -> Array:
            warp.soft_sync()
            active = value if mask is None else value[mask]
            return _reduce(np.abs(active) if magnitude else active, largest, keeps_nan)

        return value_call(out, mask, compute)

    return bind


def _reduce(values: Array, largest: bool, keeps_nan: bool) -> Array:
    """NaN inputs do not count, unless all are NaN or .NaN asks for them; -0 is below +0."""
    nan = np.isnan(values)
    if nan.all() or (keeps_nan and nan.any()):
        return np.array(F32_NAN, np.uint32).view(np.float32)
    numbers = values[~nan]
    keys = sorted(numbers.tolist(), key=lambda x: (x, not np.signbit(x)))
    return np.array(keys[-1 if largest else 0], np.float32)
