"""Tensor maps in global memory: who wrote them, released and acquired them, and which copies still use them.
It judges order towards the tensor map proxy only; it moves no bytes and knows no instruction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .groups import lane_ranges
from .memory import GLOBAL_WINDOW, WINDOW_BITS, Block
from .registry import SCOPES
from .types import Array

if TYPE_CHECKING:
    from .gpu import Gpu
    from .warp import Warp

GRANULE_BITS = 6  # writes are noted per 64 bytes, the alignment of a tensor map, which takes two
EVERY_LANE = -1  # all lanes of a warp wrote together
BY_COPY = -1  # the stamp of what a bulk copy wrote
Cluster = tuple[int, int, int]  # its first CTA


@dataclass(frozen=True)
class Writer:
    """A warp that stored to global memory, kept without the warp."""

    cluster: Cluster
    rank: int
    number: int
    name: str


@dataclass(frozen=True)
class Release:
    """fence.proxy.tensormap::generic.release by lanes of a warp, or what tensormap.cp_fenceproxy does for one map."""

    rank: int
    number: int
    epoch: int
    lane_epoch: int
    lanes: int
    scope: str
    clock: Array  # what the warp knew
    address: int | None

    def covers(self, writer: Writer, epoch: int, lane: int, address: int) -> bool:
        """Whether it follows a write: in time, and by the same lane or after a warp synchronisation."""
        if self.address not in (None, address) or self.clock[writer.number] < epoch:
            return False
        same_lane = lane == EVERY_LANE or bool(self.lanes >> lane & 1)
        return writer.number != self.number or epoch < self.lane_epoch or same_lane

    def known_to(self, warp: Warp, lanes: int) -> bool:
        """Whether it is ordered before what these lanes of a warp of its cluster do now."""
        if self.number != warp.number:
            return bool(warp.clock[0, self.number] >= self.epoch)
        return self.epoch < warp.lane_epoch or not lanes & ~self.lanes


@dataclass(frozen=True)
class Acquire:
    """fence.proxy.tensormap::generic.acquire of an address: the writes it saw, or why it saw none of them."""

    stamps: tuple[int, int]
    epoch: int
    lanes: int
    problem: str


@dataclass(eq=False)
class MapUse:
    """A copy issued with a map in global memory. It lands part by part, or has read its map once a bulk group waits."""

    what: str
    cluster: Cluster
    number: int
    epoch: int
    parts: int = 1
    landed: list[tuple[int, int]] = field(default_factory=list)  # clock component and epoch of every part
    read: tuple[int, int] | None = None
    waited_read: bool = True  # as BulkStore has it: a load reads no shared memory that its group must wait for

    def land(self, component: int, epoch: int) -> None:
        self.landed.append((component, epoch))

    def wait(self, warp: Warp, lane: int, read_only: bool) -> None:
        """A wait for the bulk group that was committed after the copy: the map has been read."""
        self.read = self.read or (warp.number, warp.epoch)

    def issue_known_to(self, warp: Warp) -> bool:
        return self.cluster == warp.cta.cluster.first and bool(warp.clock[0, self.number] >= self.epoch)

    def over_for(self, warp: Warp) -> bool:
        """Whether a warp knows that the map is not read any more; in other clusters, whether it is so."""
        complete = len(self.landed) == self.parts
        if self.cluster != warp.cta.cluster.first:
            return complete or self.read is not None
        if self.read is not None and warp.clock[0, self.read[0]] >= self.read[1]:
            return True
        return complete and all(warp.clock[0, component] >= epoch for component, epoch in self.landed)


@dataclass
class _Notes:
    """What is known of one buffer."""

    stamps: Array  # [granules] int64: writer << 40 | lane + 1 << 32 | epoch; 0: not written by this launch
    uses: dict[int, list[MapUse]] = field(default_factory=dict)  # by granule


class MapOrder:
    """One per launch. Order inside a cluster is that of its clocks, between clusters that of execution."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._notes: dict[int, _Notes] = {}
        self._writers: list[Writer] = []
        self._numbers: dict[tuple[Cluster, int], int] = {}
        self._releases: dict[Cluster, list[Release]] = {}

    # writes

    def written(self, warp: Warp, block: Block, offsets: Array, lanes: Array) -> None:
        """Ordinary stores of these lanes; none crosses a granule."""
        if block.base < GLOBAL_WINDOW:
            return
        notes, granules = self._of(block), offsets >> GRANULE_BITS
        notes.stamps[granules] = (lanes.astype(np.int64) + 1 << 32) + (self._number(warp) << 40 | warp.epoch)
        if notes.uses:
            self._check_unused(warp, block, notes, granules)

    def written_whole(self, warp: Warp, address: int, lane: int) -> None:
        """The 128 bytes of a map, by one lane or by EVERY_LANE."""
        block = self.gpu.memory.at(address)
        offsets = address - block.base + np.array([0, 1 << GRANULE_BITS])
        self.written(warp, block, offsets, np.array([lane, lane]))

    def written_by_copy(self, block: Block, offset: int, nbytes: int) -> None:
        """A bulk copy lands: it may have carried a tensor map, which then no fence makes visible."""
        self._of(block).stamps[offset >> GRANULE_BITS : -(-(offset + nbytes) >> GRANULE_BITS)] = BY_COPY

    def _of(self, block: Block) -> _Notes:
        notes = self._notes.get(block.base)
        if notes is None:
            notes = self._notes[block.base] = _Notes(np.zeros((block.nbytes >> GRANULE_BITS) + 2, np.int64))
        return notes

    def _number(self, warp: Warp) -> int:
        key = warp.cta.cluster.first, warp.number
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._writers)
            self._writers.append(Writer(key[0], warp.cta.rank, warp.number, warp.who()))
        return number

    def _check_unused(self, warp: Warp, block: Block, notes: _Notes, granules: Array) -> None:
        """No copy may still read a map that changes. Known-good kernels do so after the issue in program order."""
        for granule in notes.uses.keys() & set(granules.tolist()):
            left = notes.uses[granule] = [use for use in notes.uses[granule] if not use.over_for(warp)]
            for use in left:
                how = f"{warp.who()} changes a tensor map that {use.what} may still read"
                if use.issue_known_to(warp):
                    self.gpu.warn(f"{how}; wait for the copy, or commit it to a bulk group and wait for that, first")
                else:
                    self.gpu.race(f"{block.name}+{granule << GRANULE_BITS}: {how}; no barrier orders the two")

    # fences

    def release(self, warp: Warp, lanes: int, scope: str, address: int | None = None) -> None:
        """What the warp knows to be written is released, or only what it wrote to one address."""
        epoch = warp.epoch
        known = warp.release()[0].copy()
        found = Release(warp.cta.rank, warp.number, epoch, warp.lane_epoch, lanes, scope, known, address)
        self._releases.setdefault(warp.cta.cluster.first, []).append(found)

    def acquire(self, warp: Warp, lanes: int, scope: str, address: int) -> bool:
        """The acquire of one address by some lanes; whether the map there is what was written last."""
        if address >> WINDOW_BITS not in self.gpu.memory.blocks:
            return True  # a parameter
        stamps = self._stamps(address)
        problem = next((text for s in stamps if (text := self._unreleased(warp, lanes, scope, address, s))), "")
        acquires = warp.cta.acquires.setdefault(address, {})
        before = acquires.get(warp.number)
        if before is not None and not before.problem and before.stamps == stamps and before.epoch >= warp.lane_epoch:
            lanes |= before.lanes
        acquires[warp.number] = Acquire(stamps, warp.epoch, lanes, problem)
        warp.release()
        return not problem

    def _stamps(self, address: int) -> tuple[int, int]:
        block = self.gpu.memory.at(address)
        first = address - block.base >> GRANULE_BITS
        low, high = self._of(block).stamps[first : first + 2].tolist()
        return low, high

    def _unreleased(self, warp: Warp, lanes: int, scope: str, address: int, stamp: int) -> str:
        """Why these lanes cannot acquire a write; empty when they can."""
        if not stamp:
            return ""
        if stamp == BY_COPY:
            return "a bulk copy wrote it; copy a map with ordinary stores or tensormap.cp_fenceproxy"
        writer, lane, epoch = self._writers[stamp >> 40], (stamp >> 32 & 0xFF) - 1, stamp & 0xFFFFFFFF
        near = writer.cluster == warp.cta.cluster.first
        found = [r for r in self._releases.get(writer.cluster, ()) if r.covers(writer, epoch, lane, address)]
        if not found:
            by = "" if lane == EVERY_LANE else f" (lane {lane})"
            return f"no fence.proxy.tensormap::generic.release follows the write by {writer.name}{by}"
        if near:
            found = [r for r in found if r.known_to(warp, lanes)]
        if not found:
            return f"no barrier orders the release of what {writer.name} wrote before the acquire by {warp.who()}"
        wide = SCOPES if near and writer.rank == warp.cta.rank else SCOPES[1:] if near else SCOPES[2:]
        if scope not in wide or not any(r.scope in wide for r in found):
            return f"{writer.name} wrote it in another CTA; release and acquire need .{wide[0]} scope at least"
        return ""

    # uses

    def use(self, warp: Warp, lane: int, address: int, what: str) -> MapUse:
        """A copy is issued with the map at an address; it must have been acquired in its CTA since it was written."""
        block = self.gpu.memory.at(address)
        problem = self._unacquired(warp, lane, address)
        if problem:
            self.gpu.race(f"{block.name}+{address - block.base}: {what} uses the tensor map there, but {problem}")
        found = MapUse(what, warp.cta.cluster.first, warp.number, warp.epoch)
        uses, first = self._of(block).uses, address - block.base >> GRANULE_BITS
        for granule in (first, first + 1):
            uses[granule] = [*(u for u in uses.get(granule, ()) if not u.over_for(warp)), found]
        return found

    def _unacquired(self, warp: Warp, lane: int, address: int) -> str:
        stamps, acquires = self._stamps(address), warp.cta.acquires.get(address, {})
        fence = "fence.proxy.tensormap::generic.acquire"
        if not acquires:
            return f"no {fence} of this address comes before it in its CTA"
        current = {number: a for number, a in acquires.items() if a.stamps == stamps}
        if not current:
            return f"it has been written since the last {fence} of this address"
        good = {number: a for number, a in current.items() if not a.problem}
        if not good:
            return next(iter(current.values())).problem
        for number, a in good.items():
            if number != warp.number and warp.clock[0, number] >= a.epoch:
                return ""
            if number == warp.number and (a.epoch < warp.lane_epoch or a.lanes >> lane & 1):
                return ""
        number, last = next(iter(good.items()))
        who = f"lanes {lane_ranges(last.lanes)} of {warp.cta.actor(number)}"
        return f"only {who} acquired it, and no synchronisation orders that before lane {lane} of {warp.who()}"
