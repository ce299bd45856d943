"""Straight-line code as one Python function per block, shared by all warps; like independent rows become a batch.
It knows RowOps and order of reads and writes; every other instruction is a call that each warp binds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from .registry import CONTROL, SYNC, Bind, meaning
from .rowop import RowOp
from .types import LANES, Imm, Instr, Reg
from .values import KIND_OF, literal

MIN_BATCH = 4
MIN_UFUNC_BATCH = 10
_SCRATCH = np.empty(LANES, np.bool_)


@dataclass
class BlockCode:
    """A compiled block: function(rows, calls, extras, mask), the instruction behind each line, and what ends it."""

    function: Callable[..., None]
    lines: list[Instr]
    closures: list[Instr]
    end: Instr
    falls_through: bool
    count: int


@dataclass
class _Writer:
    """Text of a block's function and the objects it names."""

    program: Any
    names: dict[str, Any]
    full: bool
    text: list[str] = field(default_factory=list)
    sites: list[Instr] = field(default_factory=list)
    closures: list[Instr] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def line(self, text: str, instr: Instr) -> None:
        self.text.append(f"    {text}")
        self.sites.append(instr)

    def name(self, value: Any) -> str:
        """A global name for an object."""
        key = f"g{id(value):x}"
        self.names[key] = value
        return key

    def row(self, operand: Any, dtype: str) -> str:
        """Source text of an operand's row."""
        if isinstance(operand, Reg) and KIND_OF.get(dtype) == operand.kind:
            self.used.add(dtype)
            return f"{dtype}[{operand.index}]"
        if isinstance(operand, Imm):
            return self.name(literal(operand, dtype))
        return f"X[{self.program.extra(operand, dtype)}]"

    def mask(self, instr: Instr) -> str:
        """Source text of the lanes an instruction acts on; may first write a line that computes them."""
        if instr.guard is None:
            return "None" if self.full else "M"
        self.used.add("p")
        predicate = f"p[{instr.guard.index}]"
        if self.full and not instr.negated:
            return predicate
        if self.full:
            self.line(f"lnot({predicate}, T)", instr)
        else:
            self.line(f"{'greater' if instr.negated else 'land'}(M, {predicate}, T)", instr)
        return "T"

    def row_op(self, instr: Instr, op: RowOp) -> None:
        """One call for one instruction."""
        mask = self.mask(instr)
        out = self.row(*op.target)
        rows = ", ".join(self.row(*source) for source in op.sources)
        function = self.name(op.function)
        if not op.is_ufunc:
            self.line(f"{function}({out}, {mask}, {rows})", instr)
            return
        by_name = op.function in (np.minimum, np.maximum)
        extra = "" if mask == "None" else f", where={mask}"
        extra += "" if op.dtype is None else f", dtype={self.name(op.dtype)}"
        self.line(f"{function}({rows}, {'out=' if by_name else ''}{out}{extra})", instr)

    def closure(self, instr: Instr) -> None:
        self.line(f"C[{len(self.closures)}]()", instr)
        self.closures.append(instr)

    def batch(self, items: list[tuple[Instr, RowOp]]) -> None:
        """Several independent instructions of one kind at once, on stacked rows."""
        first = items[0][1]
        sources = []
        for position, (operand, dtype) in enumerate(first.sources):
            if isinstance(operand, Reg):
                sources.append(self.stack(dtype, [op.sources[position][0].index for _, op in items]))
            else:
                sources.append(self.row(operand, dtype))
        target = self.stack(first.target[1], [op.target[0].index for _, op in items], store=True)
        self.line(f"{target} = {self.name(first.batch)}({', '.join(sources)})", items[0][0])

    def stack(self, dtype: str, rows: list[int], store: bool = False) -> str:
        """Source text of several rows of a file: a slice if evenly spaced, else gathered."""
        file = f"{dtype}_"
        self.used.add(file)
        step = rows[1] - rows[0]
        if all(b - a == step for a, b in pairwise(rows)):
            if step == 0:
                return f"{file}[{rows[0]}]"
            stop = rows[-1] + (1 if step > 0 else -1)
            return f"{file}[{rows[0]}:{stop if stop >= 0 else ''}:{step}]"
        index = np.array(rows)
        return f"{file}[{self.name(index)}]" if store else f"{file}.take({self.name(index)}, 0)"

    def finish(self) -> Callable[..., None]:
        head = ["def block(R, C, X, M):"] + [f"    {name} = R['{name}']" for name in sorted(self.used)]
        self.lead = len(head)
        body = self.text or ["    pass"]
        code = compile("\n".join(head + body) + "\n", "<block>", "exec")
        exec(code, self.names)
        function: Callable[..., None] = self.names.pop("block")
        return function


def compile_block(program: Any, pc: int, full: bool) -> BlockCode:
    """The block that starts at pc, for converged or masked lanes."""
    entry = program.entry
    items: list[tuple[Instr, Bind]] = []
    at = pc
    while not _ends(entry, at, pc, full):
        instr = entry.instrs[at]
        items.append((instr, program.decoded(instr, meaning(instr))))
        at += 1
    names = program.code_names
    names.update(T=_SCRATCH, lnot=np.logical_not, land=np.logical_and, greater=np.greater)
    writer = _Writer(program, names, full)
    _write(writer, items)
    function = writer.finish()
    lines = [entry.instrs[pc]] * (writer.lead + 1) + writer.sites
    end = entry.instrs[at]
    falls = at > pc and at in entry.targets
    return BlockCode(function, lines, writer.closures, end, falls, at - pc + (0 if falls else 1))


def _ends(entry: Any, at: int, pc: int, full: bool) -> bool:
    instr = entry.instrs[at]
    kind = meaning(instr).kind
    return kind == CONTROL or (kind == SYNC and not full) or (at > pc and at in entry.targets)


# Calls that pure rows may be moved across when their registers allow it; they keep their own order.
_TRANSPARENT = ("ld", "st", "ldmatrix", "stmatrix", "shfl", "mma")


@dataclass
class _Node:
    """An instruction to be placed: a RowOp, or a call (op None)."""

    instr: Instr
    op: RowOp | None
    reads: list[tuple[str, int]]
    writes: list[tuple[str, int]]


def _write(writer: _Writer, items: list[tuple[Instr, Bind]]) -> None:
    """RowOps between opaque instructions may be reordered into batches; opaque ones keep their place."""
    run: list[_Node] = []
    for instr, bind in items:
        node = _node(instr, bind)
        if node is not None and writer.full:
            run.append(node)
            continue
        _write_run(writer, run)
        run = []
        _write_one(writer, node or _Node(instr, None, [], []))
    _write_run(writer, run)


def _node(instr: Instr, bind: Bind) -> _Node | None:
    """None for an instruction that nothing may be moved across."""
    if isinstance(bind, RowOp) and bind.writes_whole_register:
        reads = [_place(operand) for operand, _ in bind.sources if isinstance(operand, Reg)]
        writes, op = [_place(bind.target[0])], bind
    elif instr.base in _TRANSPARENT:
        stores = instr.base in ("st", "stmatrix")
        reads = [_place(r) for op in instr.operands[0 if stores else 1 :] for r in _registers(op)]
        writes, op = [] if stores else [_place(r) for r in _registers(instr.operands[0])], None
    else:
        return None
    if instr.guard is not None:
        reads = [*reads, _place(instr.guard), *writes]
    return _Node(instr, op, reads, writes)


def _place(register: Reg) -> tuple[str, int]:
    return register.kind, register.index


def _registers(operand: Any) -> list[Reg]:
    """Every register an operand names."""
    if isinstance(operand, Reg):
        return [operand]
    parts = getattr(operand, "items", None) or [
        getattr(operand, name, None) for name in ("base", "first", "second", "reg")
    ]
    return [register for part in parts if part is not None for register in _registers(part)]


def _write_one(writer: _Writer, node: _Node) -> None:
    if node.op is None:
        writer.closure(node.instr)
    else:
        writer.row_op(node.instr, node.op)


def _write_run(writer: _Writer, run: list[_Node]) -> None:
    groups = _levels(run) if len(run) >= MIN_BATCH else []
    if not any(_is_batch(group) for group in groups):
        groups = [[node] for node in run]
    for group in groups:
        if _is_batch(group):
            writer.batch([(node.instr, node.op) for node in group if node.op is not None])
        else:
            for node in group:
                _write_one(writer, node)


def _is_batch(group: list[_Node]) -> bool:
    op = group[0].op
    return op is not None and op.batch is not None and len(group) >= (MIN_UFUNC_BATCH if op.is_ufunc else MIN_BATCH)


def _levels(run: list[_Node]) -> list[list[_Node]]:
    """Instructions grouped by kind within dependency levels; a group's members are independent."""
    written: dict[tuple[str, int], int] = {}
    read: dict[tuple[str, int], int] = {}
    calls = 0
    levels: dict[int, dict[Any, list[_Node]]] = defaultdict(lambda: defaultdict(list))
    for node in run:
        before = [written.get(place, 0) for place in (*node.reads, *node.writes)]
        level = 1 + max([0, *before, *(read.get(place, 0) for place in node.writes)])
        if node.op is None:
            calls = level = max(level, calls + 1)
        for place in node.writes:
            written[place] = level
        for place in node.reads:
            read[place] = max(read.get(place, 0), level)
        levels[level][_kind(node)].append(node)
    return [group for level in sorted(levels) for group in levels[level].values()]


def _kind(node: _Node) -> Any:
    """Instructions with equal kinds may form a batch; without a batch function each stands alone."""
    op, instr = node.op, node.instr
    if op is None or op.batch is None or instr.guard is not None:
        return instr.pc
    sources = tuple(
        dtype if isinstance(operand, Reg) and KIND_OF.get(dtype) == operand.kind else (operand, dtype)
        for operand, dtype in op.sources
    )
    if any(isinstance(source, tuple) and isinstance(source[0], Reg) for source in sources):
        return instr.pc
    return id(op.batch), op.target[1], sources


def site_of(code: BlockCode, error: BaseException) -> Instr | None:
    """The instruction whose line of the block's function raised, None if none did."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code.function.__code__:
            return code.lines[min(trace.tb_lineno, len(code.lines) - 1)]
        trace = trace.tb_next
    return None
