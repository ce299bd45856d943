"""The asynchronous tensor pipe: order of tcgen05.mma and tcgen05.cp, commits, and what each warp has in flight.
It keeps serials, clocks and the schedule's freedom; what an operation computes is passed to it as a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import Fault
from .machine import AsyncOp, Cta
from .tmem import TensorMemory, User
from .types import Array, Instr

if TYPE_CHECKING:
    from .warp import Warp

Thread = tuple[int, int]  # warp number in the cluster, lane


@dataclass(eq=False)
class Load:
    """A tcgen05.ld in flight."""

    serial: int
    work: AsyncOp
    results: list[Array]
    done: Callable[[], None]


@dataclass
class TensorWarp:
    """What one warp knows and has in flight in tensor memory."""

    epoch: int
    fenced: Array
    loads: list[Load] = field(default_factory=list)
    stores: list[tuple[AsyncOp, Callable[[], None]]] = field(default_factory=list)


@dataclass(eq=False)
class Pipe:
    """Operations issued in one CTA, or by the leader of a pair; they happen in order of issue."""

    component: int
    issued: int = 0
    queue: list[AsyncOp] = field(default_factory=list)
    last_of: dict[Thread, tuple[int, AsyncOp]] = field(default_factory=dict)
    commits: list[tuple[AsyncOp, AsyncOp | None]] = field(default_factory=list)  # and the last operation of each
    collector: Any = None  # the A operand that .collector::a::fill left in the buffer

    def run_until(self, op: AsyncOp) -> None:
        """Everything issued before op, in order."""
        while self.queue and self.queue[0] is not op:
            self.queue[0].run()


class Tensor:
    """Tensor memory, pipe and allocation state of one CTA."""

    def __init__(self, cta: Cta) -> None:
        cluster = cta.cluster
        self.cta = cta
        first = cta.rank * cta.warp_count
        warps = [cluster.tensor_component(first + i) for i in range(cta.warp_count)]
        self.memory = TensorMemory(cta, warps + [cluster.pipe_component(rank) for rank in range(cluster.size)])
        self.pipe = Pipe(cluster.pipe_component(cta.rank))
        self.warps: dict[int, TensorWarp] = {}
        self.group = 0  # the cta_group of all tcgen05 instructions of a kernel; 0 until one ran
        self.permit = True
        self.waiting: list[Any] = []  # groups of lanes that wait for columns or for the peer
        self.asked: tuple[int, Warp] | None = None  # what this CTA asks for in an allocation of the pair
        self.granted: int | None = None

    def of(self, warp: Warp) -> TensorWarp:
        found = self.warps.get(warp.index)
        if found is None:
            found = self.warps[warp.index] = TensorWarp(1, warp.clock[0] * 0)
        return found

    def user(self, warp: Warp, what: str, lenient: bool = False) -> User:
        """A warp's own ld or st."""
        component = self.cta.cluster.tensor_component(warp.number)
        return User(warp.index, component, warp.clock[0], self.of(warp).fenced, what, lenient)

    def pipe_user(self, warp: Warp, leader: Tensor, what: str) -> User:
        """An operation that warp issues to the leader's pipe, as this CTA's tensor memory sees it."""
        row = self.cta.warp_count + leader.cta.rank
        return User(row, leader.pipe.component, warp.clock[0], leader.of(warp).fenced, what)

    def wake(self) -> None:
        for group in self.waiting:
            group.wait = None
        self.waiting.clear()
        self.cta.gpu.progress += 1

    def finish_commits(self) -> None:
        """Commits that nobody waits for arrive before the CTA is gone if all they commit is complete."""
        for op, last in self.pipe.commits:
            if not op.landed and (last is None or last.landed):
                self.cta.gpu.warn(f"CTA {self.cta.position} exits while {op.what} may arrive; nobody waits for it")
                op.run()

    def at_exit(self) -> None:
        """All warps are done: the pipe runs dry, then nothing may be left."""
        for op in list(self.pipe.queue):
            op.run()
        for index, state in self.warps.items():
            if state.loads or state.stores:
                what = "tcgen05.ld" if state.loads else "tcgen05.st"
                raise Fault(f"{self.cta.warps[index].where()}: exits with a {what} that it never waited for")
        self.memory.at_exit()


def tensor_of(cta: Cta) -> Tensor:
    if cta.tensor is None:
        cta.tensor = Tensor(cta)
    found: Tensor = cta.tensor
    return found


def check_group(warp: Warp, group: int, opcode: str) -> Tensor:
    """The CTA's tensor state; all tcgen05 instructions of a kernel name the same cta_group, and pairs need a peer."""
    tensor = tensor_of(warp.cta)
    if tensor.group not in (0, group):
        raise Fault(f"{opcode}: cta_group::{group} in a kernel that used cta_group::{tensor.group} before")
    if group == 2 and warp.cta.cluster.size % 2:
        raise Fault(f"{opcode}: cta_group::2 in a cluster of {warp.cta.cluster.size} CTAs; pairs need an even size")
    tensor.group = group
    return tensor


def members(warp: Warp, group: int, opcode: str) -> list[Cta]:
    """The CTAs an mma or cp works on: the issuing one, or its pair, of which only the even rank may issue."""
    check_group(warp, group, opcode)
    if group == 1:
        return [warp.cta]
    if warp.cta.rank % 2:
        raise Fault(
            f"{opcode}: cta_group::2 issued in CTA rank {warp.cta.rank}; only the leader, the even rank, may issue"
        )
    cluster = warp.cta.cluster
    return [cluster.cta(warp.cta.rank), cluster.cta(warp.cta.rank + 1)]


def describe(warp: Warp, instr: Instr) -> str:
    name = ".".join(instr.parts[:2])
    return f"{name} of {warp.who()} (PTX line {instr.line})"


def issue(warp: Warp, lane: int, what: str, action: Callable[[], None]) -> None:
    """Queue an operation behind all earlier ones of the pipe; Pipe.issued is its serial from now on."""
    pipe = tensor_of(warp.cta).pipe

    def run() -> None:
        pipe.run_until(op)
        action()
        pipe.queue.pop(0)

    op = AsyncOp("tcgen05", what, run)
    pipe.last_of[warp.number, lane] = (pipe.issued, op)
    pipe.queue.append(op)
    warp.cta.gpu.submit(op)


def next_serial_of(warp: Warp) -> int:
    """The serial of the operation about to be issued."""
    pipe = tensor_of(warp.cta).pipe
    pipe.issued += 1
    return pipe.issued


def note_shared_read(cta: Cta, warp: Warp, lane: int, serial: int, words: Array, what: str) -> None:
    """The pipe reads these words of a CTA's shared memory until a commit has told of the serial."""
    component = tensor_of(warp.cta).pipe.component
    source = cta.shadow.single_source(words)
    if source is not None and not source[2] and warp.clock[0, source[0]] >= source[1]:
        cta.shadow.read[component][words] = serial  # one asynchronous copy brought it all, and it was waited for
        return
    if cta is warp.cta:
        cta.shadow.check_issuer(warp, lane, words, what, warp.elect_epoch)  # type: ignore[arg-type]
    cta.shadow.async_read(warp.clock, component, words, what)
    cta.shadow.read[component][words] = serial


def commit(warp: Warp, lane: int, what: str, arrive: Callable[[Array], None]) -> None:
    """Call arrive, with the clock that waiters learn, once all earlier operations of this thread are complete."""
    pipe = tensor_of(warp.cta).pipe
    serial, last = pipe.last_of.get((warp.number, lane), (0, None))
    clock = warp.clock.copy()
    clock[0, pipe.component] = max(int(clock[0, pipe.component]), serial)

    def run() -> None:
        if last is not None:
            last.run()
        arrive(clock)

    op = AsyncOp("tcgen05", what, run)
    pipe.commits = [pending for pending in pipe.commits if not pending[0].landed] + [(op, last)]
    warp.cta.gpu.submit(op)
