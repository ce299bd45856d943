"""Groups of converged lanes, why they wait, and lane masks as bits, arrays and numbers.
Data only; moving lanes about is the warp's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .types import LANES, Mask

FULL = 0xFFFFFFFF
REPICK, YIELD = -1, -2  # what a control call returns instead of a pc


@lru_cache(maxsize=4096)
def mask_array(bits: int) -> Mask:
    """The lanes of a bit mask as a read-only bool array."""
    mask = np.array([bits >> lane & 1 for lane in range(LANES)], dtype=np.bool_)
    mask.setflags(write=False)
    return mask


@lru_cache(maxsize=4096)
def lanes_of(bits: int) -> tuple[int, ...]:
    return tuple(lane for lane in range(LANES) if bits >> lane & 1)


def bits_of_mask(mask: Mask) -> int:
    """A bool array of lanes as a bit mask."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@dataclass
class Wait:
    """Why a group of lanes does not run: `sync` waits resolve inside the warp, others when someone wakes the group."""

    kind: str
    describe: Callable[[], str]


@dataclass(eq=False)
class Group:
    """Lanes of a warp that stand at one pc."""

    pc: int
    bits: int
    wait: Wait | None = None


def lane_ranges(bits: int) -> str:
    lanes = lanes_of(bits)
    if len(lanes) == 1:
        return str(lanes[0])
    return f"{lanes[0]}-{lanes[-1]}" if len(lanes) == lanes[-1] - lanes[0] + 1 else str(lanes)
