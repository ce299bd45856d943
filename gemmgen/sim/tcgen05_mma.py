"""tcgen05.mma: operands from shared or tensor memory, products accumulated in tensor memory, in order of issue.
Descriptors are tcgen05_descriptors.py's, order and timing the pipe's; here is what an instruction reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault, UnknownInstruction
from .formats import decode, decode_table, encode_f16
from .machine import Cta
from .memory_ops import active_lanes, address_call
from .registry import Bind, Call, Mods, instruction
from .tcgen05_descriptors import (
    BLOCK_SCALED,
    FORMATS,
    Instruction,
    check_layout,
    decode_instruction,
    load_lines,
    operand_chunks,
)
from .tcgen05_pipe import describe, issue, members, next_serial_of, note_shared_read, tensor_of
from .tmem import Region, TensorMemory, split_address
from .types import Array, Instr, Mask, Mem, Not, Reg, Vec

if TYPE_CHECKING:
    from .warp import Warp

K_BYTES = 32  # one row of an operand holds 32 bytes in every kind
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m1": 4}
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
_SCALE_ID_SHIFT = 30  # CUTLASS carries the scale id in the top bits of a scale's TMEM address


@dataclass(frozen=True)
class Kind:
    """What the opcode says."""

    kind: str
    group: int
    scales: int
    collector: str
    a_in_tmem: bool


@dataclass(frozen=True)
class Operands:
    """What one issue names: addresses and descriptors."""

    d: int
    a: int
    b: int
    idesc: int
    a_scale: int
    b_scale: int
    accumulate: bool


@instruction("tcgen05.mma")
def mma(instr: Instr) -> Bind:
    kind = _read_kind(instr)
    fixed = 6 if kind.scales else 4
    disable = instr.operands[fixed].items if isinstance(instr.operands[fixed], Vec) else ()
    if len(instr.operands) != fixed + 1 + bool(disable) or len(disable) not in (0, 4 * kind.group):
        raise UnknownInstruction(f"{instr.opcode!r}: {len(instr.operands)} operands; scale-input-d is not modelled")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        disabled = [warp.src(item, "u32") for item in disable]
        d = address_call(warp, instr.operands[0])
        a = address_call(warp, instr.operands[1]) if kind.a_in_tmem else _row(warp, instr.operands[1], "u64")
        b, idesc = _row(warp, instr.operands[2], "u64"), _row(warp, instr.operands[3], "u32")
        scales = [address_call(warp, op) for op in instr.operands[4:fixed]]
        accumulate = _predicate(warp, instr.operands[fixed + bool(disable)])

        def call() -> None:
            warp.effects += 1
            for lane in active_lanes(mask).tolist():
                if any(row[lane] for row in disabled):
                    raise Fault("tcgen05.mma: disable-output-lane names lanes; only a mask of zeros is modelled")
                a_scale, b_scale = (int(scale()[lane]) for scale in scales) if scales else (0, 0)
                values = [int(row()[lane]) for row in (d, a, b, idesc)]
                operands = Operands(values[0], values[1], values[2], values[3], a_scale, b_scale, accumulate(lane))
                _issue(warp, instr, lane, kind, operands)

        return call

    return bind


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


@dataclass(frozen=True)
class Share:
    """The part of an instruction that one CTA holds: rows of A and D, rows of B, and where they lie."""

    lanes: Array  # of D (and of A in tensor memory), per row of A
    d_columns: int
    a_rows: int
    b_rows: int


@lru_cache(maxsize=256)
def _share(m: int, n: int, group: int) -> Share:
    rows = m // group
    row = np.arange(rows)
    lanes = row % 16 + 32 * (row // 16) if (m, group) == (64, 1) else row
    halved = (m, group) == (128, 2)
    return Share(lanes, n // 2 if halved else n, rows, n // group)


def _issue(warp: Warp, instr: Instr, lane: int, kind: Kind, op: Operands) -> None:
    ctas = members(warp, kind.group, "tcgen05.mma")
    what = describe(warp, instr)
    found = decode_instruction(op.idesc, kind.kind, kind.group, kind.scales)
    _check_operands(kind, found, op)
    _use_collector(warp, kind, found, op)
    share = _share(found.m, found.n, kind.group)
    serial = next_serial_of(warp)
    parts = [_Part(cta, kind, found, op, share) for cta in ctas]
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
    else:
        check_layout(op.a, found.a_major, kind.kind)
    check_layout(op.b, found.b_major, kind.kind)
    for name, address, number in (("A", op.a_scale, found.a_scale_id), ("B", op.b_scale, found.b_scale_id)):
        carried = address >> _SCALE_ID_SHIFT
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


class _Part:
    """One CTA's share of an instruction."""

    def __init__(self, cta: Cta, kind: Kind, found: Instruction, op: Operands, share: Share) -> None:
        self.cta, self.kind, self.found, self.op, self.share = cta, kind, found, op, share
        self.memory: TensorMemory = tensor_of(cta).memory
        self.poisoned: Array | None = None
        self.d_column = _column(op.d, "D")
        self.a_scale = _column(op.a_scale & (1 << _SCALE_ID_SHIFT) - 1, "A's scales")
        self.b_scale = _column(op.b_scale & (1 << _SCALE_ID_SHIFT) - 1, "B's scales")

    def note(self, warp: Warp, lane: int, serial: int, what: str) -> None:
        """Tell both memories what is read and written from now on."""
        self._note_shared(warp, lane, serial, what)
        tensor = tensor_of(self.cta)
        user = tensor.pipe_user(warp, tensor_of(warp.cta), what)
        for region in self._regions_read():
            self.memory.check(region, warp.clock[0], what)
            self.memory.note_read(region, user, serial)
            self.memory.touch(region, user.row, serial)
        d = Region(self.d_column, self.d_column + self.share.d_columns)
        self.memory.check(d, warp.clock[0], what)
        self.memory.note_write(d, user, serial)
        self.memory.touch(d, user.row, serial)

    def _regions_read(self) -> list[Region]:
        regions = []
        if self.kind.a_in_tmem:
            column = _column(self.op.a, "A")
            regions.append(Region(column, column + K_BYTES // 4))
        if self.kind.scales:
            regions.append(Region(self.a_scale, self.a_scale + -(-self.share.a_rows // 32)))
            regions.append(Region(self.b_scale, self.b_scale + -(-self.found.n // 32)))
        return regions

    def _note_shared(self, warp: Warp, lane: int, serial: int, what: str) -> None:
        found, shadow = self.found, self.cta.shadow
        b = _words(self.op.b, self.share.b_rows, found.b, found.b_major)
        self._check_inside(b, "B")
        note_shared_read(self.cta, warp, lane, serial, b, what)
        if self.kind.a_in_tmem:
            return
        a = _words(self.op.a, self.share.a_rows, found.a, found.a_major)
        self._check_inside(a, "A")
        if self.cta.gpu.discarded_rows == "poison" and found.a_major == "K":
            self._poison(a, shadow.unordered(warp.clock, a), what)
        else:
            note_shared_read(self.cta, warp, lane, serial, a, what)

    def _poison(self, words: Array, bad: Array, what: str) -> None:
        """Rows of A that are not ready give NaN; nobody needs to wait for what reads them."""
        if not bad.any():
            return
        self.cta.gpu.warn(f"{what} reads rows of A that are not ready; they count as NaN")
        chunks = operand_chunks(self.op.a, self.share.a_rows, K_BYTES, "K")
        self.poisoned = np.asarray(np.isin(chunks, words[bad] // 4).any(axis=1))

    def _check_inside(self, words: Array, name: str) -> None:
        if int(words.max()) * 4 >= self.cta.smem.nbytes:
            raise Fault(
                f"tcgen05.mma: {name} reaches shared byte {int(words.max()) * 4 + 3}, but the CTA has "
                f"{self.cta.smem.nbytes}"
            )

    def a_values(self) -> Array:
        """[rows, k] float32."""
        found = self.found
        if self.kind.a_in_tmem:
            column = _column(self.op.a, "A")
            raw = np.ascontiguousarray(self.memory.data[self.share.lanes, column : column + K_BYTES // 4])
            return _decode_lines(raw.view(np.uint8), found.a, self.kind.kind)
        values = _load(self.cta, self.op.a, self.share.a_rows, found.a, found.a_major, self.kind.kind)
        if self.poisoned is not None:
            values[self.poisoned] = np.nan
        return values

    def b_values(self) -> Array:
        found = self.found
        return _load(self.cta, self.op.b, self.share.b_rows, found.b, found.b_major, self.kind.kind)

    def a_scales(self) -> Array:
        """[rows, scales per row] float64."""
        return self._scales(self.a_scale, self.share.a_rows, self.found.a_scale_id, "A")

    def b_scales(self) -> Array:
        return self._scales(self.b_scale, self.found.n, self.found.b_scale_id, "B")

    def _scales(self, column: int, rows: int, first: int, name: str) -> Array:
        """The scale of row r lies in lanes r % 32 of every quarter, column r / 32, from byte `first` on."""
        columns = -(-rows // 32)
        block = np.ascontiguousarray(self.memory.data[:, column : column + columns]).view(np.uint8)
        octets = block.reshape(4, 32, columns, 4)[..., first : first + self.kind.scales]
        by_row = octets.transpose(0, 2, 1, 3).reshape(4, columns * 32, self.kind.scales)[:, :rows]
        if not (by_row == by_row[0]).all():
            raise Fault(f"tcgen05.mma: the four lane quarters hold different scales of {name}; copy them with .warpx4")
        codes = by_row[0] if self.found.scale == "ue8m0" else by_row[0] & 0x7F
        values: Array = decode_table(self.found.scale)[codes].astype(np.float64)
        return values

    def accumulate(self, product: Array) -> None:
        """Add the product [rows, n], or store it, in this CTA's lanes."""
        lanes, columns = self.share.lanes, self.share.d_columns
        if columns != product.shape[1]:  # a pair with M 128: the upper half of the columns lies in lanes 64 and up
            lanes = np.concatenate([lanes, lanes + 64])
            product = np.concatenate([product[:, :columns], product[:, columns:]])
        place = self.memory.data[:, self.d_column : self.d_column + columns]
        if self.found.d == "f16":
            if self.op.accumulate:
                product = product + decode((place[lanes] & 0xFFFF).astype(np.uint16), "f16")
            place[lanes] = encode_f16(product.astype(np.float32)).astype(np.uint32) | np.uint32(0xFFFF0000)
            return
        result = product.astype(np.float32)
        if self.op.accumulate:
            result = result + np.ascontiguousarray(place[lanes]).view(np.float32)
        place[lanes] = result.view(np.uint32)


def _column(address: int, name: str) -> int:
    lane, column = split_address(address)
    if lane:
        raise Fault(f"tcgen05.mma: the TMEM address {address:#x} of {name} names lane {lane}; it must be 0")
    return column


def _lines(rows: int, fmt: str, major: str) -> tuple[int, int]:
    """Lines of an operand and bytes of each: rows of 32 bytes, or k's of one element per row."""
    if major == "K":
        return rows, K_BYTES
    size = _BITS[fmt] // 8
    return K_BYTES // size, rows * size


@lru_cache(maxsize=4096)
def _words(descriptor: int, rows: int, fmt: str, major: Any) -> Array:
    chunks = np.unique(operand_chunks(descriptor, *_lines(rows, fmt, major), major))
    return (chunks[:, None] * 4 + np.arange(4)).reshape(-1)


def _load(cta: Cta, descriptor: int, rows: int, fmt: str, major: Any, kind: str) -> Array:
    """[rows, k] values of an operand in shared memory."""
    if cta.exited:
        raise Fault(f"an operand lies in shared memory of CTA {cta.position}, which has already exited")
    lines = load_lines(cta.smem.data, descriptor, *_lines(rows, fmt, major), major)
    if major == "K":
        return _decode_lines(lines, fmt, kind)
    codes = np.ascontiguousarray(lines).view(f"u{_BITS[fmt] // 8}")
    return np.ascontiguousarray(decode(codes, fmt).T)


def _decode_lines(lines: Array, fmt: str, kind: str) -> Array:
    """[rows, k] values of rows of 32 bytes."""
    lines = np.ascontiguousarray(lines)
    if fmt != "e2m1":
        return decode(lines.view(f"u{_BITS[fmt] // 8}"), fmt)
    if kind in ("f8f6f4", "mxf8f6f4"):  # 16 codes in 8 bytes, then 8 bytes of padding
        lines = np.ascontiguousarray(lines.reshape(len(lines), 2, 16)[:, :, :8]).reshape(len(lines), 16)
    codes = np.stack([lines & 15, lines >> 4], axis=2).reshape(len(lines), -1)
    return decode(codes, fmt)


def _multiply(parts: list[_Part], kind: Kind, found: Instruction, op: Operands) -> None:
    b = np.concatenate([part.b_values() for part in parts])
    if kind.scales and len(parts) == 2:
        _check_same_scales(parts)
    for part in parts:
        if part.cta.exited:
            raise Fault(f"the accumulator lies in CTA {part.cta.position}, which has already exited")
        a = part.a_values()
        product = _scaled_product(part, a, b, kind.scales) if kind.scales else a @ b.T
        if found.a_sign * found.b_sign < 0:
            product = -product
        part.accumulate(product)


def _check_same_scales(parts: list[_Part]) -> None:
    if not np.array_equal(parts[0].b_scales(), parts[1].b_scales(), equal_nan=True):
        raise Fault("tcgen05.mma: the two CTAs of the pair hold different scales of B; each needs all of them")


def _scaled_product(part: _Part, a: Array, b: Array, scales: int) -> Array:
    """Sum over scale blocks of the block's product times both scales; a scale's range needs float64."""
    a_scales, b_scales = part.a_scales(), part.b_scales()
    total = None
    width = a.shape[1] // scales
    for block in range(scales):
        span = slice(block * width, (block + 1) * width)
        term = (a[:, span] @ b[:, span].T) * (a_scales[:, block, None] * b_scales[None, :, block])
        total = term if total is None else total + term
    result: Array = np.asarray(total)
    return result
