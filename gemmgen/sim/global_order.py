"""Who stored to each word of global memory, and which atomics, fences and barriers order that before others' loads.
It judges ordinary loads and stores of one launch among each other; it moves no bytes and knows no instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .memory import GLOBAL_WINDOW, Block
from .types import Array

if TYPE_CHECKING:
    from .gpu import Gpu
    from .machine import Cluster
    from .warp import Warp

MOST_WARPS = 4096
"""Warps of a grid up to which order is kept: every clock has a component for each of them."""
LANE_BITS = 5
NOBODY = -1
ACQUIRES, RELEASES = ("acquire", "acq_rel", "sc"), ("release", "acq_rel", "sc")


@dataclass
class _Notes:
    """What is known of one buffer, by word."""

    writer: Array
    written: Array
    lane: Array


class GlobalOrder:
    """One per launch of a kernel with atomics on global memory.

    A warp's clock has a component for every warp of the grid behind those of its cluster. Row 0 says up to which epoch
    all lanes of that warp have released what they wrote, row 1 the same of a single lane: epoch and lane in a number.
    So barriers pass it on as they pass on the rest of a clock. Atomics do it at the word that they touch.
    """

    def __init__(self, gpu: Gpu, warps: int) -> None:
        self.gpu = gpu
        self.warps = warps
        self.made = 0
        self._names: list[str] = []
        self._notes: dict[int, _Notes] = {}
        self._words: dict[tuple[object, int], Array] = {}

    def enter(self, cluster: Cluster) -> int:
        """The first component of a cluster's warps, counted from the first of the grid."""
        first = self.made
        self.made += cluster.warp_total
        return first

    def name(self, warp: Warp) -> None:
        """Warps come in the order of their components."""
        self._names.append(f"{warp.who()}, CTA {warp.cta.position}" if warp.cta.cluster.size == 1 else warp.who())

    # ordinary accesses

    def read(self, warp: Warp, block: Block, offsets: Array, lanes: Array, nbytes: int) -> None:
        """Loads by these lanes: of what others stored they must have been told."""
        notes = self._notes.get(block.base)
        if notes is not None:
            words, who = _words(offsets, lanes, nbytes)
            self._check(warp, block, notes, words, who, "reads")

    def write(self, warp: Warp, block: Block, offsets: Array, lanes: Array, nbytes: int) -> None:
        """Stores by these lanes. Parts of words are not told apart, so they are not judged."""
        if block.base < GLOBAL_WINDOW:
            return
        notes = self._of(block)
        words, who = _words(offsets, lanes, nbytes)
        if nbytes < 4:
            notes.writer[words] = NOBODY
            return
        self._check(warp, block, notes, words, who, "overwrites")
        notes.writer[words] = warp.place
        notes.written[words] = warp.epoch
        notes.lane[words] = who

    def _check(self, warp: Warp, block: Block, notes: _Notes, words: Array, lanes: Array, verb: str) -> None:
        writer, written, lane = notes.writer[words], notes.written[words], notes.lane[words]
        theirs = (writer != NOBODY) & (writer != warp.place)
        if theirs.any():
            at = np.where(theirs, writer, 0)
            late = theirs & ~_covers(warp.clock[:, warp.cta.cluster.first_place :], at, written, lane)
            if warp.told is not None:
                bits, clock = warp.told
                late &= ~((bits >> lanes & 1).astype(np.bool_) & _covers(clock, at, written, lane))
            if late.any():
                word = int(words[late][0])
                name = self._names[int(notes.writer[word])]
                self.gpu.race(
                    f"{block.name}+{4 * word}: {verb} it, but {name} wrote it, and nothing orders that before"
                )
        crossed = (writer == warp.place) & (written >= warp.lane_epoch) & (lane != lanes)
        if crossed.any():
            word = int(words[crossed][0])
            self.gpu.race(
                f"{block.name}+{4 * word}: a lane {verb} what lane {int(notes.lane[word])} of its warp wrote, with no "
                "warp synchronisation between (bar.warp.sync, bar.sync or a barrier wait)"
            )

    def _of(self, block: Block) -> _Notes:
        found = self._notes.get(block.base)
        if found is None:
            count = -(-block.nbytes // 4)
            found = _Notes(np.full(count, NOBODY, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int8))
            self._notes[block.base] = found
        return found

    # what orders them

    def fence(self, warp: Warp, lanes: int) -> None:
        """At the scope of the GPU: later relaxed accesses release what came before, and earlier ones acquire."""
        warp.fenced = self._released(warp, lanes)
        if warp.observed is not None:
            self._tell(warp, lanes, warp.observed)
            warp.observed = None

    def touch(self, warp: Warp, block: Block, offsets: Array, lanes: Array, semantics: str, scope: object) -> None:
        """Atomics, or accesses with an order, at words that are then no data; ``scope`` is who they speak to."""
        if block.base < GLOBAL_WINDOW:
            return
        bits = int(np.bitwise_or.reduce(1 << lanes.astype(np.int64)))
        release = self._released(warp, bits) if semantics in RELEASES else warp.fenced
        for word in np.unique(offsets >> 2).tolist():
            key = (scope, (block.base >> 2) + word)
            known = self._words.get(key)
            if known is not None:
                if semantics in ACQUIRES:
                    self._tell(warp, bits, known)
                else:
                    warp.observed = known.copy() if warp.observed is None else np.maximum(warp.observed, known)
            if release is not None:
                self._words[key] = release if known is None else np.maximum(known, release)
        if (notes := self._notes.get(block.base)) is not None:
            notes.writer[offsets >> 2] = NOBODY

    def _released(self, warp: Warp, lanes: int) -> Array:
        """What these lanes know, and of their own warp what came before it last met, if they are not all of it."""
        clock = warp.release()[:2, warp.cta.cluster.first_place :]
        if lanes & warp.live != warp.live:
            lane = (lanes & -lanes).bit_length() - 1
            clock[1, warp.place] = int(clock[0, warp.place]) << LANE_BITS | lane
            clock[0, warp.place] = warp.lane_epoch - 1
        return clock

    @staticmethod
    def _tell(warp: Warp, lanes: int, clock: Array) -> None:
        """Some lanes learn it now, the others when the warp meets."""
        if lanes & warp.live == warp.live:
            warp.learn(clock)
        elif warp.told is None:
            warp.told = lanes, clock
        else:
            warp.told = warp.told[0] | lanes, np.maximum(warp.told[1], clock)


def _covers(clock: Array, at: Array, written: Array, lane: Array) -> Array:
    by_lane = clock[1][at]
    of_lane = (by_lane >> LANE_BITS >= written) & (by_lane % (1 << LANE_BITS) == lane)
    found: Array = (clock[0][at] >= written) | of_lane
    return found


def _words(offsets: Array, lanes: Array, nbytes: int) -> tuple[Array, Array]:
    """Words of the accesses, and the lane of each."""
    count = max(1, nbytes // 4)
    words = ((offsets >> 2)[:, None] + np.arange(count)).reshape(-1)
    return words, np.repeat(lanes, count)
