"""ldmatrix, stmatrix and movmatrix: a warp's matrices between shared memory and registers.
Where elements sit is fragments.py's, products are mma_sync.py's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import Fault, UnknownInstruction
from .fragments import (
    expand_b4x16_p64,
    expand_b6x16_p32,
    ldmatrix_m8n8,
    ldmatrix_m8n16,
    ldmatrix_m16n16_trans_b8,
    movmatrix,
    stmatrix_m8n8,
    stmatrix_m16n8_trans_b8,
)
from .memory_ops import address_call, note_read, note_write, spans
from .mma_sync import registers_of, stacked
from .registry import SYNC, Bind, Call, Mods, instruction
from .shadow import EVERY_LANE
from .swizzle import CHUNK_TYPE
from .types import Array, Instr, Mask

if TYPE_CHECKING:
    from .warp import Warp

_SHARED = ("shared", "shared::cta")
_FORMATS = ("b16", "b8", "b8x16", "b6x16_p32", "b4x16_p64")
_COUNTS = ("x1", "x2", "x4")
_ROW_BYTES = 16
_SOME_LANE = 127  # every lane reads parts of every row


@dataclass(frozen=True)
class Move:
    """One matrix form: rows of 16 bytes per matrix, registers per matrix, most matrices, rows <-> registers."""

    rows: int
    registers: int
    most: int
    convert: Callable[[Array], Array]


def _wide(expand: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda rows: ldmatrix_m16n16_trans_b8(expand(rows))


def _tall(expand: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda rows: ldmatrix_m8n16(expand(rows))


# (shape, element format, transposed)
_LOADS = {
    ("m8n8", "b16", False): Move(8, 1, 4, lambda rows: ldmatrix_m8n8(rows, False)),
    ("m8n8", "b16", True): Move(8, 1, 4, lambda rows: ldmatrix_m8n8(rows, True)),
    ("m16n16", "b8", True): Move(16, 2, 2, ldmatrix_m16n16_trans_b8),
    ("m8n16", "b8x16.b4x16_p64", False): Move(8, 1, 4, _tall(expand_b4x16_p64)),
    ("m8n16", "b8x16.b6x16_p32", False): Move(8, 1, 4, _tall(expand_b6x16_p32)),
    ("m16n16", "b8x16.b4x16_p64", True): Move(16, 2, 2, _wide(expand_b4x16_p64)),
    ("m16n16", "b8x16.b6x16_p32", True): Move(16, 2, 2, _wide(expand_b6x16_p32)),
}
_STORES = {
    ("m8n8", "b16", False): Move(8, 1, 4, lambda held: stmatrix_m8n8(held, False)),
    ("m8n8", "b16", True): Move(8, 1, 4, lambda held: stmatrix_m8n8(held, True)),
    ("m16n8", "b8", True): Move(8, 1, 4, stmatrix_m16n8_trans_b8),
}


def _form(instr: Instr, forms: dict[tuple[str, str, bool], Move], registers: int) -> tuple[Move, int, str]:
    """The move, how many matrices, and the state space; `registers` is the operand that holds them."""
    mods = Mods(instr)
    mods.flag("sync", "aligned")
    shape, count = mods.pick(("m8n8", "m16n16", "m8n16", "m16n8")), int(mods.pick(_COUNTS, "x0")[1])
    trans, space = mods.flag("trans"), mods.pick(_SHARED, "generic")
    element = ".".join(part for part in _FORMATS if mods.flag(part))
    mods.done()
    move = forms.get((shape, element, trans))
    if move is None or not 1 <= count <= move.most:
        legal = ", ".join(f"{s}{'.trans' if t else ''}.{e} up to x{m.most}" for (s, e, t), m in forms.items())
        raise UnknownInstruction(f"{instr.opcode!r}: no such matrix form; there are {legal}")
    held = len(registers_of(instr.operands[registers]))
    if held != count * move.registers:
        raise UnknownInstruction(f"{instr.opcode!r} moves {count * move.registers} registers, its operand has {held}")
    return move, count * move.rows, space


@instruction("ldmatrix", kind=SYNC)
def ldmatrix(instr: Instr) -> Bind:
    move, needed, space = _form(instr, _LOADS, 0)
    lanes, every = np.arange(needed), np.full(needed, _SOME_LANE)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = [warp.row(item, "u32") for item in registers_of(instr.operands[0])]
        address = address_call(warp, instr.operands[1])

        def call() -> None:
            _whole_warp(warp, instr)
            rows = np.empty(needed, CHUNK_TYPE)
            for span in spans(warp, space, address()[:needed], lanes, _ROW_BYTES, _ROW_BYTES):
                chosen = span.lanes
                span.lanes = every[: chosen.size]
                note_read(warp, span, _ROW_BYTES, None)
                rows[chosen] = span.block.view(_ROW_BYTES).take(span.offsets >> 4)
            data = rows.view(np.uint8).reshape(needed, _ROW_BYTES)
            for row, value in zip(out, move.convert(data), strict=True):
                row[:] = value

        return call

    return bind


def _whole_warp(warp: Warp, instr: Instr) -> None:
    if len(warp.active) != 32:
        raise Fault(f"{instr.base} needs all 32 lanes of the warp")


@instruction("stmatrix", kind=SYNC)
def stmatrix(instr: Instr) -> Bind:
    move, needed, space = _form(instr, _STORES, 1)
    lanes, every = np.arange(needed), np.full(needed, EVERY_LANE)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address, held = address_call(warp, instr.operands[0]), stacked(warp, instr.operands[1])

        def call() -> None:
            _whole_warp(warp, instr)
            warp.effects += 1
            rows = np.ascontiguousarray(move.convert(held())).view(CHUNK_TYPE).reshape(needed)
            for span in spans(warp, space, address()[:needed], lanes, _ROW_BYTES, _ROW_BYTES):
                chosen = span.lanes
                span.lanes = every[: chosen.size]  # every lane writes parts of every row
                note_write(warp, span, _ROW_BYTES, None)
                span.block.view(_ROW_BYTES)[span.offsets >> 4] = rows[chosen]

        return call

    return bind


@instruction("movmatrix", kind=SYNC)
def movmatrix_(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync", "aligned", "m8n8", "trans", "b16")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, value = warp.row(instr.operands[0], "u32"), warp.src(instr.operands[1], "u32")

        def call() -> None:
            _whole_warp(warp, instr)
            out[:] = movmatrix(value)

        return call

    return bind
