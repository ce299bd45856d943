"""Who stored to each word of global memory, and which atomics, fences and barriers order that before others' loads.
It judges ordinary loads and stores of one launch among each other; it moves no bytes and knows no instruction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .memory import GLOBAL_WINDOW, Block
from .types import Array, Instr

if TYPE_CHECKING:
    from .gpu import Gpu
    from .machine import Cluster
    from .memory_ops import Span
    from .warp import Warp

MOST_WARPS = 4096
"""Warps of a grid up to which order is kept: every clock has a component for each of them."""
LANE_BITS = 5
NOBODY = -1
ORDERED = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
ACQUIRES, RELEASES = ("acquire", "acq_rel"), ("release", "acq_rel")
SCOPES, GRID = ("cta", "cluster"), 2
"""Scopes by their level; all others are the grid's."""
Order = tuple[str, int]
"""What an access promises of the order of others, and up to which level."""


def level_of(instr: Instr) -> int:
    """Who is meant by an atomic or a fence; without a scope, all."""
    return next((SCOPES.index(part) for part in instr.parts if part in SCOPES), GRID)


def order_of(instr: Instr) -> Order | None:
    """None for an ordinary access."""
    semantics = next((part for part in instr.parts if part in ORDERED), None)
    return None if semantics is None else (semantics, level_of(instr))


@dataclass
class Beside:
    """What a warp knows of the grid beside its clock: what some of its lanes know, and what fences make known.

    ``told`` are lanes and what they have acquired, which the others learn when the warp meets. By level, ``observed``
    is what relaxed accesses saw, and ``fenced`` what they release, with the lanes whose fence it was.
    """

    place: int
    first: int
    told: tuple[int, Array] | None = None
    observed: list[Array | None] = field(default_factory=lambda: [None] * (GRID + 1))
    fenced: list[tuple[int, Array] | None] = field(default_factory=lambda: [None] * (GRID + 1))

    @property
    def own(self) -> int:
        """The warp's component."""
        return self.first + self.place

    def join(self, clock: Array, other: Array) -> None:
        """What another warp of the grid released, into a whole clock."""
        known = clock[:2, self.first :]
        np.maximum(known, other, out=known)


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
        self._words: dict[tuple[int, object, int], Array] = {}

    def enter(self, cluster: Cluster) -> int:
        """The place of a cluster's first warp among those of the grid."""
        first = self.made
        self.made += cluster.warp_total
        return first

    def follow(self, warp: Warp) -> Beside:
        """Warps come in the order of their places."""
        self._names.append(f"{warp.who()}, CTA {warp.cta.position}" if warp.cta.cluster.size == 1 else warp.who())
        return Beside(warp.cta.cluster.entered + warp.number, warp.cta.cluster.first_place)

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
        notes = self._noted(block)
        words, who = _words(offsets, lanes, nbytes)
        if nbytes < 4:
            notes.writer[words] = NOBODY
            return
        self._check(warp, block, notes, words, who, "overwrites")
        notes.writer[words] = _of(warp).place
        notes.written[words] = warp.epoch
        notes.lane[words] = who

    def _check(self, warp: Warp, block: Block, notes: _Notes, words: Array, lanes: Array, verb: str) -> None:
        writer, written, lane, beside = notes.writer[words], notes.written[words], notes.lane[words], _of(warp)
        theirs = (writer != NOBODY) & (writer != beside.place)
        if theirs.any():
            at = np.where(theirs, writer, 0)
            late = theirs & ~_covers(warp.clock[:, beside.first :], at, written, lane)
            if beside.told is not None:
                bits, clock = beside.told
                late &= ~((bits >> lanes & 1).astype(np.bool_) & _covers(clock, at, written, lane))
            if late.any():
                word = int(words[late][0])
                name = self._names[int(notes.writer[word])]
                self.gpu.race(
                    f"{block.name}+{4 * word}: {verb} it, but {name} wrote it, and nothing orders that before"
                )
        crossed = (writer == beside.place) & (written >= warp.lane_epoch) & (lane != lanes)
        if crossed.any():
            word = int(words[crossed][0])
            self.gpu.race(
                f"{block.name}+{4 * word}: a lane {verb} what lane {int(notes.lane[word])} of its warp wrote, with no "
                "warp synchronisation between (bar.warp.sync, bar.sync or a barrier wait)"
            )

    def _noted(self, block: Block) -> _Notes:
        found = self._notes.get(block.base)
        if found is None:
            count = -(-block.nbytes // 4)
            found = _Notes(np.full(count, NOBODY, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int8))
            self._notes[block.base] = found
        return found

    # what orders them

    def fence(self, warp: Warp, lanes: int, level: int) -> None:
        """Later relaxed accesses release what came before, and earlier ones acquire."""
        beside, spoken = _of(warp), self._spoken(warp, self._now(warp), lanes)
        for each in range(level + 1):
            old = beside.fenced[each]
            kept = old is not None and old[0] & ~lanes
            beside.fenced[each] = (old[0] | lanes, np.maximum(old[1], spoken)) if old and kept else (lanes, spoken)
            if (seen := beside.observed[each]) is not None:
                self._tell(warp, lanes, seen)
                beside.observed[each] = None

    def touch(self, warp: Warp, span: Span, nbytes: int, order: Order, reads: bool, writes: bool) -> None:
        """Atomics, or accesses with an order, at words that are then no data."""
        if span.block.base < GLOBAL_WINDOW:
            return
        (semantics, level), words = order, span.offsets >> 2
        now = self._now(warp) if writes and semantics in RELEASES else None
        lanes = int(np.bitwise_or.reduce(1 << span.lanes.astype(np.int64)))
        for word in np.unique(words).tolist():
            for each, whose in enumerate((warp.cta.position, warp.cta.cluster.first, "grid")[: level + 1]):
                key = (each, whose, (span.block.base >> 2) + word)
                known = self._words.get(key)
                if reads and known is not None:
                    self._see(warp, lanes, each, known, semantics)
                released = self._released(warp, lanes, each, now) if writes else None
                if released is not None:
                    self._words[key] = released if known is None else np.maximum(known, released)
        if (notes := self._notes.get(span.block.base)) is not None:
            notes.writer[_words(span.offsets, span.lanes, nbytes)[0]] = NOBODY

    def _see(self, warp: Warp, lanes: int, level: int, known: Array, semantics: str) -> None:
        if semantics in ACQUIRES:
            self._tell(warp, lanes, known)
        else:
            seen = _of(warp).observed[level]
            _of(warp).observed[level] = known if seen is None else np.maximum(seen, known)

    def _released(self, warp: Warp, lanes: int, level: int, now: Array | None) -> Array | None:
        if now is not None:
            return self._spoken(warp, now, lanes)
        fenced = _of(warp).fenced[level]
        return None if fenced is None or lanes & ~fenced[0] else fenced[1]

    @staticmethod
    def _now(warp: Warp) -> Array:
        return warp.release()[:2, _of(warp).first :]

    @staticmethod
    def _spoken(warp: Warp, clock: Array, lanes: int) -> Array:
        """What a lane knows, and of its own warp what came before that last met. Several at once speak for all."""
        if lanes & (lanes - 1) or lanes == warp.live:
            return clock
        clock, place = clock.copy(), _of(warp).place
        clock[1, place] = int(clock[0, place]) << LANE_BITS | lanes.bit_length() - 1
        clock[0, place] = warp.lane_epoch - 1
        return clock

    @staticmethod
    def _tell(warp: Warp, lanes: int, clock: Array) -> None:
        """Some lanes learn it now, the others when the warp meets."""
        beside = _of(warp)
        if lanes & warp.live == warp.live:
            beside.join(warp.clock, clock)
        elif beside.told is None:
            beside.told = lanes, clock
        else:
            beside.told = beside.told[0] | lanes, np.maximum(beside.told[1], clock)


def _of(warp: Warp) -> Beside:
    assert warp.beside is not None
    return warp.beside


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
