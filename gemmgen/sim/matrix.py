"""wgmma: operands read somewhere between issue and wait, results that exist only after the wait.
Destinations hold tokens until then; products are tensor_core.py's and operand layouts descriptors.py's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .descriptors import load_matrix, matrix_chunk_index
from .errors import Fault, Race, UnknownInstruction
from .formats import decode, encode_f16
from .fragments import accumulator_to_registers, wgmma_a_fragment
from .machine import AsyncOp, Cta
from .registry import SYNC, Bind, Call, Mods, instruction
from .tensor_core import ELEMENT_BITS, matrix_product
from .tokens import holds_token, next_serial, resolve, serial_of, tokens
from .types import Array, Imm, Instr, Mask, Not, Reg, Vec

if TYPE_CHECKING:
    from .warp import Warp

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")


@dataclass(frozen=True)
class Kind:
    """What a wgmma computes; everything its opcode and immediates say."""

    n: int
    k: int
    d: str
    a: str
    b: str
    from_registers: bool
    a_sign: int
    b_sign: int
    a_major: Any
    b_major: Any


@dataclass(eq=False)
class GroupOp:
    """One wgmma of a warpgroup, shared by its four warps; operands are read once, when the schedule or a wait says."""

    kind: Kind
    cta: Cta
    a_descriptor: int
    b_descriptor: int
    a_words: Array
    b_words: Array
    words: Array
    joined: int = 0
    poisoned: Array | None = None
    source: tuple[Any] | None = None  # who wrote the operands, looked up once for the four warps
    codes: tuple[Array | None, Array] | None = None
    result: Array | None = None

    def read(self) -> None:
        """Take the operands from shared memory as they are now."""
        if self.codes is not None:
            return
        kind, shared = self.kind, self.cta.smem.data
        size = ELEMENT_BITS[kind.b] // 8
        a = None
        if not kind.from_registers:
            a = load_matrix(shared, self.a_descriptor, 64, kind.k, ELEMENT_BITS[kind.a] // 8, kind.a_major)
            if self.poisoned is not None:
                a = a.copy()
                a[self.poisoned] = np.iinfo(a.dtype).max  # a NaN in every float format
        b = load_matrix(shared, self.b_descriptor, kind.n, kind.k, size, kind.b_major)
        self.codes = (a, b)

    def product(self) -> Array:
        """[4 warps, registers, 32] of A times B, without the accumulator."""
        if self.result is None:
            self.read()
            assert self.codes is not None and self.codes[0] is not None
            whole = _multiply(self.kind, self.codes[0], self.codes[1])
            self.result = accumulator_to_registers(whole)
        return self.result

    def rows_product(self, a_codes: Array) -> Array:
        """[64, n] for A from registers; only the rows of one warp are meaningful."""
        self.read()
        assert self.codes is not None
        return _multiply(self.kind, a_codes, self.codes[1])


def _multiply(kind: Kind, a: Array, b: Array) -> Array:
    return matrix_product(a, b, kind.a, kind.b, None, kind.a_sign, kind.b_sign)


@dataclass(eq=False)
class WarpOp:
    """One warp's share of a wgmma: its accumulator, and its result once computed."""

    group: GroupOp
    quarter: int
    serial: int
    previous: WarpOp | None
    accumulator: Array | None
    a_registers: Array | None
    a_index: Array | None
    values: Array | None = None
    chained: bool = False
    work: AsyncOp | None = field(default=None)

    def compute(self) -> Array:
        """The registers' contents after the operation, [registers, 32] as uint32."""
        if self.values is None:
            product = self._product()
            base = self.previous.compute() if self.previous is not None else self.accumulator
            self.values = _accumulate(self.group.kind, product, base)
            self.previous = None
        return self.values

    def _product(self) -> Array:
        if self.a_registers is None:
            whole: Array = self.group.product()[self.quarter]
            return whole
        kind = self.group.kind
        held = np.zeros((4, *self.a_registers.shape), np.uint32)
        held[self.quarter] = self.a_registers
        codes = wgmma_a_fragment(ELEMENT_BITS[kind.a]).unpack(held)
        result: Array = accumulator_to_registers(self.group.rows_product(codes))[self.quarter]
        return result


def _accumulate(kind: Kind, product: Array, base: Array | None) -> Array:
    if kind.d == "f16":
        return _accumulate_f16(product, base)
    if base is not None:
        product = product + base.view(product.dtype)
    return np.ascontiguousarray(product).view(np.uint32)


def _accumulate_f16(product: Array, base: Array | None) -> Array:
    if base is not None:
        halves = np.stack([base & 0xFFFF, base >> 16], axis=1).reshape(-1, 32)
        product = product + decode(halves.astype(np.uint16), "f16")
    codes = encode_f16(product).astype(np.uint32)
    return codes[0::2] | codes[1::2] << np.uint32(16)


@lru_cache(maxsize=4096)
def _operand_words(descriptor: int, rows: int, k: int, size: int, major: Any) -> Array:
    chunks = np.unique(matrix_chunk_index(descriptor, rows, k, size, major))
    return (chunks[:, None] * 4 + np.arange(4)).reshape(-1)


@instruction("wgmma.mma_async", kind=SYNC)
def wgmma(instr: Instr) -> Bind:
    kind, rest = _read_kind(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        destination, a, b = instr.operands[:3]
        registers = np.array([item.index for item in destination.items])
        b_row = warp.src(b, "u64")
        a_row = None if kind.from_registers else warp.src(a, "u64")
        a_index = np.array([item.index for item in a.items]) if kind.from_registers else None
        scale_d = _scale_d(warp, rest)

        def call() -> None:
            if len(warp.active) != 32:
                raise Fault("wgmma.mma_async needs all 32 lanes of the warp")
            group = _join(warp, instr, kind, 0 if a_row is None else int(a_row[0]), int(b_row[0]))
            _issue(warp, instr, group, registers, scale_d(), a_index)

        return call

    return bind


def _read_kind(instr: Instr) -> tuple[Kind, Any]:
    mods = Mods(instr, 2)
    mods.flag("sync", "aligned")
    shape = next((m for p in mods.left if (m := _SHAPE.match(p))), None)
    if shape is None:
        raise UnknownInstruction(f"{instr.opcode!r}: the shape is not m64nNkK")
    mods.left.remove(shape.group(0))
    types = [p for p in mods.left if p in (*ELEMENT_BITS, "f32", "s32")]
    mods.left = [p for p in mods.left if p not in types]
    mods.done()
    d, a, b = types
    n, k = int(shape.group(1)), int(shape.group(2))
    if k * ELEMENT_BITS[a] != 256 or n % 8 or not 8 <= n <= 256:
        raise UnknownInstruction(f"{instr.opcode!r}: no such shape")
    from_registers = isinstance(instr.operands[1], Vec)
    signs, transposed = _immediates(instr, a, from_registers)
    major = ["MN" if t else "K" for t in transposed]
    kind = Kind(n, k, d, a, b, from_registers, signs[0], signs[1], major[0], major[1])
    expected = n // 4 if d == "f16" else n // 2
    if len(instr.operands[0].items) != expected:
        raise UnknownInstruction(
            f"{instr.opcode!r}: {len(instr.operands[0].items)} accumulator registers, not {expected}"
        )
    return kind, instr.operands[3]


def _immediates(instr: Instr, a: str, from_registers: bool) -> tuple[list[int], list[int]]:
    values = [op.value for op in instr.operands[4:]]
    if a in ("s8", "u8"):
        return [1, 1], [0, 0]
    signs, transposed = values[:2], values[2:]
    if from_registers and len(transposed) == 1:
        transposed = [0, *transposed]
    return signs, ([*transposed, 0, 0])[:2]


def _scale_d(warp: Warp, operand: Any) -> Any:
    if isinstance(operand, Imm):
        return lambda: bool(operand.value)
    if isinstance(operand, Not):
        row = warp.rows["p"][operand.reg.index]
        return lambda: not row[0]
    assert isinstance(operand, Reg)
    row = warp.rows["p"][operand.index]
    return lambda: bool(row[0])


def _join(warp: Warp, instr: Instr, kind: Kind, a: int, b: int) -> GroupOp:
    """The warpgroup's operation: made by its first warp, joined by the others, which must agree."""
    cta = warp.cta
    key = warp.index // 4, warp.wgmma_count
    warp.wgmma_count += 1
    op = cta.wgmma_ops.get(key)
    if op is None:
        b_words = _operand_words(b, kind.n, kind.k, ELEMENT_BITS[kind.b] // 8, kind.b_major)
        a_words = b_words[:0]
        if not kind.from_registers:
            a_words = _operand_words(a, 64, kind.k, ELEMENT_BITS[kind.a] // 8, kind.a_major)
        words = np.concatenate([a_words, b_words])
        if int(words.max()) * 4 >= cta.smem.nbytes:
            raise Fault(f"wgmma operand reaches shared byte {int(words.max()) * 4 + 3} of {cta.smem.nbytes}")
        op = cta.wgmma_ops[key] = GroupOp(kind, cta, a, b, a_words, b_words, words)
    elif (op.kind, op.a_descriptor, op.b_descriptor) != (kind, a, b):
        raise Fault(f"the warps of warpgroup {warp.index // 4} issue different wgmma operations or descriptors here")
    op.joined += 1
    if op.joined == 4:
        del cta.wgmma_ops[key]
    return op


def _issue(warp: Warp, instr: Instr, group: GroupOp, registers: Array, scale_d: bool, a_index: Array | None) -> None:
    what = f"wgmma of {warp.who()} (PTX line {instr.line})"
    _note_reads(warp, group, what)
    file = warp.registers.files["32"]
    if warp.fence_rows is None:
        raise Fault("wgmma.mma_async without a wgmma.fence before it")
    previous, accumulator = None, None
    if scale_d:
        accumulator = file[registers]
        previous = _pending_of(warp, accumulator)
        if previous is not None:
            accumulator, previous.chained = None, True
        else:
            _check_unchanged(warp, registers, accumulator, "an accumulator")
    if a_index is not None:
        _check_unchanged(warp, a_index, file[a_index], "A")
    a_held = None if a_index is None else file[a_index]
    op = WarpOp(group, warp.index % 4, next_serial(warp), previous, accumulator, a_held, a_index)
    file[registers] = tokens(op.serial, len(registers))
    warp.out.wgmma_open.append(op)
    warp.wgmma_pending[op.serial] = op
    op.work = warp.cta.gpu.submit(AsyncOp("wgmma", what, group.read))


def _note_reads(warp: Warp, group: GroupOp, what: str) -> None:
    """The operands are being read from now on. With discarded_rows="poison", rows of A that are not ready give NaN."""
    shadow = group.cta.shadow
    if warp.cta.gpu.discarded_rows == "fault" or group.kind.from_registers or group.kind.a_major != "K":
        if group.source is None:
            group.source = (shadow.single_source(group.words),)
        shadow.async_read_of(group.source[0], warp.clock, warp.number, group.words, what)
        return
    group.words = group.b_words
    shadow.async_read(warp.clock, warp.number, group.words, what)
    bad = group.a_words[shadow.unordered(warp.clock, group.a_words)]
    if bad.size:
        warp.cta.gpu.warn(f"{what} reads rows of A that are not ready; they count as NaN")
        chunks = matrix_chunk_index(group.a_descriptor, 64, group.kind.k, ELEMENT_BITS[group.kind.a] // 8, "K")
        rows: Array = np.asarray(np.isin(chunks, bad // 4).any(axis=1))
        group.poisoned = rows if group.poisoned is None else group.poisoned | rows
        group.codes = group.result = None


def _pending_of(warp: Warp, accumulator: Array) -> WarpOp | None:
    """The operation in flight whose tokens the accumulator holds, if it holds any."""
    if not warp.wgmma_pending:
        return None
    first = int(accumulator[0, 0])
    pending = warp.wgmma_pending.get(serial_of(first))
    if pending is None and not holds_token(accumulator).any():
        return None
    if pending is None or not (accumulator == tokens(pending.serial, len(accumulator))).all():
        raise Fault("wgmma.mma_async: the accumulator mixes registers of another wgmma that is still in flight")
    result: WarpOp | None = pending
    return result


def _check_unchanged(warp: Warp, registers: Array, values: Array, what: str) -> None:
    """They hold what some register held at the last wgmma.fence (the compiler may move them), or a constant."""
    snapshot = warp.fence_rows
    if np.array_equal(snapshot[registers], values):
        return
    known = {row.tobytes() for row in snapshot}
    for register, row in zip(registers.tolist(), values, strict=True):
        if row.tobytes() not in known and not (row == row[0]).all():
            raise Race(
                f"wgmma.mma_async: register {register} of {what} changed after the last wgmma.fence; "
                "fence again before the first wgmma that reads it"
            )


@instruction("wgmma.fence", kind=SYNC)
def wgmma_fence(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            if warp.fence_rows is None:
                warp.fence_rows = warp.registers.files["32"].copy()
            else:
                np.copyto(warp.fence_rows, warp.registers.files["32"])

        return call

    return bind


@instruction("wgmma.commit_group", kind=SYNC)
def wgmma_commit(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            warp.out.wgmma_groups.append(warp.out.wgmma_open)
            warp.out.wgmma_open = []

        return call

    return bind


@instruction("wgmma.wait_group", kind=SYNC)
def wgmma_wait(instr: Instr) -> Bind:
    keep = instr.operands[0].value

    def bind(warp: Warp, mask: Mask | None) -> Call:
        return lambda: _wait(warp, keep)

    return bind


def _wait(warp: Warp, keep: int) -> None:
    warp.settle_loads(by_products=True)
    groups = warp.out.wgmma_groups
    done = max(len(groups) - keep, 0)
    finished = [op for group in groups[:done] for op in group]
    if not finished:
        warp.out.wgmma_groups = groups[done:]
        return
    warp.out.wgmma_groups = groups[done:]
    results = {}
    for op in finished:
        assert op.work is not None
        op.work.run()
        results[op.serial] = op.compute()
        del warp.wgmma_pending[op.serial]
        op.group.cta.shadow.async_read_done(warp, op.group.words)
        if op.a_index is not None and not np.array_equal(warp.registers.files["32"][op.a_index], op.a_registers):
            warp.cta.gpu.race("a register that holds A was changed before wgmma.wait_group let it go")
    for op in warp.wgmma_pending.values():  # what they read may be what the finished ones read
        op.group.cta.shadow.async_read_again(warp, op.group.words)
    wanted = {op.serial: 0 if op.chained else op.compute().size for op in finished}
    resolve(warp, results, wanted)
    if any(missing > 0 for missing in wanted.values()):
        raise Race("a register that wgmma writes was overwritten before wgmma.wait_group; the result is lost")
