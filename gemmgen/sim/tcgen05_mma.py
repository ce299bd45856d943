"""tcgen05.mma: operands from shared or tensor memory, products accumulated in tensor memory, in order of issue.
Descriptors are tcgen05_descriptors.py's, order and timing the pipe's; here is what an instruction reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault, UnknownInstruction
from .memory_ops import active_lanes, address_call
from .registry import Bind, Call, Mods, instruction
from .tcgen05_descriptors import (
    BLOCK_SCALED,
    FORMATS,
    Instruction,
    check_layout,
    decode_instruction,
)
from .tcgen05_operands import SCALE_ID_SHIFT, Kind, Operands, Part, scaled_product, share_of
from .tcgen05_pipe import describe, issue, members, next_serial_of, tensor_of
from .types import Array, Imm, Instr, Mask, Mem, Not, Reg, Vec

if TYPE_CHECKING:
    from .warp import Warp

_SCALES = {
    ("mxf8f6f4", ""): 1,
    ("mxf8f6f4", "scale_vec::1X"): 1,
    ("mxf8f6f4", "block32"): 1,
    ("mxf4", ""): 2,
    ("mxf4", "scale_vec::2X"): 2,
    ("mxf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::2X"): 2,
    ("mxf4nvf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::4X"): 4,
    ("mxf4nvf4", "block16"): 4,
}
_VECTORS = ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32")
_COLLECTORS = tuple(f"collector::a::{usage}" for usage in ("fill", "use", "lastuse", "discard"))


@instruction("tcgen05.mma")
def mma(instr: Instr) -> Bind:
    kind = _read_kind(instr)
    fixed = 6 if kind.scales else 4
    disable = instr.operands[fixed].items if isinstance(instr.operands[fixed], Vec) else ()
    last = fixed + bool(disable)
    if len(instr.operands) <= last or len(disable) not in (0, 4 * kind.group):
        raise UnknownInstruction(
            f"{instr.opcode!r}: {len(instr.operands)} operands, {len(disable)} words of lane masks"
        )
    d_factor = _scale_input_d(instr, kind, instr.operands[last + 1 :])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        disabled = [warp.src(item, "u32") for item in disable]
        d = address_call(warp, instr.operands[0])
        a = address_call(warp, instr.operands[1]) if kind.a_in_tmem else _row(warp, instr.operands[1], "u64")
        b, idesc = _row(warp, instr.operands[2], "u64"), _row(warp, instr.operands[3], "u32")
        scales = [address_call(warp, op) for op in instr.operands[4:fixed]]
        accumulate = _predicate(warp, instr.operands[last])

        def call() -> None:
            warp.effects += 1
            for lane in active_lanes(mask).tolist():
                if any(row[lane] for row in disabled):
                    raise Fault("tcgen05.mma: disable-output-lane names lanes; only a mask of zeros is modelled")
                a_scale, b_scale = (int(scale()[lane]) for scale in scales) if scales else (0, 0)
                values = [int(row()[lane]) for row in (d, a, b, idesc)]
                operands = Operands(
                    values[0], values[1], values[2], values[3], a_scale, b_scale, accumulate(lane), d_factor
                )
                _issue(warp, instr, lane, kind, operands)

        return call

    return bind


def _scale_input_d(instr: Instr, kind: Kind, operands: Sequence[Any]) -> float:
    """What D is multiplied by before the product is added: 1, or 2 to minus the immediate."""
    if not operands:
        return 1.0
    value = operands[0].value if len(operands) == 1 and isinstance(operands[0], Imm) else -1
    if kind.kind not in ("f16", "tf32") or value not in range(16):
        raise UnknownInstruction(
            f"{instr.opcode!r}: scale-input-d is {operands}; kinds f16 and tf32 have one of 0 to 15"
        )
    return float(2.0**-value)


def _row(warp: Warp, operand: Any, dtype: str) -> Callable[[], Array]:
    row = warp.src(operand, dtype)
    return lambda: row


def _predicate(warp: Warp, operand: Any) -> Callable[[int], bool]:
    if isinstance(operand, Not):
        row = warp.rows["p"][operand.reg.index]
        return lambda lane: not row[lane]
    if not isinstance(operand, Reg) or operand.kind != "p":
        raise UnknownInstruction(f"tcgen05.mma: enable-input-d is {operand}; it must be a predicate")
    found = warp.rows["p"][operand.index]
    return lambda lane: bool(found[lane])


def _read_kind(instr: Instr) -> Kind:
    mods = Mods(instr, 2)
    group = int(mods.pick(("cta_group::1", "cta_group::2"), "x::0")[-1])
    kind = mods.pick([f"kind::{name}" for name in FORMATS]).removeprefix("kind::")
    scaled = mods.flag("block_scale")
    vector = mods.pick(_VECTORS)
    collector = mods.pick(_COLLECTORS, "collector::a::discard").rpartition("::")[2]
    mods.done()
    if not group or not kind or scaled != (kind in BLOCK_SCALED):
        raise UnknownInstruction(f"{instr.opcode!r}: cta_group, kind and block_scale do not go together")
    if scaled and (kind, vector) not in _SCALES:
        raise UnknownInstruction(f"{instr.opcode!r}: kind::{kind} does not have .{vector or 'scale_vec (none given)'}")
    return Kind(kind, group, _SCALES[kind, vector] if scaled else 0, collector, isinstance(instr.operands[1], Mem))


def _issue(warp: Warp, instr: Instr, lane: int, kind: Kind, op: Operands) -> None:
    ctas = members(warp, kind.group, "tcgen05.mma")
    what = describe(warp, instr)
    found = decode_instruction(op.idesc, kind.kind, kind.group, kind.scales)
    _check_operands(kind, found, op)
    _use_collector(warp, kind, found, op)
    share = share_of(found.m, found.n, kind.group)
    serial = next_serial_of(warp)
    parts = [Part(cta, kind, found, op, share) for cta in ctas]
    for part in parts:
        part.note(warp, lane, serial, what)

    def run() -> None:
        _multiply(parts, kind, found, op)

    issue(warp, lane, what, run)


def _check_operands(kind: Kind, found: Instruction, op: Operands) -> None:
    if kind.a_in_tmem:
        if found.a_major != "K" or found.a == "e2m1" or (found.m, kind.group) == (128, 2):
            raise Fault(
                f"tcgen05.mma: A in tensor memory is modelled K-major, of 8 bits or more, and not for M 128 of a pair "
                f"(here {found.a_major}-major {found.a}, M {found.m})"
            )
        if kind.group == 2 and found.n % 32:
            raise Fault(f"tcgen05.mma: N is {found.n}; with A in tensor memory a pair needs a multiple of 32")
    else:
        check_layout(op.a, found.a_major, kind.kind)
    check_layout(op.b, found.b_major, kind.kind)
    for name, address, number in (("A", op.a_scale, found.a_scale_id), ("B", op.b_scale, found.b_scale_id)):
        carried = address >> SCALE_ID_SHIFT
        if carried and carried != number:
            raise Fault(
                f"tcgen05.mma: the scale address of {name} carries id {carried} in its top bits, "
                f"the instruction descriptor says {number}"
            )


def _use_collector(warp: Warp, kind: Kind, found: Instruction, op: Operands) -> None:
    """use and lastuse take A from the collector buffer: it must be the A that was filled in."""
    pipe = tensor_of(warp.cta).pipe
    held = (op.a, found.m, found.a, found.a_major, kind)
    if kind.collector in ("use", "lastuse") and pipe.collector != held[:4]:
        raise Fault(f"tcgen05.mma: collector::a::{kind.collector}, but the collector buffer does not hold this A")
    pipe.collector = held[:4] if kind.collector in ("fill", "use") else None


def _multiply(parts: list[Part], kind: Kind, found: Instruction, op: Operands) -> None:
    b = np.concatenate([part.b_values() for part in parts])
    if kind.scales and len(parts) == 2:
        _check_same_scales(parts)
    for part in parts:
        if part.cta.exited:
            raise Fault(f"the accumulator lies in CTA {part.cta.position}, which has already exited")
        a = part.a_values()
        product = scaled_product(part, a, b) if kind.scales else a @ b.T
        if found.a_sign * found.b_sign < 0:
            product = -product
        part.accumulate(product)


def _check_same_scales(parts: list[Part]) -> None:
    if not np.array_equal(parts[0].b_scales(), parts[1].b_scales()):
        raise Fault("tcgen05.mma: the two CTAs of the pair hold different scales of B; each needs all of them")
