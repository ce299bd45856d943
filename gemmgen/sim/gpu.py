"""The simulated GPU: global memory, launches and the loop that interleaves warps with asynchronous work.
It knows scheduling and reports; what warps execute comes from their program."""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from . import families  # noqa: F401  (registers the instruction families)
from .errors import Deadlock, Fault, Race, SimulationError, as_simulation_error
from .global_order import MOST_WARPS, GlobalOrder
from .in_use import InUse, Range
from .labels import Labels
from .machine import AsyncOp, Cluster, Triple
from .map_order import MapOrder
from .memory import POISON, GlobalMemory
from .module import Module
from .program import Program
from .schedule import Schedule
from .types import LANES
from .warp import Warp

PATIENCE = 20_000  # instructions without an effect after which schedules become fair
SUSPECT = 60_000  # instructions without an effect after which repeated register states are looked for


@dataclass
class Report:
    """What a launch did."""

    warp_instructions: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    fetched: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Boxes that L2 was asked for: where the tensor begins, and coordinates."""


@dataclass
class Launch:
    grid: Triple
    block: Triple
    cluster: Triple
    shared_bytes: int
    labels: Labels
    sms: int

    def sm_of(self, position: Triple) -> int:
        x, y, _ = self.grid
        return (position[0] + x * (position[1] + y * position[2])) % self.sms


class Gpu:
    """Memory and one schedule; launch() runs a grid to its end or raises what went wrong."""

    def __init__(
        self,
        schedule: Schedule | None = None,
        sms: int = 4,
        max_instructions: int = 500_000_000,
        discarded_rows: str = "fault",
        races: str = "fault",
    ) -> None:
        """discarded_rows="poison": rows of A that wgmma reads too early give NaN, no Race (for kernels that drop them).
        races="warn": data races end up in the report's warnings."""
        if discarded_rows not in ("fault", "poison"):
            raise ValueError(f"discarded_rows is {discarded_rows!r}; it must be 'fault' or 'poison'")
        if races not in ("fault", "warn"):
            raise ValueError(f"races is {races!r}; it must be 'fault' or 'warn'")
        self.races = races
        self.schedule = schedule or Schedule()
        self.sms = sms
        self.max_instructions = max_instructions
        self.discarded_rows = discarded_rows
        self.memory = GlobalMemory()
        self.map_order: MapOrder | None = None  # of a launch that copies tensors
        self.global_order: GlobalOrder | None = None  # of a launch with atomics on global memory
        self.in_use = InUse(self.memory)  # by kernels ahead of a launch
        self.pending: list[AsyncOp] = []
        self.unlaunched: deque[Triple] = deque()  # first CTAs of clusters that wait for room, or to be cancelled
        self.progress = 0
        self.report = Report()
        self._programs: dict[tuple[int, str], Program] = {}
        self._keep: list[Any] = []

    def map(self, array: npt.NDArray[Any], name: str, writable: bool | None = None) -> int:
        """Map a contiguous array in place; the kernel reads and writes the very bytes."""
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: the array is not contiguous; pass np.ascontiguousarray(...) or its base buffer")
        data = array.reshape(-1).view(np.uint8)
        return self.memory.map(data, name, array.flags.writeable if writable is None else writable)

    def alloc(self, nbytes: int, name: str) -> int:
        """Fresh memory, poisoned with 0xFF bytes."""
        return self.memory.map(np.full(nbytes, POISON, np.uint8), name)

    def launch(
        self,
        module: Module,
        entry: str,
        grid: Sequence[int],
        block: Sequence[int],
        params: Sequence[bytes],
        cluster: Sequence[int] = (1, 1, 1),
        shared_bytes: int = 0,
        labels: Labels | None = None,
        in_use: Sequence[Range] = (),
    ) -> Report:
        """Run a grid to completion. in_use: addresses and bytes of what kernels ahead of this one, which was launched
        early, may still read or write: a thread that touches it before its griddepcontrol.wait is a Fault."""
        began = time.perf_counter()
        launch = Launch(_triple(grid), _triple(block), _triple(cluster), shared_bytes, labels or Labels(), self.sms)
        program = self._program(module, entry)
        program.set_params(list(params))
        self.in_use = InUse(self.memory, in_use)
        _check_launch(launch, program)
        self.report = Report()
        self.schedule.reset()
        with np.errstate(all="ignore"), _rare_collection():
            self._run(program, launch)
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _program(self, module: Module, entry: str) -> Program:
        key = (id(module), entry)
        if key not in self._programs:
            self._keep.append(module)
            self._programs[key] = Program(module, module.entry(entry), self._module_variables(module))
        return self._programs[key]

    def _module_variables(self, module: Module) -> dict[str, int]:
        addresses = {}
        for variable in module.parsed.variables.values():
            if variable.space in ("global", "const"):
                data = np.zeros(max(variable.nbytes, len(variable.init), 16), np.uint8)
                data[: len(variable.init)] = np.frombuffer(variable.init, np.uint8)
                addresses[variable.name] = self.memory.map(data, variable.name)
        return addresses

    # scheduling

    def _run(self, program: Program, launch: Launch) -> None:
        self.pending = []
        self.map_order = MapOrder(self) if program.copies_tensors else None
        warps = prod(launch.grid) * -(-prod(launch.block) // LANES)
        counts = program.counts_globally and warps <= MOST_WARPS
        self.global_order = GlobalOrder(self, warps) if counts else None
        steps = (range(0, g, c) for g, c in zip(launch.grid[::-1], launch.cluster[::-1], strict=True))
        self.unlaunched = deque((x, y, z) for z, y, x in itertools.product(*steps))
        room = max(1, self.sms // (launch.cluster[0] * launch.cluster[1] * launch.cluster[2]))
        resident: list[Cluster] = []
        while True:
            while len(resident) < room and self.unlaunched:
                resident.append(Cluster(self, program, self.unlaunched.popleft(), launch))
            if not resident:
                break
            self._run_residents(resident)
            resident = [cluster for cluster in resident if not cluster.done]
        while self._land_one():
            pass

    def _run_residents(self, resident: list[Cluster]) -> None:
        """Run until a cluster finishes."""
        warps = [warp for cluster in resident for cta in cluster.ctas for warp in cta.warps if not warp.done]
        starved = self.schedule.starved(len(warps), resident[0].warps_per_cta)
        hungry = {id(warps[i]) for i in starved}
        turn = idle = 0
        seen: dict[int, int] = {}
        while True:
            ready = [w for w in warps if (g := w.groups)[0].wait is None or (len(g) > 1 and w.ready)]
            fed = [warp for warp in ready if id(warp) not in hungry] if hungry else ready
            stuck = idle > PATIENCE  # those that run only poll: let held work and starved warps have a turn
            if self.pending and (not fed or stuck or self.schedule.lands_now()) and self._land_one():
                idle = 0
                continue
            if not ready:
                raise Deadlock(self._deadlock_text(resident))
            choices = ready if stuck else fed or ready
            warp = choices[self.schedule.choose(len(choices), turn)]
            turn += 1
            before = self.progress, warp.effects
            executed = warp.run(self.schedule.budget())
            self.report.warp_instructions += executed
            idle = 0 if (self.progress, warp.effects) != before else idle + executed + 1
            self._check_limits()
            if idle < SUSPECT:
                seen.clear()
            elif self._only_polls(seen, warp, len(warps)):
                raise Deadlock(self._deadlock_text(resident))
            if warp.done:
                warps.remove(warp)
                if self._warp_exited(warp):
                    return

    def _only_polls(self, seen: dict[int, int], warp: Warp, warps: int) -> bool:
        """Whether every turn for a while ended in a state seen before: loops that poll memory nobody will write."""
        state = hash((id(warp), *warp.state()))
        seen[0] = seen.get(0, 0) + 1 if state in seen else 0
        seen[state] = 1
        return seen[0] > 64 + 8 * warps

    def _check_limits(self) -> None:
        if self.report.warp_instructions > self.max_instructions:
            raise Fault(
                f"more than {self.max_instructions} warp instructions; an endless loop, or raise max_instructions"
            )

    def _warp_exited(self, warp: Warp) -> bool:
        cta = warp.cta
        self.progress += 1
        warp.at_exit()
        for barrier in cta.named.values():
            barrier.recheck()
        cta.cluster.barrier.recheck()
        if all(other.done for other in cta.warps):
            self._cta_exited(warp)
        return cta.cluster.done

    def _cta_exited(self, warp: Warp) -> None:
        cta = warp.cta
        while any(op.kind == "bulk_store" and not op.landed for op in self.pending):
            self._land_one()
        cta.finish()

    def warn(self, text: str) -> None:
        """Note something that hardware tolerates; a given sentence once."""
        if text not in self.report.warnings:
            self.report.warnings.append(text)

    def race(self, text: str) -> None:
        """Two accesses without an order between them."""
        if self.races == "fault":
            raise Race(text)
        self.warn(f"race: {text}")

    def submit(self, op: AsyncOp) -> AsyncOp:
        """Queue asynchronous work; the schedule decides whether it lands at once."""
        if self.schedule.lands_at_issue(op.kind):
            op.run()
        else:
            self.pending.append(op)
        return op

    def _land_one(self) -> bool:
        self.pending = [op for op in self.pending if not op.landed]
        if not self.pending:
            return False
        pool = [op for op in self.pending if op.kind not in ("wgmma", "bulk_store")] or self.pending
        if self.schedule.mode in ("random", "starve"):
            op = self.schedule.rng.choice(self.pending if self.schedule.mode == "random" else pool)
        else:
            op = pool[0]
        try:
            op.run()
        except (SimulationError, ValueError, IndexError) as error:
            if getattr(error, "located", False):
                raise
            found = as_simulation_error(error)
            raise type(found)(f"{op.what}: {found}") from error
        return True

    def _deadlock_text(self, resident: list[Cluster]) -> str:
        lines = ["no warp can make progress and nothing asynchronous is pending:"]
        for cluster in resident:
            for cta in cluster.ctas:
                lines += [f"  {warp.where()}: {reason}" for warp in cta.warps for reason in warp.reasons()]
        return "\n".join(lines[:80])


@contextmanager
def _rare_collection() -> Iterator[None]:
    """A warp is thousands of objects that live as long as it: the collector's usual pace costs a fifth of a run."""
    pace = gc.get_threshold()
    if pace[0]:  # 0: somebody switched it off
        gc.set_threshold(max(pace[0], 20_000), *pace[1:])
    try:
        yield
    finally:
        gc.set_threshold(*pace)


def _triple(values: Sequence[int]) -> Triple:
    padded = [int(v) for v in values] + [1] * (3 - len(values))
    return padded[0], padded[1], padded[2]


def _most_shared(target: str) -> int:
    """Bytes that a CTA can have with the opt-in: 99 KB on workstation parts, 227 KB on those of data centers."""
    return 101376 if target.startswith(("sm_120", "sm_121")) else 232448


def _check_launch(launch: Launch, program: Program) -> None:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if not 0 < threads <= 1024:
        raise Fault(f"block {launch.block} has {threads} threads; a block has 1 to 1024")
    for grid, cluster in zip(launch.grid, launch.cluster, strict=True):
        if grid <= 0 or grid % cluster:
            raise Fault(f"grid {launch.grid} is not a positive multiple of the cluster {launch.cluster}")
    size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if size > 16:
        raise Fault(f"cluster {launch.cluster} has {size} CTAs; at most 8, or 16 with the non-portable attribute")
    total, target = program.dynamic_start - 1024 + launch.shared_bytes, program.module.parsed.target
    if total > (most := _most_shared(target)):
        raise Fault(f"{total} bytes of shared memory; a CTA of {target} has at most {most}")
    required = program.entry.directives.get("reqntid") or program.entry.directives.get("maxntid")
    if required and threads > int(np.prod(required)):
        raise Fault(
            f"block {launch.block} has {threads} threads, the entry was compiled for at most {int(np.prod(required))}"
        )
