"""Shared-memory matrix descriptors: from 64 bits to the byte address of every element of an operand.

Knows descriptor fields and swizzles; it may not know of registers, data types' values or the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from gemmgen.sim.swizzle import CHUNK_BYTES, CHUNK_TYPE, SPAN_BYTES, SmemSwizzle, swizzle_address

Major = Literal["K", "MN"]
IndexArray = npt.NDArray[np.int64]

_PATTERN_BYTES = 1024  # every swizzle repeats after 1024 bytes, so offsets depend on the start address modulo this
_GROUP = 8  # rows (K-major) or k's (MN-major) of one core matrix
_WGMMA_SWIZZLE = {0: SmemSwizzle.NONE, 1: SmemSwizzle.B128, 2: SmemSwizzle.B64, 3: SmemSwizzle.B32}
_WGMMA_USED_BITS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 0x7 << 49 | 0x3 << 62


@dataclass(frozen=True)
class MatrixDescriptor:
    """The fields of a shared-memory matrix descriptor, in bytes."""

    start_address: int
    leading_byte_offset: int
    stride_byte_offset: int
    swizzle: SmemSwizzle


@lru_cache(maxsize=8192)
def decode_wgmma_descriptor(descriptor: int) -> MatrixDescriptor:
    """Fields of a wgmma descriptor; ValueError for bits whose meaning is not known."""
    if descriptor & ~_WGMMA_USED_BITS:
        raise ValueError(
            f"wgmma descriptor {descriptor:#018x}: reserved bits {descriptor & ~_WGMMA_USED_BITS:#x} are set; "
            "they must be 0"
        )
    if base_offset := descriptor >> 49 & 7:
        raise ValueError(
            f"wgmma descriptor {descriptor:#018x}: base_offset is {base_offset}; only 0 is modelled: "
            "align the tile to the swizzle pattern (1024 bytes for 128B)"
        )
    return MatrixDescriptor(
        start_address=(descriptor & 0x3FFF) << 4,
        leading_byte_offset=(descriptor >> 16 & 0x3FFF) << 4,
        stride_byte_offset=(descriptor >> 32 & 0x3FFF) << 4,
        swizzle=_WGMMA_SWIZZLE[descriptor >> 62 & 3],
    )


def encode_wgmma_descriptor(fields: MatrixDescriptor) -> int:
    """The 64-bit value of a wgmma descriptor; the inverse of decode_wgmma_descriptor."""
    layout_type = {mode: code for code, mode in _WGMMA_SWIZZLE.items()}[fields.swizzle]
    return (
        _field(fields.start_address, "start_address")
        | _field(fields.leading_byte_offset, "leading_byte_offset") << 16
        | _field(fields.stride_byte_offset, "stride_byte_offset") << 32
        | layout_type << 62
    )


def _field(byte_count: int, name: str) -> int:
    if byte_count % CHUNK_BYTES or not 0 <= byte_count < 1 << 18:
        raise ValueError(f"{name} is {byte_count}; it must be a multiple of 16 bytes below 262144")
    return byte_count >> 4


def matrix_byte_index(descriptor: int, rows: int, k: int, elem_bytes: int, major: Major) -> IndexArray:
    """Shared-memory byte address of every element of the [rows, k] operand a wgmma descriptor names."""
    fields = decode_wgmma_descriptor(descriptor)
    base, phase = _split(fields.start_address)
    return base + _relative_elements(_layout(fields), phase, rows, k, elem_bytes, major)


def matrix_chunk_index(descriptor: int, rows: int, k: int, elem_bytes: int, major: Major) -> IndexArray:
    """Numbers of the 16-byte chunks (address / 16) that hold the operand.

    K-major: [rows, chunks along k]; MN-major: [k, chunks along mn]. The last chunk may reach past the operand.
    """
    fields = decode_wgmma_descriptor(descriptor)
    base, phase = _split(fields.start_address)
    return (base >> 4) + _relative_chunks(_layout(fields), phase, rows, k, elem_bytes, major)


def load_matrix(
    shared: npt.NDArray[np.uint8], descriptor: int, rows: int, k: int, elem_bytes: int, major: Major
) -> npt.NDArray[np.unsignedinteger]:
    """The operand's codes, [rows, k], gathered from a CTA's shared memory (uint8, length a multiple of 16)."""
    chunks = matrix_chunk_index(descriptor, rows, k, elem_bytes, major)
    if int(chunks.max()) * CHUNK_BYTES >= shared.size:
        raise ValueError(
            f"matrix descriptor {descriptor:#018x}: the {rows}x{k} operand reaches byte "
            f"{int(chunks.max()) * CHUNK_BYTES + 15} but shared memory ends at {shared.size}"
        )
    lines = shared.view(CHUNK_TYPE)[chunks].view(f"u{elem_bytes}")
    return lines[:, :k] if major == "K" else lines[:, :rows].T


_LayoutKey = tuple[int, int, SmemSwizzle]


def _layout(fields: MatrixDescriptor) -> _LayoutKey:
    return fields.leading_byte_offset, fields.stride_byte_offset, fields.swizzle


def _split(address: int) -> tuple[int, int]:
    """Address as (multiple of the longest swizzle pattern, rest): offsets are cached by the rest."""
    phase = address % _PATTERN_BYTES
    return address - phase, phase


@lru_cache(maxsize=4096)
def _relative_elements(layout: _LayoutKey, phase: int, rows: int, k: int, elem_bytes: int, major: Major) -> IndexArray:
    lines, units = (rows, k) if major == "K" else (k, rows)
    offsets = _logical_offsets(layout, lines, np.arange(units) * elem_bytes, major)
    return _frozen(_swizzled(layout, phase, offsets if major == "K" else offsets.T))


@lru_cache(maxsize=4096)
def _relative_chunks(layout: _LayoutKey, phase: int, rows: int, k: int, elem_bytes: int, major: Major) -> IndexArray:
    lines, units = (rows, k) if major == "K" else (k, rows)
    chunk_bytes = np.arange(0, units * elem_bytes, CHUNK_BYTES)
    return _frozen(_swizzled(layout, phase, _logical_offsets(layout, lines, chunk_bytes, major)) >> 4)


def _logical_offsets(layout: _LayoutKey, lines: int, byte: IndexArray, major: Major) -> IndexArray:
    """Unswizzled byte offsets [lines, bytes]; a line is a row of a K-major operand or a k of an MN-major one."""
    leading, stride, mode = layout
    span = SPAN_BYTES[mode]
    line = np.arange(lines, dtype=np.int64)[:, None]
    byte = byte.astype(np.int64)[None, :]
    if mode is SmemSwizzle.NONE and major == "MN":
        leading, stride = stride, leading  # the two exchange meaning for MN-major without swizzle
    if mode is not SmemSwizzle.NONE and major == "K":
        leading = span  # LBO is not used: an instruction's k stays inside the swizzle atom
    return line // _GROUP * stride + line % _GROUP * span + byte // span * leading + byte % span


def _swizzled(layout: _LayoutKey, phase: int, offsets: IndexArray) -> IndexArray:
    return swizzle_address(phase + offsets, layout[2])


def _frozen(array: IndexArray) -> IndexArray:
    array.setflags(write=False)
    return array
