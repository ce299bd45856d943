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
_NAN_EXPONENT = 600  # of UE8M0's code 255, so large that sums with it are told apart
_EXPONENTS = np.array([*range(255), _NAN_EXPONENT])
_POWERS = np.append(np.ldexp(1.0, np.arange(_NAN_EXPONENT) - 254), np.full(_NAN_EXPONENT + 1, np.nan))

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
        """(A * scale_A) @ (B * scale_B) of values A [16, k] and B [k, 8], float64; scales as codes [rows, count]."""
        a_codes, b_codes = a_scales(), b_scales()
        if self.count == 1:  # one power of two for each element of the result
            whole: Array = (a @ b) * _POWERS.take(_EXPONENTS.take(a_codes) + _EXPONENTS.take(b_codes[:, 0]))
            return whole
        k = a.shape[1] // self.count
        table = _float64_table(self.fmt)
        spread_a = a.reshape(16, self.count, k) * table.take(a_codes)[:, :, None]
        spread_b = b.reshape(self.count, k, 8) * table.take(b_codes.T)[:, None, :]
        result: Array = spread_a.reshape(16, -1) @ spread_b.reshape(-1, 8)
        return result


@lru_cache(maxsize=4)
def _float64_table(fmt: str) -> Array:
    return decode_table(fmt).astype(np.float64)


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


def scale_operand(scale: BlockScale, side: str, data: Any, selector: Any) -> Callable[[Warp], ScaleOperand]:
    """Binds to a warp a call that gives the codes [rows, count] out of scale data and {byte-id, thread-id}."""
    if not isinstance(selector, Vec) or len(selector.items) != 2:
        raise UnknownInstruction(f"the selector of scale-{side.lower()} must be {{byte-id, thread-id}}, got {selector}")
    held = data.items[0] if isinstance(data, Vec) else data
    names = (f"byte-id-{side.lower()}", f"thread-id-{side.lower()}")
    legal = (scale.byte_ids, tuple(range(_THREADS[side])))
    byte, thread = (_selected(*about, scale) for about in zip(selector.items, names, legal, strict=True))

    def bind(warp: Warp) -> ScaleOperand:
        octets = warp.src(held, "u32").view(np.uint8)
        first, lane = byte(warp), thread(warp)
        if scale.fmt == "ue4m3":  # seven bits; the eighth is padding
            return lambda: octets.take(_octets(side, lane(), first(), scale.count)) & 0x7F
        return lambda: octets.take(_octets(side, lane(), first(), scale.count))

    return bind


@lru_cache(maxsize=64)
def _octets(side: str, thread: int, first: int, count: int) -> Array:
    """Place of every scale among the bytes of 32 lanes, [rows, count]."""
    found: Array = 4 * scale_lanes(side, thread)[:, None] + np.arange(first, first + count)
    return found


def _selected(item: Any, name: str, legal: tuple[int, ...], scale: BlockScale) -> Callable[[Warp], Callable[[], int]]:
    """Binds a call that gives a selector's value, the same in all lanes."""

    def checked(chosen: int) -> int:
        if chosen not in legal:
            wanted = " or ".join(map(str, legal))
            raise Fault(f"mma.sync: {name} is {chosen}; with .scale_vec::{scale.count}X it must be {wanted}")
        return chosen

    if isinstance(item, Imm):
        fixed = checked(item.value)
        return lambda warp: lambda: fixed

    def bind(warp: Warp) -> Callable[[], int]:
        row = warp.src(item, "u16")

        def value() -> int:
            if (row != row[0]).any():
                raise Fault(
                    f"mma.sync: {name} differs between lanes: {sorted(set(row.tolist()))}; it must be one value"
                )
            return checked(int(row[0]))

        return value

    return bind
