"""State of the three kinds of barrier: mbarriers, named CTA barriers and the cluster barrier.
They count, wake and pass clocks on; which instruction touches them is the families' business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import Fault
from .types import Array, Instr

if TYPE_CHECKING:
    from .groups import Group
    from .machine import Cluster, Cta
    from .warp import Warp

MAX_COUNT = (1 << 20) - 1


class MBarrier:
    """A shared-memory barrier: pending arrivals and bytes of the current phase."""

    def __init__(self, cta: Cta, offset: int, count: int, warp: Warp, component: int) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise Fault(f"mbarrier.init: count is {count}; it must be 1 to {MAX_COUNT}")
        self.cta = cta
        self.offset = offset
        self.count = self.pending = count
        self.phase = 0
        self.tx = 0
        self.filled = 0  # the latest phase that asynchronous copies completed bytes in
        self.component = component
        self.initialiser = warp.number
        self.init_epoch = warp.epoch
        self.fenced = False
        self.arrived = np.zeros_like(warp.clock)
        self.completed = np.zeros_like(warp.clock)
        self.sleepers: list[tuple[Warp, Group]] = []

    @property
    def name(self) -> str:
        return self.cta.shared(self.offset)

    def status(self) -> str:
        """`phase 1, 2 of 4 arrivals pending, 16384 bytes outstanding`."""
        return f"phase {self.phase}, {self.pending} of {self.count} arrivals pending, {self.tx} bytes outstanding"

    def check_use(self, warp: Warp, remote: bool) -> None:
        """The initialisation must be ordered before any other warp's use, and fenced before a remote CTA's."""
        if warp.number != self.initialiser and warp.clock[0, self.initialiser] < self.init_epoch:
            raise Fault(
                f"{self.name}: used by a warp that is not synchronised with its mbarrier.init (by {self._who()})"
            )
        if remote:
            self.check_fenced("a remote CTA")

    def check_fenced(self, user: str) -> None:
        if not self.fenced:
            raise Fault(
                f"{self.name}: used by {user}, but no fence (fence.mbarrier_init, fence.proxy.async or a releasing "
                f"cluster arrive) follows its mbarrier.init by {self._who()}"
            )

    def _who(self) -> str:
        return self.cta.actor(self.initialiser)

    def expect(self, nbytes: int) -> None:
        self.tx += nbytes
        if abs(self.tx) > MAX_COUNT:
            raise Fault(f"{self.name}: transaction count {self.tx} is out of range; at most {MAX_COUNT} bytes a phase")

    def arrive(self, clock: Array, count: int = 1) -> None:
        if count > self.pending:
            raise Fault(
                f"{self.name}: {count} arrivals, but only {self.pending} of {self.count} are pending "
                f"in phase {self.phase}"
            )
        np.maximum(self.arrived, clock, out=self.arrived)
        self.pending -= count
        self._advance()

    def drop(self, count: int) -> None:
        """arrive_drop: later phases expect fewer arrivals."""
        self.count -= count
        if self.pending > self.count:
            self.pending = self.count

    def complete(self, nbytes: int, clock: Array) -> None:
        """complete_tx of an asynchronous copy issued with this clock."""
        np.maximum(self.arrived, clock, out=self.arrived)
        self.filled = self.phase + 1
        self.tx -= nbytes
        self._advance()

    def _advance(self) -> None:
        if self.pending or self.tx:
            return
        self.phase += 1
        self.pending = self.count
        np.maximum(self.completed, self.arrived, out=self.completed)
        self.completed[:, self.component] = self.phase
        self.cta.gpu.progress += 1
        for _, group in self.sleepers:
            group.wait = None
        self.sleepers.clear()

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has completed."""
        return (self.phase & 1) != parity


class NamedBarrier:
    """barrier.sync / bar.arrive number n of a CTA; counts threads, a whole warp at a time."""

    def __init__(self, number: int, cta: Cta) -> None:
        self.number = number
        self.cta = cta
        self.arrived = 0
        self.expected: int | None = None
        self.all_threads = False
        self.waiting: list[tuple[Warp, Group, Instr]] = []
        self.clock: Array | None = None
        self.values: list[bool] = []
        self.result = (0, False, False)

    @property
    def name(self) -> str:
        label = self.cta.labels.named_barriers.get(self.number)
        return f"named barrier {self.number}" + (f" ({label})" if label else "")

    def status(self) -> str:
        return f"{self.arrived} of {self._needed()} threads arrived"

    def _needed(self) -> int:
        if not self.all_threads:
            return self.expected or 0
        return 32 * sum(not warp.done for warp in self.cta.warps)

    def arrive(self, warp: Warp, threads: int | None) -> None:
        """One warp arrives; threads is the count operand, None for all of the CTA."""
        if threads is not None and (threads % 32 or threads <= 0):
            raise Fault(f"{self.name}: thread count {threads} must be a positive multiple of 32")
        everyone = threads is None
        if self.arrived and (everyone != self.all_threads or threads != self.expected):
            raise Fault(
                f"{self.name}: {threads or 'all'} threads expected here, {self.expected or 'all'} by earlier arrivals"
            )
        self.expected, self.all_threads = threads, everyone
        self.arrived += 32
        warp.settle_loads()
        clock = warp.release()
        self.clock = clock if self.clock is None else np.maximum(self.clock, clock)
        if self.arrived > self._needed():
            raise Fault(f"{self.name}: {self.arrived} threads arrived, only {self._needed()} expected")

    def complete(self) -> bool:
        return self.arrived > 0 and self.arrived >= self._needed()

    def release(self) -> None:
        """Wake every waiter and start over."""
        assert self.clock is not None
        self._warn_of_places()
        for warp, group, _ in self.waiting:
            warp.acquire(self.clock)
            group.wait = None
        self.result = (sum(self.values), all(self.values), any(self.values))
        self.waiting, self.values, self.clock, self.arrived = [], [], None, 0
        self.cta.gpu.progress += 1

    def _warn_of_places(self) -> None:
        """PTX lets warps wait at one barrier in code of their own, but synccheck calls those threads divergent."""
        instructions = {instr.pc: instr for _, _, instr in self.waiting}
        if len(instructions) > 1:
            places = " and ".join(self.cta.program.place(each) for each in list(instructions.values())[:2])
            self.cta.gpu.warn(f"{self.name}: warps wait in different places, {places}; let one side arrive only")

    def recheck(self) -> None:
        """A warp exited: an all-threads barrier may now be complete."""
        if self.all_threads and self.waiting and self.complete():
            self.release()


class ClusterBarrier:
    """barrier.cluster: every live warp of every CTA of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.phase = 0
        self.arrived: set[int] = set()
        self.phase_of: dict[int, int] = {}
        self.waiting: list[tuple[Warp, Group]] = []
        self.clock: Array | None = None
        self.done_clock: Array | None = None

    def status(self) -> str:
        return f"{len(self.arrived)} of {len(self._live())} warps of the cluster arrived"

    def _live(self) -> list[int]:
        return [warp.number for cta in self.cluster.ctas for warp in cta.warps if not warp.done]

    def arrive(self, warp: Warp, clock: Array | None) -> None:
        if warp.number in self.phase_of:
            raise Fault("barrier.cluster.arrive: this warp arrived already and has not waited")
        self.arrived.add(warp.number)
        self.phase_of[warp.number] = self.phase
        if clock is not None:
            self.clock = clock.copy() if self.clock is None else np.maximum(self.clock, clock)
        self.recheck()

    def recheck(self) -> None:
        live = self._live()
        if not live or not self.arrived.issuperset(live):
            return
        self.phase += 1
        self.arrived.clear()
        self.done_clock, self.clock = self.clock, None
        for warp, group in self.waiting:
            self.join(warp)
            group.wait = None
        self.waiting.clear()
        self.cluster.gpu.progress += 1

    def passed(self, warp: Warp) -> bool:
        if warp.number not in self.phase_of:
            raise Fault("barrier.cluster.wait: this warp has not arrived")
        return self.phase > self.phase_of[warp.number]

    def join(self, warp: Warp) -> None:
        """What a warp learns by passing."""
        del self.phase_of[warp.number]
        if self.done_clock is not None:
            warp.acquire(self.done_clock)
        else:
            warp.lane_sync()
