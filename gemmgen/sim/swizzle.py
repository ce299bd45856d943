"""Shared-memory swizzles: XOR of 16-byte chunk bits with row bits, applied to absolute byte addresses.

Knows addresses only; it may not know of tensor maps, descriptors or the interpreter.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Address = TypeVar("Address", int, npt.NDArray[np.int64])


#: what a swizzle keeps together: copies move whole chunks
CHUNK_BYTES = 16
CHUNK_TYPE = np.complex128  # numpy's only 16-byte element with fast indexing; never computed with


class SmemSwizzle(IntEnum):
    """Swizzle modes, numbered as in tensor maps."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3


#: bytes of one swizzled row: what a TMA inner box may span
SPAN_BYTES = {SmemSwizzle.NONE: 16, SmemSwizzle.B32: 32, SmemSwizzle.B64: 64, SmemSwizzle.B128: 128}
#: bytes after which the pattern repeats: what a tile should be aligned to
PATTERN_BYTES = {SmemSwizzle.NONE: 16, SmemSwizzle.B32: 256, SmemSwizzle.B64: 512, SmemSwizzle.B128: 1024}
_ROW_MASK = {SmemSwizzle.NONE: 0, SmemSwizzle.B32: 1, SmemSwizzle.B64: 3, SmemSwizzle.B128: 7}


def swizzle_address(address: Address, mode: SmemSwizzle) -> Address:
    """Physical byte address of a logical one: bits 4-6 are XORed with bits 7-9, as many as the mode uses."""
    return address ^ (((address >> 7) & _ROW_MASK[mode]) << 4)
