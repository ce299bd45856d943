"""One CTA's share of a tcgen05.mma: which rows, lanes and scales it holds, their values, and where D lies.
It reads and writes shared and tensor memory and notes that with the order; issue and timing are tcgen05_mma.py's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault
from .formats import decode, decode_table, encode_f16
from .machine import Cta
from .tcgen05_descriptors import Instruction, load_lines, operand_chunks
from .tcgen05_pipe import note_shared_read, tensor_of
from .tmem import BAND, Region, TensorMemory, split_address
from .types import Array

if TYPE_CHECKING:
    from .warp import Warp

K_BYTES = 32  # one row of an operand holds 32 bytes in every kind
SCALE_ID_SHIFT = 30  # CUTLASS carries the scale id in the top bits of a scale's TMEM address
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m1": 4}


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
    d_factor: float  # of what D holds


@dataclass(frozen=True)
class Share:
    """The part of an instruction that one CTA holds: rows of A and D, rows of B, and where they lie."""

    lanes: Any  # of D (and of A in tensor memory), per row of A: numbers, or a slice
    d_columns: int
    a_rows: int
    b_rows: int
    spread: bool  # in 16 lanes of every quarter: D may take the other 16 as well


@lru_cache(maxsize=256)
def share_of(m: int, n: int, group: int) -> Share:
    rows = m // group
    row = np.arange(rows)
    spread = (m, group) == (64, 1)
    lanes = row % 16 + 32 * (row // 16) if spread else slice(0, rows)
    halved = (m, group) == (128, 2)
    if halved:  # the upper half of the columns lies in lanes 64 and up
        lanes = np.arange(128)
    return Share(lanes, n // 2 if halved else n, rows, n // group, spread)


class Part:
    """One CTA's share of an instruction."""

    def __init__(self, cta: Cta, kind: Kind, found: Instruction, op: Operands, share: Share) -> None:
        self.cta, self.kind, self.found, self.op, self.share = cta, kind, found, op, share
        self.memory: TensorMemory = tensor_of(cta).memory
        self.poisoned: Array | None = None
        self.d_lane, self.d_column = _place(op.d, "D", (0, BAND) if share.spread else (0,))
        self.a_scale = _column(op.a_scale & (1 << SCALE_ID_SHIFT) - 1, "A's scales")
        self.b_scale = _column(op.b_scale & (1 << SCALE_ID_SHIFT) - 1, "B's scales")

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
        if self.share.spread:
            d = replace(d, first_band=self.d_lane // BAND, every=2)
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
        """[rows, scales per row] codes."""
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
        codes: Array = by_row[0] if self.found.scale == "ue8m0" else by_row[0] & 0x7F
        return codes

    def accumulate(self, product: Array) -> None:
        """Add the product [rows, n], or store it, in this CTA's lanes."""
        lanes, columns = self.share.lanes, self.share.d_columns
        if self.d_lane:
            lanes = lanes + self.d_lane
        if columns != product.shape[1]:  # a pair with M 128
            product = np.concatenate([product[:, :columns], product[:, columns:]])
        place = self.memory.data[:, self.d_column : self.d_column + columns]
        if self.found.d == "f16":
            if self.op.accumulate:
                product = product + decode((place[lanes] & 0xFFFF).astype(np.uint16), "f16") * self.op.d_factor
            place[lanes] = encode_f16(product.astype(np.float32)).astype(np.uint32) | np.uint32(0xFFFF0000)
            return
        result = product.astype(np.float32, copy=False)
        if self.op.accumulate:
            result = result + place.view(np.float32)[lanes] * np.float32(self.op.d_factor)
        place.view(np.float32)[lanes] = result


def _place(address: int, name: str, lanes: tuple[int, ...] = (0,)) -> tuple[int, int]:
    """Lane, one of those that may be named, and column."""
    lane, column = split_address(address)
    if lane not in lanes:
        legal = " or ".join(map(str, lanes))
        raise Fault(f"tcgen05.mma: the TMEM address {address:#x} of {name} names lane {lane}; it must be {legal}")
    return lane, column


def _column(address: int, name: str) -> int:
    return _place(address, name)[1]


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


def scaled_product(part: Part, a: Array, b: Array) -> Array:
    """Sum over scale blocks of the block's product times both scales."""
    scales, scale = part.kind.scales, part.found.scale
    a_codes, b_codes = part.a_scales(), part.b_scales()
    wide = scale == "ue4m3" or not (_is_moderate(a_codes) and _is_moderate(b_codes))
    table = decode_table(scale).astype(np.float64) if wide else decode_table(scale)
    a_scales, b_scales = table[a_codes], table[b_codes]
    if not wide:  # powers of two: scaling the operands first is exact
        return _spread(a, a_scales) @ _spread(b, b_scales).T
    width = a.shape[1] // scales
    total = np.zeros((len(a), len(b)))
    for block in range(scales):
        span = slice(block * width, (block + 1) * width)
        total += (a[:, span] @ b[:, span].T) * (a_scales[:, block, None] * b_scales[None, :, block])
    return total


def _is_moderate(codes: Array) -> bool:
    """UE8M0 codes whose products with any operand, and with each other, fit float32 by far."""
    return bool(codes.min() >= 127 - 40 and codes.max() <= 127 + 40)


def _spread(values: Array, scales: Array) -> Array:
    """[rows, k] values times [rows, blocks] scales."""
    rows, blocks = scales.shape
    result: Array = (values.reshape(rows, blocks, -1) * scales[:, :, None]).reshape(values.shape)
    return result
