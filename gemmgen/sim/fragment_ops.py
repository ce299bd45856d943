"""mma.sync, ldmatrix, stmatrix and movmatrix: a warp's matrices in registers.
Where elements sit is fragments.py's, products are tensor_core.py's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault, UnknownInstruction
from .formats import decode, encode_f16
from .fragments import (
    ldmatrix_m8n8,
    ldmatrix_m16n16_trans_b8,
    mma_sync_fragment,
    movmatrix,
    stmatrix_m8n8,
    stmatrix_m16n8_trans_b8,
)
from .memory_ops import address_call, note_read, note_write, spans
from .registry import SYNC, Bind, Call, Mods, instruction
from .shadow import EVERY_LANE
from .tensor_core import ELEMENT_BITS, matrix_product
from .types import Array, Instr, Mask, Reg, Vec

if TYPE_CHECKING:
    from .warp import Warp

_SHAPE = re.compile(r"m16n8k(\d+)$")


def _rows(warp: Warp, operand: Any) -> list[Array]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    return [warp.src(item, "u32") for item in items]


def _stacked(warp: Warp, operand: Any) -> Callable[[], Array]:
    """A call that gives the operand's registers as one array."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if all(isinstance(item, Reg) for item in items):
        file, index = warp.registers.files["32"], np.array([item.index for item in items])
        return lambda: file.take(index, 0)
    rows = _rows(warp, operand)
    return lambda: np.stack(rows)


@instruction("mma", kind=SYNC)
def mma_sync(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync", "aligned", "row", "col")
    shape = next((m for p in mods.left if (m := _SHAPE.match(p))), None)
    if shape is None:
        raise UnknownInstruction(f"{instr.opcode!r}: only m16n8kK shapes are modelled")
    mods.left.remove(shape.group(0))
    satfinite = mods.flag("satfinite")
    types = [p for p in mods.left if p in (*ELEMENT_BITS, "f32", "s32")]
    mods.left = [p for p in mods.left if p not in types]
    mods.flag("kind::f8f6f4")
    mods.done()
    d, a, b, c = types
    k = int(shape.group(1))
    compute = _mma(d, a, b, c, k, satfinite)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = _rows(warp, instr.operands[0])
        inputs = [_stacked(warp, op) for op in instr.operands[1:4]]

        def call() -> None:
            if len(warp.active) != 32:
                raise Fault("mma.sync needs all 32 lanes of the warp")
            for row, value in zip(out, compute(*(rows() for rows in inputs)), strict=True):
                row[:] = value

        return call

    return bind


def _mma(d: str, a: str, b: str, c: str, k: int, satfinite: bool) -> Callable[[Array, Array, Array], Array]:
    a_place, b_place = mma_sync_fragment("A", k, ELEMENT_BITS[a]), mma_sync_fragment("B", k, ELEMENT_BITS[b])
    c_place, d_place = (mma_sync_fragment("C", k, 16 if t == "f16" else 32) for t in (c, d))

    def compute(a_regs: Array, b_regs: Array, c_regs: Array) -> Array:
        c_codes = c_place.unpack(c_regs)
        if c == "s32":
            accumulator: Array = c_codes.view(np.int32)
        else:
            accumulator = decode(c_codes, "f16") if c == "f16" else c_codes.view(np.float32)
        a_codes, b_codes = a_place.unpack(a_regs), np.ascontiguousarray(b_place.unpack(b_regs).T)
        if satfinite:
            exact = matrix_product(a_codes, b_codes, a, b, None).astype(np.int64) + accumulator.astype(np.int64)
            result: Array = np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)
        else:
            result = matrix_product(a_codes, b_codes, a, b, accumulator)
        codes = encode_f16(result) if d == "f16" else np.ascontiguousarray(result).view(np.uint32)
        return d_place.pack(codes)

    return compute


@instruction("ldmatrix", kind=SYNC)
def ldmatrix(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync", "aligned")
    shape, count = mods.pick(("m8n8", "m16n16")), int(mods.pick(("x1", "x2", "x4"), "x1")[1])
    trans = mods.flag("trans")
    space = mods.pick(("shared", "shared::cta"), "generic")
    element = mods.pick(("b16", "b8"))
    mods.done()
    if (shape, element) not in (("m8n8", "b16"), ("m16n16", "b8")):
        raise UnknownInstruction(f"{instr.opcode!r}: this matrix form is not modelled")
    needed = count * (8 if shape == "m8n8" else 16)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, address = _rows(warp, instr.operands[0]), address_call(warp, instr.operands[1])

        def call() -> None:
            _whole_warp(warp, instr)
            data = np.empty((needed, 16), np.uint8)
            lanes = np.arange(needed)
            for span in spans(warp, space, address()[:needed], lanes, 16, 16):
                chosen = span.lanes
                span.lanes = np.full(chosen.size, 127)  # every lane reads parts of every row
                note_read(warp, span, 16, False)
                data[chosen] = span.block.data[span.offsets[:, None] + np.arange(16)]
            result = ldmatrix_m8n8(data, trans) if shape == "m8n8" else ldmatrix_m16n16_trans_b8(data)
            for row, value in zip(out, result, strict=True):
                row[:] = value

        return call

    return bind


def _whole_warp(warp: Warp, instr: Instr) -> None:
    if len(warp.active) != 32:
        raise Fault(f"{instr.base} needs all 32 lanes of the warp")


@instruction("stmatrix", kind=SYNC)
def stmatrix(instr: Instr) -> Bind:
    mods = Mods(instr)
    mods.flag("sync", "aligned")
    shape, count = mods.pick(("m8n8", "m16n8")), int(mods.pick(("x1", "x2", "x4"), "x1")[1])
    trans = mods.flag("trans")
    space = mods.pick(("shared", "shared::cta"), "generic")
    element = mods.pick(("b16", "b8"))
    mods.done()
    if (shape, element) not in (("m8n8", "b16"), ("m16n8", "b8")):
        raise UnknownInstruction(f"{instr.opcode!r}: this matrix form is not modelled")
    needed = 8 * count
    lanes, every = np.arange(needed), np.full(needed, EVERY_LANE)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address, stacked = address_call(warp, instr.operands[0]), _stacked(warp, instr.operands[1])

        def call() -> None:
            _whole_warp(warp, instr)
            warp.effects += 1
            held = stacked()
            data = stmatrix_m8n8(held, trans) if shape == "m8n8" else stmatrix_m16n8_trans_b8(held)
            for span in spans(warp, space, address()[:needed], lanes, 16, 16):
                chosen = span.lanes
                span.lanes = every[: chosen.size]  # every lane writes parts of every row
                note_write(warp, span, 16, False)
                span.block.data[span.offsets[:, None] + np.arange(16)] = data[chosen]

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
