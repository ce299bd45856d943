"""A warp: its registers, its groups of converged lanes and the loop that runs bound code.
It knows control flow only; what instructions do comes bound from the families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .blocks import BlockCode, site_of
from .errors import Fault, SimulationError, as_simulation_error
from .groups import FULL, REPICK, YIELD, Group, Wait, lane_ranges, lanes_of, mask_array
from .registry import CONTROL, Call, meaning
from .shadow import CLOCK_ROWS
from .types import LANES, Array, Instr, Mask, Reg
from .values import Registers
from .warp_state import Block, Outstanding, Spin, in_turn

if TYPE_CHECKING:
    from .global_order import Beside
    from .machine import Cta


class Warp:
    """One warp of a CTA."""

    number: int
    epoch: int
    clock: Array

    def __init__(self, cta: Cta, index: int, threads: int) -> None:
        self.cta = cta
        self.index = index
        self.number = cta.rank * cta.warp_count + index  # among the actors of the cluster
        self.registers = Registers(cta.program.entry.counts)
        self.rows = self.registers.rows
        self.live = (1 << threads) - 1
        self.unwaited = self.live if cta.gpu.in_use else 0  # lanes before their griddepcontrol.wait, if it matters
        self.groups = [Group(0, self.live)]
        self.group = self.groups[0]
        self.mask = np.zeros(LANES, np.bool_)  # changed in place; masked code is bound to it
        size = len(cta.program.entry.instrs) + 1
        self.full: list[Block | None] = [None] * size
        self.masked: list[Block | None] = [None] * size
        self.clock = np.zeros((CLOCK_ROWS, cta.cluster.clock_size), np.int32)
        self.epoch = self.lane_epoch = self.soft_epoch = self.elect_epoch = 1
        self.clock[0, self.number] = 1
        self.beside: Beside | None = None  # if the order of global memory is kept
        if (order := cta.gpu.global_order) is not None:
            self.beside = order.follow(self)
            self.clock[0, self.beside.own] = 1
        self.effects = 0
        self.spin: dict[int, Spin] = {}
        self.out = Outstanding()
        self.executed = 0
        self.extras: list[Array] = []
        self.carry = np.zeros(LANES, np.uint64)
        self.local: Any = None
        self.fence_rows: Any = None
        self.token_serial = 0
        self.wgmma_count = 0
        self.wgmma_pending: dict[int, Any] = {}
        self.call_params: dict[str, Array] = {}
        self.fence_clock: Array | None = None
        self.waited: list[tuple[int, slice, int]] = []  # copies that one lane only has waited for: lane, words, epoch
        self.readers = self.writers = self.late_writers = 0  # lanes at shared memory since the last warp sync (or vote)
        self.storing = 0  # the epoch of the first store to shared memory since loads were settled by all means

    # order

    def release(self) -> Array:
        """Clock for others to join; what this warp does next is later than it."""
        out = self.clock.copy()
        if self.beside is not None and self.beside.told is not None:
            self.beside.join(out, self.beside.told[1])
        self._next_epoch()
        return out

    def acquire(self, clock: Array) -> None:
        """Join a clock, which also orders the lanes of this warp."""
        np.maximum(self.clock, clock, out=self.clock)
        self.lane_sync()

    def lane_sync(self) -> None:
        self.lane_epoch = self.soft_epoch = self.elect_epoch = self._next_epoch()
        if self.beside is not None and self.beside.told is not None:
            self.beside.join(self.clock, self.beside.told[1])
            self.beside.told = None
        self.waited.clear()
        self.readers = self.writers = self.late_writers = 0

    def soft_sync(self) -> None:
        """A shuffle or vote: lanes meet, but memory order is not promised."""
        self.soft_epoch = self._next_epoch()
        self.late_writers = 0

    def elected(self) -> None:
        """An election: lanes meet without memory order; known-good kernels issue to the tensor pipe after it."""
        self.elect_epoch = self._next_epoch()

    def check_speaks_for_warp(self, lanes: int, what: str) -> None:
        """Some lanes arrive at a barrier: what others did since the last warp sync is not ordered by that."""
        if not (self.readers | self.writers) & ~lanes & self.live:
            return
        verb = "wrote" if self.writers & ~lanes else "read"
        text = (
            f"{what}: lanes {lane_ranges(lanes)} arrive for their warp, but others {verb} shared memory since the last "
            "warp synchronisation (bar.warp.sync); the arrival does not order that"
        )
        if self.late_writers & ~lanes & self.live:
            self.cta.gpu.race(text)
        else:
            role = self.cta.labels.role(self.index)
            self.cta.gpu.warn(f"{self.cta.program.entry.name}{f', {role}' if role else ''}: {text}")

    def proxy_fence(self) -> None:
        """fence.proxy.async: everything this warp knows of is now visible to the async proxy."""
        np.maximum(self.clock[1], self.clock[0], out=self.clock[1])
        self.settle_loads()

    def _next_epoch(self) -> int:
        self.epoch += 1
        self.clock[0, self.number] = self.epoch
        if self.beside is not None:
            self.clock[0, self.beside.own] = self.epoch
        return self.epoch

    def stores(self) -> None:
        """A store to shared memory: loads behind it may be as late as it is."""
        if not self.storing:
            self.storing = self.epoch
            self._next_epoch()

    def settle_loads(self, by_products: bool = False) -> None:
        """Loads that this warp knows of have read: they wait for a proxy fence, a barrier of the CTA, or products.

        Products may have ended long ago, so they settle no loads that are queued behind the warp's own stores: an H200
        lets copies overwrite what those have yet to read.
        """
        settled = self.storing if by_products and self.storing else self.clock[0, self.number]
        before = self.clock[2, self.number]
        np.maximum(self.clock[2], self.clock[0], out=self.clock[2])
        self.clock[2, self.number] = max(before, settled)
        if not by_products:
            self.storing = 0
        self._next_epoch()

    # groups

    @property
    def ready(self) -> bool:
        return any(group.wait is None for group in self.groups)

    @property
    def done(self) -> bool:
        return not self.groups

    @property
    def active(self) -> tuple[int, ...]:
        return lanes_of(self.group.bits)

    def block_group(self, pc: int, wait: Wait) -> int:
        """Let the current group wait; it continues at pc when woken."""
        self.group.pc = pc
        self.group.wait = wait
        return REPICK

    def split(self, taken: int, target: int, fallthrough: int) -> int:
        """A divergent branch."""
        self.group.bits &= ~taken
        self.group.pc = fallthrough
        self.groups.append(Group(target, taken))
        return REPICK

    def exit_lanes(self, bits: int, pc: int) -> int:
        """Lanes are done; the rest of the group goes on at pc, and lanes that waited for them look again."""
        self.live &= ~bits
        self.group.bits &= ~bits
        self.group.pc = pc
        if not self.group.bits:
            self.groups.remove(self.group)
        for group in self.groups:
            if group.wait is not None and group.wait.kind in ("sync", "warp"):
                group.wait = None
        return YIELD if self.done else REPICK

    def gather(self, pc: int, needed: int) -> bool:
        """Whether all needed live lanes stand converged at pc; merges those that wait there."""
        for other in [
            g for g in self.groups if g is not self.group and g.pc == pc and g.wait and g.wait.kind == "sync"
        ]:
            self.group.bits |= other.bits
            self.groups.remove(other)
        self._load_mask()
        return not needed & self.live & ~self.group.bits

    def wait_for_lanes(self, instr: Instr) -> int:
        bits = self.group.bits

        def describe() -> str:
            missing = ", ".join(map(str, lanes_of(self.live & ~bits)[:8]))
            return f"`{instr.text[:60]}` (PTX line {instr.line}): waits for lanes {missing} of its warp"

        return self.block_group(instr.pc, Wait("sync", describe))

    def _pick(self) -> Group | None:
        ready = [group for group in self.groups if group.wait is None]
        if not ready:
            return None
        best = min(ready, key=lambda group: group.pc)
        for other in ready:
            if other is not best and other.pc == best.pc:
                best.bits |= other.bits
                self.groups.remove(other)
        return best

    def _load_mask(self) -> None:
        self.mask[:] = mask_array(self.group.bits)

    # running

    def run(self, budget: int) -> int:
        """Run until the budget is spent, everything waits, or an instruction yields; returns instructions executed."""
        start = self.executed
        limit = start + budget
        while (group := self._pick()) is not None:
            self.group = group
            full = group.bits == FULL
            if not full:
                self._load_mask()
            pc = self._run_group(self.full if full else self.masked, full, group.pc, limit)
            if pc >= 0:
                group.pc = pc
                if self.executed >= limit:
                    break
            elif pc == YIELD:
                break
        return self.executed - start

    def _run_group(self, table: list[Block | None], full: bool, pc: int, limit: int) -> int:
        alone = len(self.groups) == 1
        block = None
        try:
            while True:
                block = table[pc] or self._bind(table, pc, full)
                block.run()
                self.executed += block.count
                pc = block.control()
                if pc < 0 or not alone or self.executed >= limit:
                    return pc
        except SimulationError as error:
            raise self._located(error, block) from error
        except (ValueError, IndexError) as error:
            raise self._located(as_simulation_error(error), block) from error

    def _located(self, error: SimulationError, block: Block | None) -> SimulationError:
        if block is None or getattr(error, "located", False):
            return error
        site = site_of(block.code, error) or block.code.end
        located = type(error)(f"{self.where()}: {self.cta.program.place(site)}: {error}")
        located.located = True  # type: ignore[attr-defined]
        return located

    def who(self) -> str:
        """`warp 3 (math)`, with the CTA in a cluster."""
        role = self.cta.labels.role(self.index)
        name = f"warp {self.index}" + (f" ({role})" if role else "")
        return f"{name} of CTA {self.cta.position}" if self.cta.cluster.size > 1 else name

    def state(self) -> tuple[Any, ...]:
        """Where the lanes stand and what the registers hold, as one hashable value."""
        files = (self.registers.files[kind].tobytes() for kind in ("p", "16", "32", "64"))
        return *((group.pc, group.bits) for group in self.groups), *files

    def reasons(self) -> list[str]:
        """What each group of lanes waits for."""
        out = []
        for group in self.groups:
            lanes = "" if group.bits == self.live else f"lanes {lane_ranges(group.bits)}: "
            instr = self.cta.program.entry.instrs[min(group.pc, len(self.cta.program.entry.instrs) - 1)]
            out.append(
                lanes
                + (
                    group.wait.describe()
                    if group.wait
                    else f"runs without progress near {self.cta.program.place(instr)}"
                )
            )
        return out

    def at_exit(self) -> None:
        """Work that was never waited for."""
        if self.out.wgmma_open or any(self.out.wgmma_groups):
            raise Fault(f"{self.where()}: exits with wgmma results that were never waited for")
        for groups in self.out.bulk_groups.values():
            if any(not store.waited_read for group in groups for store in group):
                self.cta.gpu.warn(f"{self.where()}: exits while bulk stores may still read shared memory")
        if any(self.out.bulk_open.values()):
            self.cta.gpu.warn(f"{self.where()}: exits with bulk stores that were never committed")

    def where(self) -> str:
        """`entry kernel, CTA (0, 0, 0), warp 3 (math)`."""
        role = self.cta.labels.role(self.index)
        suffix = f" ({role})" if role else ""
        return f"{self.cta.program.entry.name}, CTA {self.cta.position}, warp {self.index}{suffix}"

    # binding

    def _bind(self, table: list[Block | None], pc: int, full: bool) -> Block:
        code = self.cta.program.block(pc, full)
        calls = [self._bound(instr, full) for instr in code.closures]
        for operand, dtype in self.cta.program.extras[len(self.extras) :]:
            self.extras.append(self.src(operand, dtype))
        run = partial(code.function, self.registers.rows, calls, self.extras, self.mask)
        block = table[pc] = Block(run, code, self._bind_end(code, full), code.count)
        return block

    def _bind_end(self, code: BlockCode, full: bool) -> Callable[[], int]:
        instr = code.end
        if code.falls_through:
            return lambda: instr.pc
        found = meaning(instr)
        if found.kind != CONTROL:
            return self._synchronised(instr, self._bound(instr, full))
        before, mask = self._guarded(instr, full)
        control = self.cta.program.decoded(instr, found)(self, mask)
        return control if before is None else in_turn(before, control)

    def _bound(self, instr: Instr, full: bool) -> Call:
        """An instruction bound on its own."""
        before, mask = self._guarded(instr, full)
        call = self.cta.program.decoded(instr, meaning(instr))(self, mask)
        return call if before is None else in_turn(before, call)

    def _synchronised(self, instr: Instr, work: Call) -> Callable[[], int]:
        """A `.sync` instruction in diverged code: runs once every lane it needs is there."""
        needed = self.cta.program.lanes_needed(instr)

        def control() -> int:
            if not self.gather(instr.pc, needed(self)):
                return self.wait_for_lanes(instr)
            if self.group.bits == FULL and len(self.groups) == 1:
                self._bound(instr, full=True)()
            else:
                work()
            return self._resume(instr.pc + 1)

        return control

    def _resume(self, pc: int) -> int:
        self.group.pc = pc
        return REPICK

    def _guarded(self, instr: Instr, full: bool) -> tuple[Call | None, Mask | None]:
        """The lanes an instruction acts on (None for all), and the call that computes them first if it takes one."""
        base = None if full else self.mask
        if instr.guard is None or instr.base in ("bra", "brx"):
            return None, base
        predicate: Mask = self.rows["p"][instr.guard.index]
        if base is None and not instr.negated:
            return None, predicate
        scratch = np.empty(LANES, np.bool_)
        if base is None:
            return partial(np.logical_not, predicate, scratch), scratch
        return partial(np.greater if instr.negated else np.logical_and, base, predicate, scratch), scratch

    # operands

    def row(self, register: Reg, dtype: str) -> Array:
        """The 32 lanes of a register seen as dtype."""
        return self.registers.row(register, dtype)

    def src(self, operand: Any, dtype: str) -> Array:
        """An operand's 32 lanes to read; immediates and constants are shared read-only arrays."""
        return self.cta.program.source(self, operand, dtype)

    def scalar(self, operand: Any, mask: Mask | None, dtype: str) -> int:
        """The value in the first active lane of an operand that must be uniform."""
        row = self.src(operand, dtype)
        return int(row[0 if mask is None else int(mask.argmax())])


__all__ = ["REPICK", "YIELD", "Wait", "Warp"]
