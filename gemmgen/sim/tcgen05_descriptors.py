"""Descriptors of tcgen05: the 64-bit shared-memory descriptor and the 32-bit instruction descriptor of every kind.
Bits without a known meaning are refused; it may not know of memory contents, registers or the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .descriptors import Major, MatrixDescriptor
from .swizzle import CHUNK_BYTES, CHUNK_TYPE, SPAN_BYTES, SmemSwizzle, swizzle_address

IndexArray = npt.NDArray[np.int64]

_USED_BITS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 3 << 46 | 7 << 49 | 1 << 52 | 7 << 61
_SWIZZLE = {0: SmemSwizzle.NONE, 2: SmemSwizzle.B128, 4: SmemSwizzle.B64, 6: SmemSwizzle.B32}
_WIDE_ATOMS = 1  # 128-byte swizzle of 32-byte atoms
_PATTERN_BYTES = 1024


@dataclass(frozen=True)
class SharedDescriptor:
    """A tcgen05 shared-memory descriptor in bytes; wide_atoms is the 128-byte swizzle that moves 32-byte atoms."""

    matrix: MatrixDescriptor
    wide_atoms: bool = False


@lru_cache(maxsize=8192)
def decode_shared_descriptor(descriptor: int) -> SharedDescriptor:
    """Fields of a shared-memory descriptor; ValueError for what is not known."""
    name = f"tcgen05 shared-memory descriptor {descriptor:#018x}"
    if descriptor & ~_USED_BITS:
        raise ValueError(f"{name}: reserved bits {descriptor & ~_USED_BITS:#x} are set; they must be 0")
    if (version := descriptor >> 46 & 3) != 1:
        raise ValueError(f"{name}: version (bits 46-47) is {version}; it must be 1")
    if base_offset := descriptor >> 49 & 7:
        raise ValueError(f"{name}: base_offset is {base_offset}; only 0 is modelled: align the tile to 1024 bytes")
    if descriptor >> 52 & 1:
        raise ValueError(f"{name}: the leading-byte-offset mode (bit 52) is 1; only 0, relative, is modelled")
    layout = descriptor >> 61
    if layout != _WIDE_ATOMS and layout not in _SWIZZLE:
        raise ValueError(f"{name}: layout (bits 61-63) is {layout}; it must be 0, 1, 2, 4 or 6")
    matrix = MatrixDescriptor(
        start_address=(descriptor & 0x3FFF) << 4,
        leading_byte_offset=(descriptor >> 16 & 0x3FFF) << 4,
        stride_byte_offset=(descriptor >> 32 & 0x3FFF) << 4,
        swizzle=SmemSwizzle.B128 if layout == _WIDE_ATOMS else _SWIZZLE[layout],
    )
    return SharedDescriptor(matrix, layout == _WIDE_ATOMS)


@lru_cache(maxsize=4096)
def operand_chunks(descriptor: int, rows: int, line_bytes: int, major: Major) -> IndexArray:
    """Numbers of the 16-byte chunks of an operand: [rows, chunks of a row's k] K-major, [k, chunks along mn] MN-major.

    rows is the number of rows (K-major) or of k (MN-major); line_bytes what one of them holds.
    """
    found = decode_shared_descriptor(descriptor)
    start = found.matrix.start_address
    phase = start % _PATTERN_BYTES
    relative = _relative_chunks(found, phase, rows, line_bytes, major)
    return _frozen((start - phase) // CHUNK_BYTES + relative)


@lru_cache(maxsize=2048)
def _relative_chunks(found: SharedDescriptor, phase: int, lines: int, line_bytes: int, major: Major) -> IndexArray:
    matrix = found.matrix
    mode, span = matrix.swizzle, SPAN_BYTES[matrix.swizzle]
    leading, stride = matrix.leading_byte_offset, matrix.stride_byte_offset
    group = 4 if found.wide_atoms else 8
    if major == "MN" and mode is SmemSwizzle.NONE:
        leading, stride = stride, leading  # the two exchange meaning for MN-major without swizzle
    if major == "K" and mode is not SmemSwizzle.NONE:
        leading = span  # LBO is not used: an instruction's k stays inside the swizzle atom
    line = np.arange(lines, dtype=np.int64)[:, None]
    byte = np.arange(0, line_bytes, CHUNK_BYTES, dtype=np.int64)[None, :]
    logical = phase + line // group * stride + line % group * span + byte // span * leading + byte % span
    physical = logical ^ ((logical >> 7 & 3) << 5) if found.wide_atoms else swizzle_address(logical, mode)
    return _frozen(physical // CHUNK_BYTES)


def check_layout(descriptor: int, major: Major, kind: str) -> None:
    """Which layouts an operand may have: 32-byte atoms are for MN-major tf32, which has no other."""
    wide = decode_shared_descriptor(descriptor).wide_atoms
    needed = kind == "tf32" and major == "MN"
    if wide != needed:
        rule = "needs the 128-byte swizzle of 32-byte atoms (layout 1)" if needed else "has no 32-byte atoms (layout 1)"
        raise ValueError(f"tcgen05 shared-memory descriptor {descriptor:#018x}: {major}-major {kind} {rule}")


def load_lines(
    shared: npt.NDArray[np.uint8], descriptor: int, lines: int, line_bytes: int, major: Major
) -> npt.NDArray[np.uint8]:
    """[lines, bytes] of an operand, gathered from a CTA's shared memory."""
    chunks = operand_chunks(descriptor, lines, line_bytes, major)
    gathered: npt.NDArray[np.uint8] = shared.view(CHUNK_TYPE)[chunks].view(np.uint8)[:, :line_bytes]
    return gathered


def _frozen(array: IndexArray) -> IndexArray:
    array.setflags(write=False)
    return array


# instruction descriptors

FORMATS = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 5: "e2m1"},
    "mxf8f6f4": {0: "e4m3", 1: "e5m2", 5: "e2m1"},
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
BLOCK_SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
_ACCUMULATORS = {0: "f16", 1: "f32"}
_SCALE_FORMATS = {0: "ue4m3", 1: "ue8m0"}
_DENSE_BITS = 0b11 << 4 | 7 << 7 | 7 << 10 | 0xF << 13 | 0x3F << 17 | 0x1F << 24
_SCALED_BITS = 0b11 << 4 | 7 << 7 | 7 << 10 | 0xF << 13 | 0x3F << 17 | 1 << 23 | 0x1F << 24 | 3 << 29


@dataclass(frozen=True)
class Instruction:
    """What an instruction descriptor says."""

    m: int
    n: int
    d: str
    a: str
    b: str
    a_sign: int
    b_sign: int
    a_major: Major
    b_major: Major
    scale: str = ""
    a_scale_id: int = 0
    b_scale_id: int = 0


@lru_cache(maxsize=2048)
def decode_instruction(value: int, kind: str, group: int, scales: int) -> Instruction:
    """Fields of an instruction descriptor; scales is how many scale factors a row has per instruction, 0 if dense."""
    name = f"tcgen05 instruction descriptor {value:#010x} of kind::{kind}"
    scaled = kind in BLOCK_SCALED
    unknown = value & ~(_SCALED_BITS if scaled else _DENSE_BITS)
    if unknown:
        raise ValueError(
            f"{name}: bits {unknown:#x} are reserved or select what is not modelled (sparse, saturate, K96)"
        )
    found = Instruction(
        m=(value >> 24 & 0x1F) << 4,
        n=(value >> 17 & 0x3F) << 3,
        d="f32" if scaled else _choice(_ACCUMULATORS, value >> 4 & 3, f"{name}: accumulator format (bits 4-5)"),
        a=_choice(FORMATS[kind], value >> 7 & 7, f"{name}: A format (bits 7-9)"),
        b=_choice(FORMATS[kind], value >> 10 & 7, f"{name}: B format (bits 10-12)"),
        a_sign=-1 if value >> 13 & 1 else 1,
        b_sign=-1 if value >> 14 & 1 else 1,
        a_major="MN" if value >> 15 & 1 else "K",
        b_major="MN" if value >> 16 & 1 else "K",
        scale=_SCALE_FORMATS[value >> 23 & 1] if scaled else "",
        a_scale_id=value >> 29 & 3 if scaled else 0,
        b_scale_id=value >> 4 & 3 if scaled else 0,
    )
    _check_shape(found, kind, group, name)
    _check_formats(found, kind, scales, name)
    return found


def _choice(table: dict[int, str], code: int, what: str) -> str:
    if code not in table:
        known = ", ".join(f"{code} {name}" for code, name in table.items())
        raise ValueError(f"{what} is {code}; modelled are {known}")
    return table[code]


def _check_shape(found: Instruction, kind: str, group: int, name: str) -> None:
    heights: tuple[int, ...] = (128, 256) if group == 2 else (64, 128)
    if kind in BLOCK_SCALED:
        heights = (256,) if group == 2 else (128,)
    if found.m not in heights:
        rule = " or ".join(map(str, heights))
        raise ValueError(f"{name}: M is {found.m}; cta_group::{group} has {rule} (as far as it is modelled)")
    step = 8 if group == 1 and (found.m == 64 or kind in BLOCK_SCALED) else 16
    if not step <= found.n <= 256 or found.n % step:
        raise ValueError(f"{name}: N is {found.n}; it must be a multiple of {step} from {step} to 256 for M {found.m}")


def _check_formats(found: Instruction, kind: str, scales: int, name: str) -> None:
    for operand, fmt, major in (("A", found.a, found.a_major), ("B", found.b, found.b_major)):
        if major == "MN" and fmt == "e2m1":
            raise ValueError(f"{name}: {operand} is MN-major {fmt}; 4-bit operands are K-major only")
    if kind == "f16" and (found.a != found.b or (found.d == "f16" and found.a != "f16")):
        raise ValueError(f"{name}: A {found.a}, B {found.b}, D {found.d} do not go together")
    if kind == "tf32" and found.d != "f32":
        raise ValueError(f"{name}: D is {found.d}; tf32 accumulates in f32 only")
    if not scales:
        return
    if found.scale == "ue4m3" and (kind != "mxf4nvf4" or scales != 4):
        raise ValueError(f"{name}: scale format (bit 23) is ue4m3; only mxf4nvf4 with four scales a row has it")
    for operand, number in (("A", found.a_scale_id), ("B", found.b_scale_id)):
        if number % scales or number + scales > 4:
            allowed = ", ".join(str(i) for i in range(0, 4, scales))
            raise ValueError(f"{name}: {operand}'s scale id is {number}; with {scales} scales a row it is {allowed}")
