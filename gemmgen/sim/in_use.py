"""Memory that kernels ahead of an early launch may still use: no thread touches it before its griddepcontrol.wait.
It judges accesses that others decoded and moves no bytes; who has waited is noted by the warps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import Fault
from .groups import lane_ranges
from .memory import Bytes, GlobalMemory
from .tensor_map import TensorMap, touched_bytes

if TYPE_CHECKING:
    from .memory_ops import Span
    from .warp import Warp

Range = tuple[int, int]
"""An address and how many bytes lie there."""


class InUse:
    """Ranges of one launch. The wait of another thread never counts, even where a barrier orders it before: whoever
    moves a barrier would break a kernel that relied on it."""

    def __init__(self, memory: GlobalMemory, ranges: Sequence[Range] = ()) -> None:
        self._memory = memory
        self._marks: dict[int, Bytes] = {}  # by a buffer's address: 1 for every byte in use
        for address, nbytes in ranges:
            if nbytes:
                self._mark(address, nbytes)

    def __bool__(self) -> bool:
        return bool(self._marks)

    def _mark(self, address: int, nbytes: int) -> None:
        self._memory.bytes_at(address, nbytes)  # or it is out of bounds
        block = self._memory.at(address)
        marks = self._marks.setdefault(block.base, np.zeros(block.nbytes, np.uint8))
        marks[address - block.base : address - block.base + nbytes] = 1

    def check_lanes(self, warp: Warp, span: Span, nbytes: int, write: bool = False) -> None:
        """Accesses of some bytes each by lanes."""
        marks = self._marks.get(span.block.base)
        if marks is None:
            return
        late = (np.array([warp.unwaited]) >> span.lanes & 1).astype(np.bool_)
        hit = late & marks[span.offsets[:, None] + np.arange(nbytes)].any(axis=1)
        if hit.any():
            lanes = sum(1 << lane for lane in span.lanes[hit].tolist())
            raise _fault(f"{span.block.name}+{int(span.offsets[hit][0])}", lanes, write)

    def check_bytes(self, warp: Warp, lane: int, address: int, nbytes: int, write: bool = False) -> None:
        """An access to a run of bytes by one lane, or by all of a warp where the lane is negative."""
        block = self._memory.at(address)
        marks = self._marks.get(block.base)
        lanes, offset = _lanes(warp, lane), address - block.base
        if marks is not None and lanes and marks[offset : offset + nbytes].any():
            raise _fault(f"{block.name}+{offset}", lanes, write)

    def check_box(self, warp: Warp, lane: int, tensor: TensorMap, coords: tuple[int, ...], write: bool = False) -> None:
        """A lane's copy of a box."""
        block = self._memory.at(tensor.address)
        marks = self._marks.get(block.base)
        lanes = _lanes(warp, lane)
        if marks is not None and lanes and touched_bytes(tensor, coords, marks, block.base, write).any():
            raise _fault(f"{block.name}, box at {coords}", lanes, write)


def _lanes(warp: Warp, lane: int) -> int:
    """Those of an access that have not waited."""
    return warp.unwaited if lane < 0 else warp.unwaited & 1 << lane


def _fault(place: str, lanes: int, write: bool) -> Fault:
    did, may = ("write", "use") if write else ("read", "write")
    who = f"lanes {lane_ranges(lanes)} {did} it before their griddepcontrol.wait"
    return Fault(f"{place}: {who}; a kernel ahead may still {may} it")
