"""Address spaces: global buffers in disjoint runs of 4 GB windows, shared memory of a CTA, parameters and local memory.
It checks bounds and alignment of accesses; order and proxies are the shadow's business."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import Fault, OutOfBounds
from .swizzle import CHUNK_TYPE
from .types import Array

Bytes = npt.NDArray[np.uint8]

GLOBAL_WINDOW = 0x100_0000_0000  # first global buffer; the next one starts at the next window
WINDOW_BITS = 32
SHARED_WINDOW = 0x70_0000_0000  # generic addresses of shared memory: the low 32 bits are the shared address
LOCAL_WINDOW = 0x71_0000_0000
PARAM_WINDOW = 0x72_0000_0000
SHARED_START = 1024  # the first kilobyte is reserved by the system, as on sm_90
RANK_SHIFT = 24  # a shared address carries the CTA's rank in the cluster above these bits
POISON = 0xFF

_VIEWS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: CHUNK_TYPE}


class Block:
    """A named run of bytes at an address, seen as words of 1, 2, 4 and 8 bytes, or as rows of 16."""

    def __init__(self, name: str, base: int, data: Bytes, writable: bool = True) -> None:
        self.name = name
        self.base = base
        self.data = data
        self.nbytes = data.nbytes
        self.writable = writable
        self.start = 0  # bytes below this are out of reach
        self._views: dict[int, Array] = {}

    def view(self, size: int) -> Array:
        """The bytes as words of size; a tail shorter than a word is out of reach."""
        found = self._views.get(size)
        if found is None:
            whole = self.nbytes // size * size
            found = self._views[size] = self.data[:whole].view(_VIEWS[size])
        return found

    def offsets(self, addresses: Array, nbytes: int, align: int) -> Array:
        """Byte offsets of lane accesses of nbytes each, checked for bounds and alignment."""
        offsets = addresses.astype(np.int64) - self.base
        values = offsets.tolist()  # faster than numpy for so few
        low, high = min(values), max(values)
        if low < self.start or high + nbytes > self.nbytes:
            self._out_of_bounds(low if low < self.start else high, nbytes)
        if align > 1 and int(np.bitwise_or.reduce(offsets)) & (align - 1):
            bad = int(offsets[(offsets & (align - 1)) != 0][0])
            raise Fault(
                f"{self.name}+{bad}: an access of {nbytes} bytes needs an address that is a multiple of {align}"
            )
        return offsets

    def _out_of_bounds(self, offset: int, nbytes: int) -> None:
        if 0 <= offset < self.start:
            raise OutOfBounds(f"{self.name}: offset {offset}: the first {self.start} bytes are reserved by the system")
        raise OutOfBounds(
            f"{self.name}: access of {nbytes} bytes at offset {offset}, but it has {self.nbytes} bytes "
            f"(address {self.base + offset:#x})"
        )


class GlobalMemory:
    """All global buffers of a simulated GPU."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}  # by window, without gaps

    def map(self, data: Bytes, name: str, writable: bool = True) -> int:
        """Give the bytes fresh windows, as many as they reach into; accesses outside them fault with the name."""
        base = GLOBAL_WINDOW + (len(self.blocks) << WINDOW_BITS)
        block = Block(name, base, data, writable)
        for window in range(base, base + max(1, data.nbytes), 1 << WINDOW_BITS):
            self.blocks[window >> WINDOW_BITS] = block
        return base

    def at(self, address: int) -> Block:
        """The buffer whose window holds the address."""
        block = self.blocks.get(address >> WINDOW_BITS)
        if block is None:
            raise OutOfBounds(f"address {address:#x} lies in no mapped buffer (null pointer, or far outside any)")
        return block

    def bytes_at(self, address: int, nbytes: int, write: bool = False) -> Bytes:
        block = self.at(address)
        offset = address - block.base
        if offset + nbytes > block.nbytes:
            block._out_of_bounds(offset, nbytes)
        if write and not block.writable:
            raise Fault(f"{block.name}: write at offset {offset} to memory mapped read-only")
        return block.data[offset : offset + nbytes]
