"""Box copies of a tensor map: global memory to the swizzled shared-memory box and back, and reductions.

Works on byte arrays that the caller passes; it may not know of windows, barriers, scheduling or the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gemmgen.sim.reductions import LOAD_CONVERSIONS, reduction
from gemmgen.sim.swizzle import CHUNK_BYTES, CHUNK_TYPE, SPAN_BYTES, SmemSwizzle, swizzle_address
from gemmgen.sim.tensor_map_fields import (
    CELL_ELEMENTS,
    ELEMENT_TYPES,
    TENSOR_MAP_BYTES,
    ElementType,
    TensorMap,
    check_tensor_map,
    decode_tensor_map,
    encode_tensor_map,
    pack_tensor_map,
    replace_field,
)

__all__ = [
    "ELEMENT_TYPES",
    "TENSOR_MAP_BYTES",
    "BoxPlan",
    "ElementType",
    "TensorMap",
    "box_chunk_index",
    "box_copy_plan",
    "check_coordinates",
    "check_tensor_map",
    "decode_tensor_map",
    "encode_tensor_map",
    "gather_box",
    "load_shared_box",
    "pack_tensor_map",
    "reduce_box",
    "replace_field",
    "scatter_box",
    "store_shared_box",
    "touched_bytes",
    "valid_byte_range",
]

Bytes = npt.NDArray[np.uint8]
IndexArray = npt.NDArray[np.int64]

SHARED_ALIGNMENT = 128
OOB_NAN = bytes.fromhex("f77f")  # an H100 fills with 16 bits that are a NaN of every element type
_PATTERN_BYTES = 1024


@dataclass(frozen=True)
class BoxPlan:
    """Where every unit (element; byte for sub-byte types) of a box lives, each array [rows, units of a box row].

    Shared offsets are relative to the shared address of the plan; global addresses of invalid units are out of bounds.
    """

    shared_offset: IndexArray
    global_address: IndexArray
    valid: npt.NDArray[np.bool_]
    unit_bytes: int


def box_copy_plan(m: TensorMap, coords: Sequence[int], shared_address: int = 0) -> BoxPlan:
    """The plan of one box copy, unit by unit: plain and slow; gather_box and friends do the same in bulk."""
    check_coordinates(m, coords)
    unit_bytes = max(m.element.bits // 8, 1)
    per_unit = unit_bytes * 8 // m.element.bits or 1
    unit = np.arange(m.inner_bytes // unit_bytes, dtype=np.int64)
    inner = coords[0] + unit * per_unit
    outer, outer_valid = _outer_offsets(m, coords)
    address = m.address + outer[:, None] + inner[None, :] * m.element.bits // 8
    valid = outer_valid[:, None] & (inner >= 0)[None, :] & (inner < m.dims[0])[None, :]
    in_row = _shared_byte_in_row(m, unit * unit_bytes)
    offset = np.arange(m.rows, dtype=np.int64)[:, None] * _shared_pitch(m) + in_row[None, :]
    shared_offset = swizzle_address(shared_address + offset, m.swizzle) - shared_address
    return BoxPlan(shared_offset, address, valid, unit_bytes)


def _outer_offsets(m: TensorMap, coords: Sequence[int]) -> tuple[IndexArray, npt.NDArray[np.bool_]]:
    """Byte offset and validity of every row of the box (dimension 1 varies fastest)."""
    offset = np.zeros(1, dtype=np.int64)
    valid = np.ones(1, dtype=np.bool_)
    for d in range(1, m.rank):
        index = coords[d] + np.arange(m.copied[d], dtype=np.int64) * m.element_strides[d]
        offset = (index[:, None] * m.strides[d - 1] + offset[None, :]).reshape(-1)
        valid = (((index >= 0) & (index < m.dims[d]))[:, None] & valid[None, :]).reshape(-1)
    return offset, valid


def _shared_byte_in_row(m: TensorMap, packed_byte: IndexArray) -> IndexArray:
    if not m.element.padded_cell:
        return packed_byte
    cell_bytes = CELL_ELEMENTS * m.element.bits // 8
    return packed_byte // cell_bytes * CELL_ELEMENTS + packed_byte % cell_bytes


def _shared_pitch(m: TensorMap) -> int:
    """Bytes between box rows in shared memory: a swizzled row always takes the whole span."""
    return m.shared_inner_bytes if m.swizzle is SmemSwizzle.NONE else SPAN_BYTES[m.swizzle]


def check_coordinates(m: TensorMap, coords: Sequence[int]) -> None:
    """What hardware traps on: an H100 ends the kernel with an illegal instruction when a box starts inside 16 bytes."""
    if len(coords) != m.rank:
        raise ValueError(f"coordinates {tuple(coords)}: the tensor map has rank {m.rank}; pass {m.rank} coordinates")
    if m.element.padded_cell and coords[0] % m.element.inner_multiple:
        raise ValueError(
            f"coordinate 0 is {coords[0]}; {m.element.name} needs a multiple of {m.element.inner_multiple} elements"
        )
    if not m.element.padded_cell and coords[0] * m.element.bits % (8 * CHUNK_BYTES):
        raise ValueError(
            f"coordinate 0 of a tensor copy is {coords[0]}; {m.element.name} needs a multiple of "
            f"{8 * CHUNK_BYTES // m.element.bits} elements: a box must start at a multiple of {CHUNK_BYTES} bytes"
        )


# bulk copies: global side


@dataclass(frozen=True)
class _Clip:
    """The in-bounds part of a box: ranges per dimension, outermost first, and its strided place in global memory."""

    box: tuple[slice, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # bytes from the tensor's address

    @property
    def last(self) -> int:
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


@lru_cache(maxsize=16384)
def _clip(m: TensorMap, coords: tuple[int, ...], whole_chunks: bool = False) -> _Clip | None:
    """The in-bounds part of the box at coords in bytes, None when it is empty.

    Stores write whole chunks of 16 bytes: the one that holds the end of a row of the tensor is written beyond it.
    """
    check_coordinates(m, coords)
    bits = m.element.bits
    first, stop = max(0, -coords[0]) * bits // 8, min(m.box[0], m.dims[0] - coords[0]) * bits // 8
    if whole_chunks and not m.element.padded_cell:
        stop = -(-stop // CHUNK_BYTES) * CHUNK_BYTES
    ranges = [(first, stop, 1, coords[0] * bits // 8)]
    for d in range(1, m.rank):
        step = m.element_strides[d]
        first, stop = max(0, -(coords[d] // step)), min(m.copied[d], -(-(m.dims[d] - coords[d]) // step))
        ranges.append((first, stop, step * m.strides[d - 1], coords[d] * m.strides[d - 1]))
    ranges.reverse()
    if any(stop <= first for first, stop, _, _ in ranges):
        return None
    return _Clip(
        box=tuple(slice(first, stop) for first, stop, _, _ in ranges),
        shape=tuple(stop - first for first, stop, _, _ in ranges),
        strides=tuple(stride for _, _, stride, _ in ranges),
        offset=sum(start + first * stride for first, _, stride, start in ranges),
    )


def valid_byte_range(m: TensorMap, coords: Sequence[int], store: bool = False) -> tuple[int, int] | None:
    """First and one past the last global address a copy of the box touches; None when all of it is out of bounds."""
    clip = _clip(m, tuple(coords), store)
    return None if clip is None else (m.address + clip.offset, m.address + clip.last + 1)


def touched_bytes(
    m: TensorMap, coords: Sequence[int], buffer: Bytes, buffer_address: int, store: bool = False
) -> Bytes:
    """The bytes of a buffer that a copy of the box reads or writes, as a view that may be empty."""
    clip = _clip(m, tuple(coords), store)
    return buffer[:0] if clip is None else _window(m, clip, buffer, buffer_address)


def _window(m: TensorMap, clip: _Clip, buffer: Bytes, buffer_address: int) -> Bytes:
    offset = m.address - buffer_address + clip.offset
    if offset < 0 or m.address - buffer_address + clip.last >= buffer.size:
        raise IndexError(
            f"tensor map: the box touches bytes {m.address + clip.offset:#x} to {m.address + clip.last:#x}, outside "
            f"the buffer {buffer_address:#x} to {buffer_address + buffer.size - 1:#x}; "
            "dims and strides name more than is allocated"
        )
    return np.ndarray(clip.shape, np.uint8, buffer, offset, clip.strides)


def gather_box(m: TensorMap, coords: Sequence[int], buffer: Bytes, buffer_address: int) -> Bytes:
    """Box contents [rows, packed bytes of a row] read from global memory, out-of-bounds elements filled."""
    clip = _clip(m, tuple(coords))
    shape = (*reversed(m.copied[1:]), m.inner_bytes)
    if clip is not None and clip.shape == shape:
        return _converted(m, _window(m, clip, buffer, buffer_address).copy()).reshape(-1, m.inner_bytes)
    box = np.broadcast_to(_fill_row(m), shape).copy()
    if clip is not None:
        box[clip.box] = _converted(m, _window(m, clip, buffer, buffer_address).copy())
    return box.reshape(-1, m.inner_bytes)


def _converted(m: TensorMap, elements: Bytes) -> Bytes:
    convert = LOAD_CONVERSIONS.get(m.element.name)
    return elements if convert is None else convert(elements)


@lru_cache(maxsize=256)
def _fill_row(m: TensorMap) -> Bytes:
    pattern = OOB_NAN if m.oob_nan else b"\0"
    return np.frombuffer(pattern * (m.inner_bytes // len(pattern)), dtype=np.uint8)


def scatter_box(m: TensorMap, coords: Sequence[int], buffer: Bytes, buffer_address: int, box: Bytes) -> None:
    """TMA store: write the in-bounds chunks of box [rows, bytes of a row] to global memory."""
    clip = _clip(m, tuple(coords), whole_chunks=True)
    if clip is not None:
        _window(m, clip, buffer, buffer_address)[...] = _boxed(m, box)[clip.box]


def reduce_box(
    m: TensorMap, coords: Sequence[int], buffer: Bytes, buffer_address: int, box: Bytes, operation: str
) -> None:
    """TMA reduce: combine the in-bounds chunks of box into global memory (add, min, max, inc, dec, and, or, xor)."""
    combine = reduction(m.element.name, operation)
    clip = _clip(m, tuple(coords), whole_chunks=True)
    if clip is None:
        return
    window = _window(m, clip, buffer, buffer_address)
    current = np.ascontiguousarray(window)
    incoming = np.ascontiguousarray(_boxed(m, box)[clip.box])
    window[...] = combine(current, incoming).view(np.uint8).reshape(clip.shape)


def _boxed(m: TensorMap, box: Bytes) -> Bytes:
    return box.reshape(*reversed(m.copied[1:]), m.inner_bytes)


# bulk copies: shared side


def box_chunk_index(m: TensorMap, shared_address: int) -> IndexArray:
    """Chunk numbers (shared address / 16) of a box at shared_address: [rows, 16-byte chunks of a row]."""
    if shared_address % SHARED_ALIGNMENT:
        raise ValueError(
            f"shared address {shared_address:#x} of a tensor copy; it must be a multiple of {SHARED_ALIGNMENT} bytes"
        )
    phase = shared_address % _PATTERN_BYTES
    relative = _relative_chunks(m.swizzle, m.rows, m.shared_inner_bytes, _shared_pitch(m), phase)
    return relative + (shared_address - phase) // CHUNK_BYTES


@lru_cache(maxsize=1024)
def _relative_chunks(mode: SmemSwizzle, rows: int, row_bytes: int, pitch: int, phase: int) -> IndexArray:
    row = np.arange(rows, dtype=np.int64)[:, None] * pitch
    column = np.arange(0, row_bytes, CHUNK_BYTES, dtype=np.int64)[None, :]
    chunks = swizzle_address(phase + row + column, mode) // CHUNK_BYTES
    chunks.setflags(write=False)
    return chunks


def store_shared_box(m: TensorMap, shared: Bytes, shared_address: int, box: Bytes) -> None:
    """Write box [rows, packed bytes of a row] to shared memory (length a multiple of 16), swizzled and padded."""
    chunks = box_chunk_index(m, shared_address)
    _chunk_view(m, shared, shared_address)[chunks] = _padded_cells(m, box).view(CHUNK_TYPE)


def load_shared_box(m: TensorMap, shared: Bytes, shared_address: int) -> Bytes:
    """Box [rows, packed bytes of a row] read from a CTA's shared memory: the inverse of store_shared_box."""
    chunks = box_chunk_index(m, shared_address)
    box = _chunk_view(m, shared, shared_address)[chunks].view(np.uint8)
    if not m.element.padded_cell:
        return box
    cells = box.reshape(-1, CELL_ELEMENTS)[:, : CELL_ELEMENTS * m.element.bits // 8]
    return np.ascontiguousarray(cells).reshape(m.rows, m.inner_bytes)


def _chunk_view(m: TensorMap, shared: Bytes, shared_address: int) -> npt.NDArray[np.complex128]:
    if shared_address < 0 or shared_address + m.rows * _shared_pitch(m) > shared.size:
        raise IndexError(
            f"tensor copy: the box takes {m.rows * _shared_pitch(m)} bytes at shared address {shared_address:#x}, "
            f"but shared memory ends at {shared.size:#x}"
        )
    return shared.view(CHUNK_TYPE)


def _padded_cells(m: TensorMap, box: Bytes) -> Bytes:
    if not m.element.padded_cell:
        return np.ascontiguousarray(box)
    cells = box.reshape(-1, CELL_ELEMENTS * m.element.bits // 8)
    padded = np.full((len(cells), CELL_ELEMENTS), 0xFF, np.uint8)  # what hardware leaves there is not documented
    padded[:, : cells.shape[1]] = cells
    return padded.reshape(m.rows, -1)
