"""The deletion campaign: every synchronising or asynchronous instruction that a kernel executes is deleted in turn.

What is deleted and how is here; which kernels and how many runs is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen import sim
from gemmgen.ir import Plan

from .kernels import Subject, Timing, WrongResult, subject
from .ptx_text import Statement, replace, statements
from .sm100_parts import constant

KINDS = (
    ("mbarrier wait", ("mbarrier.try_wait",)),
    ("mbarrier arrive", ("mbarrier.arrive.shared",)),
    ("expect_tx", ("mbarrier.arrive.expect_tx",)),
    ("mbarrier init", ("mbarrier.init",)),
    ("fence.mbarrier_init", ("fence.mbarrier_init",)),
    ("cluster barrier", ("barrier.cluster",)),
    ("bar.sync", ("bar.sync",)),
    ("bar.arrive", ("bar.arrive",)),
    ("bar.warp.sync", ("bar.warp.sync",)),
    ("wgmma", ("wgmma.mma_async",)),
    ("wgmma fence", ("wgmma.fence",)),
    ("wgmma commit", ("wgmma.commit_group",)),
    ("wgmma wait", ("wgmma.wait_group",)),
    ("tcgen05.mma", ("tcgen05.mma",)),
    ("tcgen05.cp", ("tcgen05.cp",)),
    ("tcgen05.commit", ("tcgen05.commit",)),
    ("tcgen05.ld", ("tcgen05.ld",)),
    ("tcgen05.wait::ld", ("tcgen05.wait::ld",)),
    ("tcgen05.fence::before", ("tcgen05.fence::before",)),
    ("tcgen05.fence::after", ("tcgen05.fence::after",)),
    ("tcgen05.alloc", ("tcgen05.alloc",)),
    ("tcgen05.relinquish", ("tcgen05.relinquish",)),
    ("tcgen05.dealloc", ("tcgen05.dealloc",)),
    ("ldmatrix", ("ldmatrix",)),
    ("mma.sync", ("mma.sync",)),
    ("mapa", ("mapa",)),
    ("st.async", ("st.async",)),
    ("tensor load", ("cp.async.bulk.tensor.2d.shared", "cp.async.bulk.tensor.2d.cta_group::2.shared")),
    ("try_cancel", ("clusterlaunchcontrol.try_cancel",)),
    ("cp.async", ("cp.async.ca",)),
    ("cp.async arrive", ("cp.async.mbarrier.arrive",)),
    ("stmatrix", ("stmatrix",)),
    ("fence.proxy.async", ("fence.proxy.async",)),
    ("tensor store", ("cp.async.bulk.tensor.2d.global",)),
    ("atomic", ("atom.",)),
    ("bulk commit", ("cp.async.bulk.commit_group",)),
    ("bulk wait", ("cp.async.bulk.wait_group",)),
)
"""Rows of the score table and the opcodes they stand for. setmaxnreg is left out: registers are not simulated."""

BARRIER_OPERANDS = {
    "mbarrier.try_wait": 1,
    "mbarrier.init": 0,
    "mbarrier.arrive": 1,
    "tcgen05.commit": 0,
    "mapa": 1,
}
"""Where each has its barrier's address."""


@dataclass(frozen=True)
class Deletion:
    """One instruction to delete. ``where`` says which of its kind, in the spec's words if it touches a barrier."""

    kind: str
    where: str
    statement: Statement


@dataclass(frozen=True)
class Outcome:
    """What became of a deletion: the report that found it and under which timing, or nothing."""

    deletion: Deletion
    executed: bool
    timing: Timing | None = None
    report: str = ""
    warned: bool = False

    @property
    def found(self) -> bool:
        return self.timing is not None


def deletions(subject: Subject) -> Iterator[Deletion]:
    """Every candidate in the text of a kernel, executed or not."""
    counts: dict[str, int] = {}
    for statement in statements(subject.ptx):
        kind = next((name for name, opcodes in KINDS if statement.opcode.startswith(opcodes)), None)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
            yield Deletion(kind, f"#{counts[kind]}{_barrier(subject.ptx, subject.plan, statement)}", statement)


def _barrier(text: str, plan: Plan, statement: Statement) -> str:
    operand = next((place for opcode, place in BARRIER_OPERANDS.items() if statement.opcode.startswith(opcode)), None)
    address = None if operand is None else constant(text, statement, operand)
    for name, first, slots in plan.barriers:
        if address is not None and first <= address < first + 8 * slots:
            slot = f"[{(address - first) // 8}]" if statement.opcode.startswith("mbarrier.init") else ""
            return f" {'of' if slot else 'on'} {name}{slot}"
    return ""


def without(text: str, statement: Statement) -> str:
    """The kernel without one instruction; a deleted wait has passed."""
    by = "setp.eq.u32 p, 0, 0;" if statement.opcode.startswith("mbarrier.try_wait") else ""
    return replace(text, statement, by)


def is_executed(subject: Subject, statement: Statement) -> bool:
    """Whether any warp comes by, which a trap in its place shows."""
    try:
        subject.run(subject.load(replace(subject.ptx, statement, "trap;")), ("early", 0))
    except (sim.SimulationError, WrongResult):
        return True
    return False


def judge(subject: Subject, deletion: Deletion, timings: tuple[Timing, ...]) -> Outcome:
    """Run without the instruction, timing by timing, until it is found."""
    module = subject.load(without(subject.ptx, deletion.statement))
    warned: tuple[Timing, str] | None = None
    for timing in timings:
        try:
            report = subject.run(module, timing)
        except (sim.SimulationError, WrongResult) as error:
            return Outcome(deletion, True, timing, f"{type(error).__name__}: {error}")
        if report.warnings and warned is None:
            warned = timing, f"warning: {report.warnings[0]}"
    if warned is not None:
        return Outcome(deletion, True, *warned, warned=True)
    return Outcome(deletion, is_executed(subject, deletion.statement))


def campaign(name: str, timings: tuple[Timing, ...], every: int = 1) -> list[Outcome]:
    """All deletions of a subject, or every so many of them; the unedited kernel must pass first."""
    chosen = subject(name)
    chosen.must_pass(timings)
    return [judge(chosen, each, timings) for each in list(deletions(chosen))[::every]]
