"""CTAs and clusters: shared memory, barriers and warps of one piece of a grid.
It knows launch geometry and names; instructions reach it, it calls none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .barriers import ClusterBarrier, MBarrier, NamedBarrier
from .errors import Fault
from .labels import Labels
from .memory import POISON, RANK_SHIFT, SHARED_START, Block
from .shadow import CLOCK_ROWS, Shadow
from .warp import Warp

if TYPE_CHECKING:
    from .gpu import Gpu
    from .map_order import Acquire
    from .program import Program

BARRIER_CLOCKS = 64  # clock components for the mbarriers of one CTA
Triple = tuple[int, int, int]


@dataclass(eq=False)
class AsyncOp:
    """One piece of asynchronous work. run() makes it happen; whoever needs it forces it first."""

    kind: str
    what: str
    action: Callable[[], None]
    landed: bool = False

    def run(self) -> None:
        if not self.landed:
            self.landed = True
            self.action()


class Cta:
    """One thread block."""

    def __init__(self, cluster: Cluster, rank: int, position: Triple) -> None:
        self.cluster = cluster
        self.gpu: Gpu = cluster.gpu
        self.program: Program = cluster.program
        self.labels: Labels = cluster.labels
        self.rank = rank
        self.position = position
        self.warp_count = cluster.warps_per_cta
        self.shared_base = rank << RANK_SHIFT
        self.dynamic_start = self.program.dynamic_start
        nbytes = -(-(self.dynamic_start + cluster.shared_bytes) // 16) * 16
        self.smem = Block(f"shared memory of CTA {position}", self.shared_base, np.full(nbytes, POISON, np.uint8))
        self.smem.start = SHARED_START
        self.shadow = Shadow(nbytes, cluster.first_barrier_component, self)
        self.mbarriers: dict[int, MBarrier] = {}
        self.barriers_made = 0
        self.named: dict[int, NamedBarrier] = {}
        self.maps: dict[int, bytes] = {}  # descriptor cache, dropped only by fence.proxy.tensormap
        self.acquires: dict[int, dict[int, Acquire]] = {}  # by address of a map, then by warp
        self.wgmma_ops: dict[tuple[int, int], Any] = {}
        self.flag_clock = np.zeros((CLOCK_ROWS, cluster.clock_size), np.int32)  # by volatile and atomic accesses
        self.tensor: Any = None  # tensor memory and pipe, once a tcgen05 instruction ran
        self.exited = False
        threads = cluster.threads
        self.warps = [Warp(self, i, min(32, threads - 32 * i)) for i in range(self.warp_count)]

    def named_barrier(self, number: int) -> NamedBarrier:
        if not 0 <= number < 16:
            raise Fault(f"named barrier {number} does not exist; a CTA has 0 to 15")
        if number not in self.named:
            self.named[number] = NamedBarrier(number, self)
        return self.named[number]

    def init_mbarrier(self, offset: int, count: int, warp: Warp) -> MBarrier:
        """mbarrier.init at a shared offset."""
        old = self.mbarriers.get(offset)
        if old is not None and (old.tx or old.pending != old.count or old.sleepers):
            raise Fault(f"{old.name}: mbarrier.init while it is in use ({old.status()})")
        component = old.component if old is not None else self._new_component()
        self.mbarriers[offset] = MBarrier(self, offset, count, warp, component)
        return self.mbarriers[offset]

    def _new_component(self) -> int:
        if self.barriers_made >= BARRIER_CLOCKS:
            raise Fault(
                f"CTA {self.position} initialises more than {BARRIER_CLOCKS} mbarriers; the simulator tracks no more"
            )
        self.barriers_made += 1
        result: int = self.cluster.first_barrier_component + self.rank * BARRIER_CLOCKS + self.barriers_made - 1
        return result

    def mbarrier(self, offset: int) -> MBarrier:
        """The initialised barrier at a shared offset of this CTA."""
        found = self.mbarriers.get(offset)
        if found is None:
            raise Fault(f"no mbarrier is initialised at {self.shared(offset)}; mbarrier.init must come first")
        return found

    def shared(self, offset: int) -> str:
        """A shared offset in the author's words."""
        relative = offset - self.dynamic_start
        label = self.labels.barrier(relative) or self.labels.region(relative)
        place = f"shared memory +{relative}" if relative >= 0 else f"static shared memory +{offset - SHARED_START}"
        suffix = f" of CTA {self.position}" if self.cluster.size > 1 else ""
        return f"{label} ({place}){suffix}" if label else place + suffix

    def actor(self, number: int) -> str:
        """A clock component in the author's words."""
        return self.cluster.actor(number)

    def finish(self) -> None:
        """All warps are done: nothing may be left over."""
        if self.tensor is not None:
            self.tensor.finish_commits()
        self.exited = True
        for barrier in self.mbarriers.values():
            if barrier.tx:
                raise Fault(f"CTA {self.position} exits, but {barrier.name} is left with {barrier.status()}")
            known = max(int(w.clock[0, barrier.component]) for cta in self.cluster.ctas for w in cta.warps)
            if barrier.filled > known:
                raise Fault(
                    f"CTA {self.position} exits, but nobody waited for the copies that complete on {barrier.name} "
                    f"in phase {barrier.filled - 1}; they may land after the exit"
                )
        if self.tensor is not None:
            self.tensor.at_exit()


class Cluster:
    """CTAs that share barriers and see each other's shared memory."""

    def __init__(self, gpu: Gpu, program: Program, first: Triple, launch: Any) -> None:
        self.gpu = gpu
        self.program = program
        self.labels: Labels = launch.labels
        self.launch = launch
        self.shape: Triple = launch.cluster
        self.size = self.shape[0] * self.shape[1] * self.shape[2]
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.warps_per_cta = -(-self.threads // 32)
        self.shared_bytes = launch.shared_bytes
        self._lay_out_clock()
        self.first = first
        self.refusals: list[tuple[int, int]] = []  # barrier component and phase of try_cancel answers "nothing left"
        self.ctas: list[Cta] = []
        for rank in range(self.size):
            x, y, z = self.place_of(rank)
            self.ctas.append(Cta(self, rank, (first[0] + x, first[1] + y, first[2] + z)))
        self.barrier = ClusterBarrier(self)

    def _lay_out_clock(self) -> None:
        """Components: warps, tensor pipes of the CTAs, mbarriers, what warps did in tensor memory, the grid's warps."""
        warps: int = self.warps_per_cta * self.size
        self.warp_total = warps
        tensor = any(instr.base == "tcgen05" for instr in self.program.entry.instrs)
        self.first_barrier_component: int = warps + (self.size if tensor else 0)
        self.first_tensor_component: int = self.first_barrier_component + self.size * BARRIER_CLOCKS
        self.first_place: int = self.first_tensor_component + (warps if tensor else 0)
        order = self.gpu.global_order
        self.entered = 0 if order is None else order.enter(self)
        self.clock_size = self.first_place + (0 if order is None else order.warps)

    def pipe_component(self, rank: int) -> int:
        """The tensor pipe of a CTA."""
        return self.warp_total + rank

    def tensor_component(self, number: int) -> int:
        """What a warp did in tensor memory, as far as its tcgen05.fence::before_thread_sync released it."""
        return self.first_tensor_component + number

    def place_of(self, rank: int) -> Triple:
        x, y, _ = self.shape
        return rank % x, rank // x % y, rank // (x * y)

    def cta(self, rank: int) -> Cta:
        """The CTA of a rank; touching one that has exited is a fault."""
        if rank >= self.size:
            raise Fault(f"shared address names CTA rank {rank}, but the cluster has {self.size} CTAs")
        found = self.ctas[rank]
        if found.exited:
            raise Fault(f"access to shared memory of CTA {found.position} (rank {rank}), which has already exited")
        return found

    def actor(self, number: int) -> str:
        warps = self.warp_total
        if number < warps:
            result: str = self.ctas[number // self.warps_per_cta].warps[number % self.warps_per_cta].who()
            return result
        if number < self.first_barrier_component:
            return f"the tensor pipe of CTA {self.ctas[number - warps].position}"
        if number >= self.first_tensor_component:
            return self.actor(number - self.first_tensor_component)
        rank, index = divmod(number - self.first_barrier_component, BARRIER_CLOCKS)
        for barrier in self.ctas[rank].mbarriers.values():
            if barrier.component == number:
                return f"an asynchronous copy that completes on {barrier.name}"
        return f"an asynchronous copy ({index})"

    @property
    def done(self) -> bool:
        return all(warp.done for cta in self.ctas for warp in cta.warps)
