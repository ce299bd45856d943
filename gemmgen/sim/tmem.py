"""Tensor memory of one CTA: 128 lanes of 512 columns of 32 bits, its allocations, and who used each column last.
Cells of order are 16 lanes by one column; it knows clocks and names, no instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import Fault
from .shadow import NEVER
from .types import Array

if TYPE_CHECKING:
    from .machine import Cta
    from .warp import Warp

IN_FLIGHT = int(NEVER)  # an access that nobody has waited for yet
LANES, COLUMNS = 128, 512
BAND = 16  # lanes that are always used together
BANDS = LANES // BAND
POISON_WORD = np.uint32(0xFFFFFFFF)
COLUMN_BITS = 16
MINIMUM = 32  # columns of the smallest allocation


@dataclass(frozen=True)
class Region:
    """Columns [start, stop) of some bands of 16 lanes: from the first one on, every so many."""

    start: int
    stop: int
    first_band: int = 0
    end_band: int = BANDS
    every: int = 1

    @property
    def cells(self) -> tuple[slice, slice]:
        return slice(self.first_band, self.end_band, self.every), slice(self.start, self.stop)

    def __str__(self) -> str:
        columns = f"TMEM columns {self.start} to {self.stop - 1}"
        if (self.first_band, self.end_band, self.every) == (0, BANDS, 1):
            return columns
        if self.every > 1:
            return f"{columns}, lanes {BAND * self.first_band} to {BAND * self.first_band + BAND - 1} of every quarter"
        return f"{columns}, lanes {BAND * self.first_band} to {BAND * self.end_band - 1}"


@dataclass(frozen=True)
class Allocation:
    """Columns, and who allocated them as clock components with epochs: one warp, or one of each CTA of a pair."""

    start: int
    columns: int
    makers: tuple[tuple[int, int], ...]

    def known_to(self, clock: Array) -> bool:
        """Whether a user of this clock comes after the allocation, which warps of a pair make together."""
        return any(clock[actor] >= epoch for actor, epoch in self.makers)


@dataclass
class User:
    """Who touches tensor memory, as the order sees it: its clock, what tcgen05 fences let it rely on, its name."""

    row: int  # among the readers of this tensor memory
    component: int  # of the clock
    clock: Array  # one row: happens-before
    fenced: Array  # what was known at the last tcgen05.fence::after_thread_sync
    what: str
    lenient: bool = False  # a missing fence::after_thread_sync is a warning only


class TensorMemory:
    """Data, allocations and order of one CTA's tensor memory. Readers are the CTA's warps, then the tensor pipes."""

    def __init__(self, cta: Cta, components: list[int]) -> None:
        self.cta = cta
        self.data = np.full((LANES, COLUMNS), POISON_WORD, np.uint32)
        self.allocations: list[Allocation] = []
        self.components = np.array(components)
        shape = BANDS, COLUMNS
        self.writer = np.zeros(shape, np.int32)
        self.written = np.zeros(shape, np.int32)
        self.read = np.zeros((len(components), *shape), np.int32)
        self.changes = 0  # accesses by others than the pipe that came last
        self.last_pipe = -1
        self.settled: dict[tuple[Region, str], int] = {}
        self.touched = np.zeros((len(components), COLUMNS), np.int32)  # in the user's plain clock, for dealloc
        self.freed_by_peer: list[Region] = []

    # allocation

    def allocate(self, columns: int, *warps: Warp) -> int | None:
        """First column of a free run for these warps, of which a pair has two, or None when there is none."""
        taken = np.zeros(COLUMNS, np.bool_)
        for old in self.allocations:
            taken[old.start : old.start + old.columns] = True
        for start in range(0, COLUMNS - columns + 1, columns):
            if not taken[start : start + columns].any():
                self._take(Allocation(start, columns, tuple((warp.number, warp.epoch) for warp in warps)))
                return start
        return None

    def _take(self, allocation: Allocation) -> None:
        self.allocations.append(allocation)
        self.freed_by_peer.clear()
        self.changes += 1
        columns = slice(allocation.start, allocation.start + allocation.columns)
        self.data[:, columns] = POISON_WORD
        self.writer[:, columns] = self.written[:, columns] = 0
        self.read[:, :, columns] = 0
        self.touched[:, columns] = 0

    def release(self, start: int, columns: int, warp: Warp) -> None:
        """tcgen05.dealloc of exactly what one tcgen05.alloc gave; nobody may still use it."""
        found = next((a for a in self.allocations if (a.start, a.columns) == (start, columns)), None)
        if found is None:
            raise Fault(
                f"tcgen05.dealloc of {columns} TMEM columns at {start}; allocated are "
                + (", ".join(f"{a.columns} at {a.start}" for a in self.allocations) or "none")
            )
        self.check_unused(Region(start, start + columns), warp)
        self.allocations.remove(found)

    def check_unused(self, region: Region, warp: Warp) -> None:
        last = self.touched[:, region.start : region.stop].max(axis=1)
        place = self.place(region)
        for row, epoch in enumerate(last.tolist()):
            component = self._plain_component(row)
            if epoch == IN_FLIGHT:
                raise Fault(
                    f"tcgen05.dealloc of {place} while a tcgen05.ld or .st of {self.cta.cluster.actor(component)} "
                    "is in flight; it was never waited for"
                )
            if epoch and component != warp.number and epoch > warp.clock[0, component]:
                raise Fault(
                    f"tcgen05.dealloc of {place} while {self.cta.cluster.actor(component)} may still use it; "
                    "no barrier orders that use before"
                )

    def _plain_component(self, row: int) -> int:
        warps = self.cta.warp_count
        return self.cta.rank * warps + row if row < warps else int(self.components[row])

    def check(self, region: Region, clock: Array, what: str) -> None:
        """The region must lie in allocated columns, and the user must know of the allocation."""
        if region.stop > COLUMNS:
            raise Fault(f"{what}: {region}; tensor memory has {COLUMNS} columns")
        at = region.start
        while at < region.stop:
            found = next((a for a in self.allocations if a.start <= at < a.start + a.columns), None)
            if found is None:
                raise Fault(
                    f"{what} uses {self.place(region)} of CTA {self.cta.position}, but column {at} is not allocated"
                )
            if not found.known_to(clock):
                raise Fault(
                    f"{what} uses {self.place(region)}, but no barrier orders their tcgen05.alloc "
                    f"by {self.cta.actor(found.makers[0][0])} before"
                )
            at = found.start + found.columns

    def place(self, region: Region) -> str:
        """A region in the author's words: `TMEM columns 64 to 127 (acc[1])`."""
        names = dict.fromkeys(self.cta.labels.column(column) for column in range(region.start, region.stop))
        known = ", ".join(name for name in names if name)
        return f"{region} ({known})" if known else str(region)

    # order

    def note_read(self, region: Region, user: User, epoch: int) -> None:
        """A read that others may overwrite once their clock holds epoch (IN_FLIGHT: still in flight)."""
        if not self._settled(region, user, "read"):
            self._check_written(region, user, "reads")
        self.read[user.row][region.cells] = epoch

    def note_write(self, region: Region, user: User, epoch: int) -> None:
        if not self._settled(region, user, "write"):
            self._check_written(region, user, "overwrites")
            self._check_read(region, user)
        self.writer[region.cells] = user.component
        self.written[region.cells] = epoch

    def _settled(self, region: Region, user: User, use: str) -> bool:
        """Whether this pipe did the same before, and nobody else touched anything since: then it may do it again."""
        if user.row < self.cta.warp_count:
            self.changes += 1
            return False
        if user.component != self.last_pipe:
            self.changes += 1
            self.last_pipe = user.component
        key = region, use
        if self.settled.get(key) == self.changes:
            return True
        self.settled[key] = self.changes
        return False

    def touch(self, region: Region, row: int, epoch: int) -> None:
        """A use in the plain clock: an epoch of the warp, or a serial of the pipe."""
        if any(freed.start < region.stop and region.start < freed.stop for freed in self.freed_by_peer):
            raise Fault(
                f"{self.place(region)} of CTA {self.cta.position} are used after the other CTA of the pair freed them; "
                "no barrier of the cluster stands between"
            )
        self.touched[row, region.start : region.stop] = epoch

    def _check_written(self, region: Region, user: User, verb: str) -> None:
        writer, written = self.writer[region.cells], self.written[region.cells]
        own = (writer == user.component) & (written != IN_FLIGHT)
        late = (written > user.fenced[writer]) & ~own
        if late.any():
            self._late(region, user, verb, writer[late], written[late], "wrote")

    def _check_read(self, region: Region, user: User) -> None:
        read = self.read[(slice(None), *region.cells)]
        late = read > user.fenced[self.components][:, None, None]
        late[user.row] = read[user.row] == IN_FLIGHT
        if late.any():
            row = int(np.nonzero(late)[0][0])
            epochs = read[row][late[row]]
            self._late(region, user, "overwrites", np.full(epochs.size, self.components[row]), epochs, "read")

    def _late(self, region: Region, user: User, verb: str, actors: Array, epochs: Array, did: str) -> None:
        """An access that is not ordered before: a race, or a fence that is missing on one side."""
        actor, epoch = int(actors[0]), int(epochs.max())
        who = self.cta.cluster.actor(actor)
        if (epochs <= user.clock[actors]).all():
            text = (
                f"{user.what} {verb} {self.place(region)}, which {who} {did} before a barrier; "
                "tcgen05.fence::after_thread_sync is missing after the wait"
            )
            if user.lenient:
                self.cta.gpu.warn(text)
                return
            self.cta.gpu.race(text)
            return
        flight = " (still in flight; tcgen05.wait is missing)" if epoch == IN_FLIGHT else ""
        self.cta.gpu.race(
            f"{user.what} {verb} {self.place(region)}, which {who} {did}{flight}; nothing orders that before: "
            "a tcgen05.commit and its wait for the tensor pipe, tcgen05.wait and tcgen05.fence::before_thread_sync "
            "before the barrier for a warp"
        )

    def at_exit(self) -> None:
        if self.allocations:
            left = ", ".join(f"{a.columns} at column {a.start}" for a in self.allocations)
            raise Fault(f"CTA {self.cta.position} exits with TMEM still allocated ({left}); tcgen05.dealloc is missing")


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of a tensor-memory address."""
    return address >> COLUMN_BITS, address & (1 << COLUMN_BITS) - 1
