"""mma.sync of every m16n8kK shape, plain and block-scaled: products of matrices that lie in a warp's registers.
Where elements and scales sit is fragments.py's, what codes mean is containers.py's; it may not know of memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .containers import Container, container
from .errors import Fault, UnknownInstruction
from .formats import decode, encode_f16
from .fragments import Fragment, mma_sync_fragment
from .mma_scales import BlockScale, ScaleOperand, block_scale_of, scale_operand
from .registry import SYNC, Bind, Call, Mods, instruction
from .tensor_core import ELEMENT_BITS, matrix_product
from .types import Array, Instr, Mask, Reg, Vec

if TYPE_CHECKING:
    from .warp import Warp

_SHAPE = re.compile(r"m16n8k(\d+)$")
_EIGHT = ("e4m3", "e5m2")
_F8F6F4 = (*_EIGHT, "e3m2", "e2m3", "e2m1")
_TYPES = ("f16", "bf16", "tf32", "s8", "u8", *_F8F6F4, "f32", "s32")
_KINDS = ("kind::f8f6f4", "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")

# kind -> groups of (types of A and of B, legal k, types of C and D)
_LEGAL: dict[str, list[tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]]] = {
    "": [
        (("f16",), (8, 16), ("f16", "f32")),
        (("bf16",), (8, 16), ("f32",)),
        (("tf32",), (4, 8), ("f32",)),
        (_EIGHT, (16, 32), ("f16", "f32")),
        (("s8", "u8"), (16, 32), ("s32",)),
    ],
    "kind::f8f6f4": [(_F8F6F4, (32,), ("f16", "f32"))],
    "kind::mxf8f6f4": [(_F8F6F4, (32,), ("f32",))],
    "kind::mxf4": [(("e2m1",), (64,), ("f32",))],
    "kind::mxf4nvf4": [(("e2m1",), (64,), ("f32",))],
}


@dataclass(frozen=True)
class Form:
    """What the opcode says."""

    kind: str
    k: int
    d: str
    a: str
    b: str
    c: str
    satfinite: bool
    scale: BlockScale | None


@instruction("mma", kind=SYNC)
def mma_sync(instr: Instr) -> Bind:
    form = _form(instr)
    wanted = 8 if form.scale else 4
    if len(instr.operands) != wanted:
        raise UnknownInstruction(f"{instr.opcode!r} takes {wanted} operands, got {len(instr.operands)}")
    compute = _integer_product(form) if form.c == "s32" else _float_product(form)
    scale_operands = _scales(instr, form)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = [warp.row(item, "u32") for item in registers_of(instr.operands[0])]
        a, b, c = (stacked(warp, op) for op in instr.operands[1:4])
        scales = [operand(warp) for operand in scale_operands]

        def call() -> None:
            if len(warp.active) != 32:
                raise Fault("mma.sync needs all 32 lanes of the warp")
            for row, value in zip(out, compute(a(), b(), c(), scales), strict=True):
                row[:] = value

        return call

    return bind


def _form(instr: Instr) -> Form:
    mods = Mods(instr)
    if [part for part in instr.parts if part in ("row", "col")] != ["row", "col"]:
        raise UnknownInstruction(f"{instr.opcode!r}: mma.sync m16n8kK is .row.col")
    mods.flag("sync", "aligned", "row", "col")
    shape = next((m for p in mods.left if (m := _SHAPE.match(p))), None)
    if shape is None:
        raise UnknownInstruction(f"{instr.opcode!r}: only m16n8kK shapes are modelled")
    mods.left.remove(shape.group(0))
    kind, satfinite = mods.pick(_KINDS), mods.flag("satfinite")
    scale = block_scale_of(instr, kind, mods)
    types = [p for p in mods.left if p in _TYPES]
    mods.left = [p for p in mods.left if p not in types]
    mods.done()
    if len(types) != 4:
        raise UnknownInstruction(f"{instr.opcode!r} names {len(types)} types of matrices; mma.sync has 4")
    d, a, b, c = types
    form = Form(kind, int(shape.group(1)), d, a, b, c, satfinite, scale)
    _check(instr, form)
    return form


def _check(instr: Instr, form: Form) -> None:
    for factors, shapes, sums in _LEGAL[form.kind]:
        if form.a in factors and form.b in factors and form.k in shapes and form.c in sums and form.d in sums:
            if form.satfinite and form.c != "s32":
                break
            return
    raise UnknownInstruction(
        f"{instr.opcode!r}: no mma.sync {form.kind or 'without kind'} multiplies {form.a} by {form.b} into {form.d} "
        f"with k {form.k}" + (" and .satfinite" if form.satfinite else "")
    )


def registers_of(operand: Any) -> tuple[Any, ...]:
    """The registers (or literals) of a vector operand, or the one of a scalar one."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def stacked(warp: Warp, operand: Any) -> Callable[[], Array]:
    """A call that gives the operand's registers as one array [registers, 32]."""
    items = registers_of(operand)
    if all(isinstance(item, Reg) for item in items):
        file, index = warp.registers.files["32"], np.array([item.index for item in items])
        return lambda: file.take(index, 0)
    rows = [warp.src(item, "u32") for item in items]
    return lambda: np.stack(rows)


def _scales(instr: Instr, form: Form) -> list[Callable[[Warp], ScaleOperand]]:
    """Scale data and selectors follow C, first A's and then B's."""
    if form.scale is None:
        return []
    return [scale_operand(form.scale, side, *instr.operands[at : at + 2]) for side, at in (("A", 4), ("B", 6))]


Product = Callable[[Array, Array, Array, list[ScaleOperand]], Array]


def _float_product(form: Form) -> Product:
    a_box, b_box = (container(fmt, form.kind) for fmt in (form.a, form.b))
    a_place, b_place = (mma_sync_fragment(side, form.k, box.bits) for side, box in (("A", a_box), ("B", b_box)))
    c_place, d_place = (mma_sync_fragment("C", form.k, 16 if t == "f16" else 32) for t in (form.c, form.d))

    def compute(a_regs: Array, b_regs: Array, c_regs: Array, scales: list[ScaleOperand]) -> Array:
        a, b = _matrix(a_regs, a_box, a_place, "A"), _matrix(b_regs, b_box, b_place, "B")
        c = c_place.gather(c_regs.view(np.float32)) if form.c == "f32" else decode(c_place.unpack(c_regs), "f16")
        product = a @ b if form.scale is None else form.scale.product(a, b, *scales)
        result = (product + c).astype(np.float32, copy=False)
        if form.d == "f16":
            return d_place.pack(encode_f16(result))
        codes: Array = result.view(np.uint32).take(d_place.flat_registers)
        return codes

    return compute


def _matrix(registers: Array, box: Container, place: Fragment, side: str) -> Array:
    """float32 values of an operand: [16, k] of A or [k, 8] of B."""
    box.check(registers, side)
    values: Array = place.gather(box.values(registers))
    return values


def _integer_product(form: Form) -> Product:
    bits = ELEMENT_BITS[form.a]
    a_place, b_place = (mma_sync_fragment(side, form.k, bits) for side in ("A", "B"))
    place = mma_sync_fragment("C", form.k, 32)

    def compute(a_regs: Array, b_regs: Array, c_regs: Array, scales: list[ScaleOperand]) -> Array:
        a, b = a_place.unpack(a_regs), np.ascontiguousarray(b_place.unpack(b_regs).T)
        c = place.unpack(c_regs).view(np.int32)
        if form.satfinite:
            exact = matrix_product(a, b, form.a, form.b, None).astype(np.int64) + c.astype(np.int64)
            result: Array = np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)
        else:
            result = matrix_product(a, b, form.a, form.b, c)
        return place.pack(np.ascontiguousarray(result).view(np.uint32))

    return compute
