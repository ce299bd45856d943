"""Block scaling of mma.sync: which lane and which bytes give the scale of a row or column, and the scaled product.
The lanes are those of the PTX ISA's selectors; it may not know where the elements of A and B lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault, UnknownInstruction
from .formats import decode_table
from .registry import Mods
from .types import Array, Imm, Instr, Vec

if TYPE_CHECKING:
    from .warp import Warp

ScaleOperand = Callable[[], Array]
_ROWS = {"A": 16, "B": 8}
_THREADS = {"A": 2, "B": 4}  # thread-ids that select the lanes of a quad
_MODERATE = 40  # exponents whose products fit float32 by far

# kind and scale vector -> scale types; without a scale vector the first entry of the kind counts, if it may be left out
_LEGAL: dict[str, dict[str, tuple[str, ...]]] = {
    "kind::mxf8f6f4": {"scale_vec::1X": ("ue8m0",)},
    "kind::mxf4": {"scale_vec::2X": ("ue8m0",)},
    "kind::mxf4nvf4": {"scale_vec::2X": ("ue8m0",), "scale_vec::4X": ("ue4m3", "ue8m0")},
}


@dataclass(frozen=True)
class BlockScale:
    """Scales per row of A (and column of B), and their format."""

    count: int
    fmt: str

    @property
    def byte_ids(self) -> tuple[int, ...]:
        return tuple(range(0, 4, self.count))

    def product(self, a: Array, b: Array, a_scales: ScaleOperand, b_scales: ScaleOperand) -> Array:
        """(A * scale_A) @ (B * scale_B) of values A [16, k] and B [k, 8]; scales as codes [rows, count]."""
        a_codes, b_codes = a_scales(), b_scales()
        table = decode_table(self.fmt)
        if self.fmt == "ue8m0" and not (_is_moderate(a_codes) and _is_moderate(b_codes)):
            table = table.astype(np.float64)
        left, right = table[a_codes], table[b_codes]
        if self.count == 1:
            whole: Array = (a @ b) * (left * right[:, 0])
            return whole
        k = a.shape[1] // self.count
        spread_a = (a.reshape(16, self.count, k) * left[:, :, None]).reshape(16, -1)
        spread_b = (b.reshape(self.count, k, 8) * right.T[:, None, :]).reshape(-1, 8)
        result: Array = spread_a @ spread_b
        return result


def _is_moderate(codes: Array) -> bool:
    return bool(codes.min() >= 127 - _MODERATE and codes.max() <= 127 + _MODERATE)


def block_scale_of(instr: Instr, kind: str, mods: Mods) -> BlockScale | None:
    """Consumes the modifiers of block scaling; None for kinds without it."""
    scaled = mods.flag("block_scale")
    if scaled != (kind in _LEGAL):
        raise UnknownInstruction(f"{instr.opcode!r}: .block_scale goes with {', '.join(_LEGAL)} and with nothing else")
    if not scaled:
        return None
    vectors = _LEGAL[kind]
    default = next(iter(vectors)) if len(vectors) == 1 else ""
    vector, fmt = mods.pick(("scale_vec::1X", "scale_vec::2X", "scale_vec::4X"), default), mods.pick(("ue8m0", "ue4m3"))
    if fmt not in vectors.get(vector, ()):
        allowed = "; ".join(f".{name} with {' or '.join(fmts)}" for name, fmts in vectors.items())
        raise UnknownInstruction(f"{instr.opcode!r}: .{kind} scales as {allowed}")
    return BlockScale(int(vector[-2]), fmt)


@lru_cache(maxsize=16)
def scale_lanes(side: str, thread: int) -> Array:
    """The lane whose register holds the scales of each row of A (two lanes of each quad) or column of B (one)."""
    row = np.arange(_ROWS[side])
    return 4 * (row % 8) + 2 * thread + row // 8 if side == "A" else 4 * row + thread


def scale_operand(warp: Warp, scale: BlockScale, side: str, data: Any, selector: Any) -> ScaleOperand:
    """A call that gives the codes [rows, count] out of scale data and {byte-id, thread-id}."""
    register = warp.src(data.items[0] if isinstance(data, Vec) else data, "u32")
    if not isinstance(selector, Vec) or len(selector.items) != 2:
        raise UnknownInstruction(f"the selector of scale-{side.lower()} must be {{byte-id, thread-id}}, got {selector}")
    byte, thread = (
        _selected(warp, item, f"{name}-{side.lower()}", legal, scale)
        for item, name, legal in zip(
            selector.items, ("byte-id", "thread-id"), (scale.byte_ids, tuple(range(_THREADS[side]))), strict=True
        )
    )
    mask = 0x7F if scale.fmt == "ue4m3" else 0xFF

    def codes() -> Array:
        first = byte()
        octets = register[scale_lanes(side, thread())].view(np.uint8).reshape(-1, 4)
        return octets[:, first : first + scale.count] & mask

    return codes


def _selected(warp: Warp, item: Any, name: str, legal: tuple[int, ...], scale: BlockScale) -> Callable[[], int]:
    """A selector's value, the same in all lanes."""
    row = warp.src(item, "u16")

    def value() -> int:
        chosen = int(row[0])
        if chosen not in legal:
            raise Fault(
                f"mma.sync: {name} is {chosen}; with .scale_vec::{scale.count}X it must be "
                f"{' or '.join(map(str, legal))}"
            )
        if (row != chosen).any():
            raise Fault(f"mma.sync: {name} differs between lanes, {sorted(set(row.tolist()))}; it must be one value")
        return chosen

    if isinstance(item, Imm):
        fixed = value()
        return lambda: fixed
    return value
