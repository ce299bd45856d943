"""tcgen05.cp, tcgen05.ld, tcgen05.st and their waits: data between shared memory, tensor memory and registers.
Shapes are index formulas; order is tmem.py's and timing the pipe's or the schedule's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .async_copy import lane_value
from .errors import Fault, Race, UnknownInstruction
from .machine import AsyncOp, Cta
from .memory_ops import active_lanes, address_call
from .registry import SYNC, Bind, Call, Mods, instruction
from .tcgen05_descriptors import load_lines, operand_chunks
from .tcgen05_pipe import (
    Load,
    TensorWarp,
    describe,
    issue,
    members,
    next_serial_of,
    note_shared_read,
    tensor_of,
)
from .tmem import BAND, IN_FLIGHT, Region, split_address
from .tokens import next_serial, resolve, tokens
from .types import Array, Imm, Instr, Mask, Vec

if TYPE_CHECKING:
    from .warp import Warp

# tcgen05.cp


@dataclass(frozen=True)
class CopyShape:
    """Rows of the source and words of each; the source row of every destination lane."""

    rows: int
    words: int
    source_row: tuple[int, ...]


def _copy_shape(rows: int, words: int, row_of: Callable[[int], int]) -> CopyShape:
    return CopyShape(rows, words, tuple(row_of(lane) for lane in range(128)))


_COPIES = {
    ("128x256b", ""): _copy_shape(128, 8, lambda lane: lane),
    ("128x128b", ""): _copy_shape(128, 4, lambda lane: lane),
    ("64x128b", "warpx2::02_13"): _copy_shape(64, 4, lambda lane: lane % 64),
    ("64x128b", "warpx2::01_23"): _copy_shape(64, 4, lambda lane: lane % 32 + 32 * (lane // 64)),
    ("32x128b", "warpx4"): _copy_shape(32, 4, lambda lane: lane % 32),
}


@instruction("tcgen05.cp")
def tensor_copy(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    group = int(mods.pick(("cta_group::1", "cta_group::2"), "x::0")[-1])
    key = mods.pick([shape for shape, _ in _COPIES]), mods.pick([replica for _, replica in _COPIES if replica])
    mods.done()
    if not group or key not in _COPIES:
        raise UnknownInstruction(f"{instr.opcode!r}: this shape is not modelled")
    shape = _COPIES[key]

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, source = address_call(warp, instr.operands[0]), lane_value(warp, instr.operands[1], "u64")

        def call() -> None:
            warp.effects += 1
            for lane in active_lanes(mask).tolist():
                _issue_copy(warp, instr, lane, group, shape, int(target()[lane]), source(lane))

        return call

    return bind


def _issue_copy(
    warp: Warp, instr: Instr, lane: int, group: int, shape: CopyShape, target: int, descriptor: int
) -> None:
    ctas = members(warp, group, "tcgen05.cp")
    what = describe(warp, instr)
    first_lane, column = split_address(target)
    if first_lane:
        raise Fault(f"tcgen05.cp: the TMEM address {target:#x} names lane {first_lane}; it must be 0")
    region, words = Region(column, column + shape.words), _source_words(descriptor, shape)
    serial = next_serial_of(warp)
    for cta in ctas:
        tensor = tensor_of(cta)
        if int(words.max()) * 4 >= cta.smem.nbytes:
            raise Fault(f"tcgen05.cp: the source reaches shared byte {int(words.max()) * 4 + 3} of {cta.smem.nbytes}")
        note_shared_read(cta, warp, lane, serial, words, what)
        tensor.memory.check(region, warp.clock[0], what)
        user = tensor.pipe_user(warp, tensor_of(warp.cta), what)
        tensor.memory.note_write(region, user, serial)
        tensor.memory.touch(region, user.row, serial)

    def run() -> None:
        for cta in ctas:
            _copy(cta, shape, column, descriptor)

    issue(warp, lane, what, run)


@lru_cache(maxsize=1024)
def _source_words(descriptor: int, shape: CopyShape) -> Array:
    chunks = np.unique(operand_chunks(descriptor, shape.rows, shape.words * 4, "K"))
    return (chunks[:, None] * 4 + np.arange(4)).reshape(-1)


def _copy(cta: Cta, shape: CopyShape, column: int, descriptor: int) -> None:
    if cta.exited:
        raise Fault(f"the source lies in shared memory of CTA {cta.position}, which has already exited")
    lines = np.ascontiguousarray(load_lines(cta.smem.data, descriptor, shape.rows, shape.words * 4, "K"))
    tensor_of(cta).memory.data[:, column : column + shape.words] = lines.view(np.uint32)[list(shape.source_row)]


# tcgen05.ld and tcgen05.st

_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
_REGISTERS_AT_X1 = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
_COUNTS = tuple(f"x{1 << i}" for i in range(8))


@dataclass(frozen=True)
class Access:
    """Lane (relative to the address) and column of every register of every thread, [registers, 32]."""

    lanes: Array
    columns: Array
    width: int  # columns reached
    height: int  # lanes reached, 16 or 32


@lru_cache(maxsize=64)
def access_map(shape: str, registers: int) -> Access:
    """Where the registers of an unpacked tcgen05.ld or .st lie."""
    r, t = np.arange(registers)[:, None], np.arange(32)[None, :]
    lane, column = {
        "32x32b": (t + 0 * r, r + 0 * t),
        "16x64b": (t // 4 + 8 * (t % 2) + 0 * r, 2 * r + t // 2 % 2),
        "16x128b": (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4),
        "16x256b": (t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2),
        "16x32bx2": (t % 16 + 0 * r, r + registers * (t // 16)),
    }[shape]
    return Access(lane, column, int(column.max()) + 1, 32 if shape == "32x32b" else 16)


@dataclass(frozen=True)
class Form:
    """What the opcode of a ld or st says."""

    access: Access
    packed: bool
    registers: int

    @property
    def columns(self) -> int:
        return self.access.width * (2 if self.packed else 1)


def _read_form(instr: Instr, registers: Vec, extra: list[Any], packing: str) -> Form:
    mods = Mods(instr, 2)
    mods.flag("sync", "aligned", "b32")
    shape, count = mods.pick(_SHAPES), mods.pick(_COUNTS)
    packed = bool(packing) and mods.flag(packing)
    mods.done()
    if not shape or not count or "sync" not in instr.parts or "aligned" not in instr.parts:
        raise UnknownInstruction(f"{instr.opcode!r}: shape, count or .sync.aligned is missing")
    total = _REGISTERS_AT_X1[shape] * int(count[1:])
    if total > 128 or len(registers.items) != total:
        raise UnknownInstruction(f"{instr.opcode!r}: {len(registers.items)} registers, not {total} (at most 128)")
    form = Form(access_map(shape, total), packed, total)
    if shape == "16x32bx2":
        offset = extra[0].value if extra and isinstance(extra[0], Imm) else None
        if offset != total * (2 if packed else 1):
            raise UnknownInstruction(
                f"{instr.opcode!r}: the second half starts at column {offset}; only {total} is known"
            )
    elif extra:
        raise UnknownInstruction(f"{instr.opcode!r}: operand {extra[0]} has no meaning here")
    return form


def _vector(operand: Any) -> Vec:
    return operand if isinstance(operand, Vec) else Vec((operand,))


def _place(warp: Warp, form: Form, address: Array) -> tuple[int, Region]:
    """First lane and region of an access: a warp reaches the 32 lanes of its quarter only."""
    if not (address == address[0]).all():
        raise Fault(f"the TMEM address differs between lanes of the warp: {address.tolist()[:4]} ...")
    lane, column = split_address(int(address[0]))
    quarter = warp.index % 4
    if lane // 32 not in (0, quarter) or lane >= 128:
        raise Fault(
            f"TMEM lane {lane} in the address: warp {warp.index} reaches lanes {32 * quarter} to {32 * quarter + 31}"
        )
    if lane % 32 % 16 or lane % 32 + form.access.height > 32:
        raise Fault(
            f"TMEM lane {lane} in the address; this shape starts at lane 0"
            + (" or 16" if form.access.height == 16 else "")
        )
    first = 32 * quarter + lane % 32
    return first, Region(column, column + form.columns, first // BAND, (first + form.access.height) // BAND)


@instruction("tcgen05.ld", kind=SYNC)
def tensor_load(instr: Instr) -> Bind:
    target = _vector(instr.operands[0])
    form = _read_form(instr, target, instr.operands[2:], "pack::16b")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, instr.operands[1])
        rows = np.array([item.index for item in target.items])

        def call() -> None:
            _check_warp(warp)
            _issue_load(warp, instr, form, address(), rows)

        return call

    return bind


def _check_warp(warp: Warp) -> None:
    if len(warp.active) != 32:
        raise Fault("tcgen05.ld and .st need all 32 lanes of the warp")


def _issue_load(warp: Warp, instr: Instr, form: Form, address: Array, rows: Array) -> None:
    tensor, what = tensor_of(warp.cta), describe(warp, instr)
    state, memory = tensor.of(warp), tensor.memory
    first, region = _place(warp, form, address)
    memory.check(region, warp.clock[0], what)
    memory.note_read(region, tensor.user(warp, what), IN_FLIGHT)
    memory.touch(region, warp.index, IN_FLIGHT)
    results: list[Array] = []

    def read() -> None:
        lanes, columns = first + form.access.lanes, region.start + form.access.columns
        if form.packed:
            columns = 2 * columns - region.start
            high = memory.data[lanes, columns + 1] << np.uint32(16)
            results.append(high | memory.data[lanes, columns] & np.uint32(0xFFFF))
        else:
            results.append(memory.data[lanes, columns])

    def done() -> None:
        memory.read[(warp.index, *region.cells)] = state.epoch
        memory.touch(region, warp.index, warp.epoch)

    serial = next_serial(warp)
    warp.registers.files["32"][rows] = tokens(serial, len(rows))
    work = AsyncOp("tcgen05", what, read)
    state.loads.append(Load(serial, work, results, done))
    warp.cta.gpu.submit(work)


@instruction("tcgen05.st", kind=SYNC)
def tensor_store(instr: Instr) -> Bind:
    source = _vector(instr.operands[-1])
    form = _read_form(instr, source, instr.operands[1:-1], "")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, instr.operands[0])
        rows = [warp.src(item, "u32") for item in source.items]

        def call() -> None:
            _check_warp(warp)
            _issue_store(warp, instr, form, address(), np.array(rows))

        return call

    return bind


def _issue_store(warp: Warp, instr: Instr, form: Form, address: Array, values: Array) -> None:
    tensor, what = tensor_of(warp.cta), describe(warp, instr)
    state, memory = tensor.of(warp), tensor.memory
    first, region = _place(warp, form, address)
    memory.check(region, warp.clock[0], what)
    memory.note_write(region, tensor.user(warp, what, lenient=True), IN_FLIGHT)
    memory.touch(region, warp.index, IN_FLIGHT)

    def write() -> None:
        memory.data[first + form.access.lanes, region.start + form.access.columns] = values

    def done() -> None:
        memory.written[region.cells] = state.epoch
        memory.touch(region, warp.index, warp.epoch)

    work = AsyncOp("tcgen05", what, write)
    state.stores.append((work, done))
    warp.effects += 1
    warp.cta.gpu.submit(work)


@instruction("tcgen05.wait::ld", kind=SYNC)
def wait_loads(instr: Instr) -> Bind:
    _wait_modifiers(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        return lambda: _finish_loads(warp, tensor_of(warp.cta).of(warp))

    return bind


def _wait_modifiers(instr: Instr) -> None:
    mods = Mods(instr, 2)
    mods.flag("sync", "aligned")
    mods.done()


def _finish_loads(warp: Warp, state: TensorWarp) -> None:
    loads, state.loads = state.loads, []
    if not loads:
        return
    results = {}
    for load in loads:
        load.work.run()
        load.done()
        results[load.serial] = load.results[0]
    wanted = {serial: values.size for serial, values in results.items()}
    resolve(warp, results, wanted)
    if any(missing > 0 for missing in wanted.values()):
        raise Race("a register that tcgen05.ld writes was overwritten before tcgen05.wait::ld; the result is lost")


@instruction("tcgen05.wait::st", kind=SYNC)
def wait_stores(instr: Instr) -> Bind:
    _wait_modifiers(instr)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            state = tensor_of(warp.cta).of(warp)
            stores, state.stores = state.stores, []
            for work, done in stores:
                work.run()
                done()

        return call

    return bind
