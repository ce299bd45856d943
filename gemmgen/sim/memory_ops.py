"""Loads and stores of every state space, generic addresses included.
It resolves lanes to blocks and asks the shadow about order; atomics live in atomics.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Fault, OutOfBounds, UnknownInstruction
from .global_order import ORDERED, Order, order_of
from .memory import LOCAL_WINDOW, PARAM_WINDOW, RANK_SHIFT, SHARED_WINDOW, Block
from .registry import CACHE_HINTS, SCOPES, Bind, Call, Mods, instruction
from .types import DTYPES, LANES, Array, Instr, Mask, Mem, Reg, Sym, Vec, Void, bits_of, dtype_of
from .values import UNSIGNED

if TYPE_CHECKING:
    from .machine import Cta
    from .warp import Warp

SPACES = (
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
    "const",
)
_ALL_LANES = np.arange(LANES)


def address_call(warp: Warp, operand: Mem) -> Callable[[], Array]:
    """A call that gives the 32 lane addresses of `[base+offset]` as int64."""
    base = operand.base
    if isinstance(base, Reg):
        row = warp.row(base, "u64" if base.kind == "64" else "u32")
        offset = np.int64(operand.offset)
        return lambda: row.astype(np.int64) + offset
    fixed = warp.src(base, "u64").astype(np.int64) + operand.offset
    return lambda: fixed


def space_of(mods: Mods, operand: Mem, warp: Warp) -> str:
    """The state space named by the modifiers; generic when none is."""
    return mods.pick(SPACES, "generic")


class Span:
    """Lanes of one access that fall into one block: their offsets there, and the CTA when it is shared memory."""

    __slots__ = ("block", "cta", "lanes", "offsets")

    def __init__(self, block: Block, cta: Cta | None, lanes: Array, offsets: Array) -> None:
        self.block = block
        self.cta = cta
        self.lanes = lanes
        self.offsets = offsets


def spans(warp: Warp, space: str, addresses: Array, lanes: Array, nbytes: int, align: int) -> Iterator[Span]:
    """Resolve the addresses of the given lanes, checked for bounds and alignment."""
    if space == "generic":
        yield from _generic(warp, addresses, lanes, nbytes, align)
    elif space.startswith("shared"):
        yield from _shared(warp, space, addresses, lanes, nbytes, align)
    elif space == "local":
        yield Span(local_block(warp), None, lanes, _local_offsets(warp, addresses, lanes, nbytes, align))
    elif space.startswith("param"):
        block = warp.cta.program.params
        yield Span(block, None, lanes, block.offsets(addresses + PARAM_WINDOW, nbytes, align))
    else:
        yield from _global(warp, addresses, lanes, nbytes, align)


def _generic(warp: Warp, addresses: Array, lanes: Array, nbytes: int, align: int) -> Iterator[Span]:
    windows = addresses >> 32
    for window in np.unique(windows).tolist():
        chosen = windows == window
        part, who = addresses[chosen], lanes[chosen]
        if window == SHARED_WINDOW >> 32:
            yield from _shared(warp, "shared::cluster", part & 0xFFFFFFFF, who, nbytes, align)
        elif window == LOCAL_WINDOW >> 32:
            yield Span(local_block(warp), None, who, _local_offsets(warp, part - LOCAL_WINDOW, who, nbytes, align))
        elif window == PARAM_WINDOW >> 32:
            block = warp.cta.program.params
            yield Span(block, None, who, block.offsets(part, nbytes, align))
        else:
            yield from _global(warp, part, who, nbytes, align)


def _global(warp: Warp, addresses: Array, lanes: Array, nbytes: int, align: int) -> Iterator[Span]:
    memory = warp.cta.gpu.memory
    block = memory.at(int(addresses[0]))
    try:
        yield Span(block, None, lanes, block.offsets(addresses, nbytes, align))
        return
    except OutOfBounds:
        windows = addresses >> 32
        if (windows == windows[0]).all():
            raise
    for window in np.unique(windows).tolist():
        chosen = windows == window
        block = memory.at(window << 32)
        yield Span(block, None, lanes[chosen], block.offsets(addresses[chosen], nbytes, align))


def _shared(warp: Warp, space: str, addresses: Array, lanes: Array, nbytes: int, align: int) -> Iterator[Span]:
    cta = warp.cta
    if cta.cluster.size == 1:
        yield Span(cta.smem, cta, lanes, cta.smem.offsets(addresses, nbytes, align))
        return
    ranks = addresses >> RANK_SHIFT
    if (ranks == cta.rank).all():
        yield Span(cta.smem, cta, lanes, cta.smem.offsets(addresses, nbytes, align))
        return
    for rank in np.unique(ranks).tolist():
        if rank != cta.rank and space != "shared::cluster":
            raise Fault(
                f"shared address {int(addresses[0]):#x} belongs to CTA rank {rank}; .{space} reaches only its own, "
                f"rank {cta.rank}"
            )
        target = cta.cluster.cta(rank)
        chosen = ranks == rank
        yield Span(target.smem, target, lanes[chosen], target.smem.offsets(addresses[chosen], nbytes, align))


def local_block(warp: Warp) -> Block:
    """Local memory of the warp: one stretch per lane."""
    if warp.local is None:
        warp.local = Block("local memory", 0, np.full(max(warp.cta.program.local_bytes, 16) * LANES, 0xFF, np.uint8))
    result: Block = warp.local
    return result


def _local_offsets(warp: Warp, addresses: Array, lanes: Array, nbytes: int, align: int) -> Array:
    size = max(warp.cta.program.local_bytes, 16)
    one = Block("local memory of a thread", 0, np.zeros(size, np.uint8))
    result: Array = one.offsets(addresses, nbytes, align) + lanes * size
    return result


def words_of(offsets: Array, nbytes: int) -> Array:
    """Word numbers of accesses of nbytes, [lanes] or [lanes, words]."""
    first = offsets >> 2
    return first if nbytes <= 4 else first[:, None] + np.arange(nbytes // 4)


def note_read(warp: Warp, span: Span, nbytes: int, ordered: Order | None) -> None:
    """Tell the shadow about a shared-memory load; of a global one those who keep order and watch kernels ahead."""
    if span.cta is None:
        if warp.unwaited:
            warp.cta.gpu.in_use.check_lanes(warp, span, nbytes)
        if (order := warp.cta.gpu.global_order) is not None:
            if ordered:
                order.touch(warp, span, nbytes, ordered, reads=True, writes=False)
            else:
                order.read(warp, span.block, span.offsets, span.lanes, nbytes)
        return
    if ordered:
        warp.acquire(span.cta.flag_clock)
        return
    lanes = span.lanes.astype(np.int8)
    warp.readers |= _lane_bits(lanes)
    span.cta.shadow.generic_read(warp, words_of(span.offsets, nbytes), lanes if nbytes <= 4 else lanes[:, None])


def note_write(warp: Warp, span: Span, nbytes: int, ordered: Order | None) -> None:
    """Tell the shadow about a shared store; of a global one those who watch order, tensor maps and kernels ahead."""
    if span.cta is None:
        if not span.block.writable:
            raise Fault(f"{span.block.name}: store at offset {int(span.offsets[0])} to memory mapped read-only")
        if warp.unwaited:
            warp.cta.gpu.in_use.check_lanes(warp, span, nbytes, write=True)
        if (maps := warp.cta.gpu.map_order) is not None:
            maps.written(warp, span.block, span.offsets, span.lanes)
        if (order := warp.cta.gpu.global_order) is not None:
            if ordered:
                order.touch(warp, span, nbytes, ordered, reads=False, writes=True)
            else:
                order.write(warp, span.block, span.offsets, span.lanes, nbytes)
        return
    words = words_of(span.offsets, nbytes)
    if ordered:
        np.maximum(span.cta.flag_clock, warp.release(), out=span.cta.flag_clock)
        span.cta.shadow.forget(words)
        return
    lanes = span.lanes.astype(np.int8)
    bits = _lane_bits(lanes)
    warp.writers |= bits
    warp.late_writers |= bits
    span.cta.shadow.generic_write(warp, words, lanes if nbytes <= 4 else lanes[:, None], nbytes >= 4)


def _lane_bits(lanes: Array) -> int:
    """Lane numbers as a mask; a negative number stands for all lanes."""
    if lanes.size == LANES or (lanes.size and lanes[0] < 0):
        return 0xFFFFFFFF
    bits = 0
    for lane in lanes.tolist():
        bits |= 1 << lane
    return bits


def active_lanes(mask: Mask | None) -> Array:
    return _ALL_LANES if mask is None else np.flatnonzero(mask)


def _register_rows(warp: Warp, operand: Any, ptx_type: str, load: bool) -> list[Array | None]:
    """Register rows of a scalar or vector operand, as raw bits (loads extend into wider registers)."""
    items = operand.items if isinstance(operand, Vec) else (operand,)
    rows: list[Array | None] = []
    for item in items:
        if isinstance(item, Void):
            rows.append(None)
        elif isinstance(item, Reg):
            if load and item.kind in UNSIGNED:
                signed = "s" if ptx_type.startswith("s") else "u"
                rows.append(warp.row(item, signed + item.kind))
            else:
                rows.append(warp.row(item, "b128" if ptx_type == "b128" else f"u{bits_of(ptx_type)}"))
        else:
            rows.append(warp.src(item, dtype_of(ptx_type)).view(f"u{bits_of(ptx_type) // 8}"))
    return rows


def _element(ptx_type: str) -> tuple[int, Any]:
    """Bytes and numpy type of one memory element; signed ones sign-extend."""
    size = bits_of(ptx_type) // 8
    return size, DTYPES[f"{'s' if ptx_type.startswith('s') else 'u'}{8 * size}"] if size <= 8 else np.uint64


@instruction("ld", "ldu")
def load(instr: Instr) -> Bind:
    mods = Mods(instr)
    ordered = order_of(instr)
    mods.flag(*ORDERED, *SCOPES, *CACHE_HINTS)
    mods.flag("unified", "weak", "sc")
    space = mods.pick(SPACES, "generic")
    count = int(mods.pick(("v2", "v4", "v8"), "v1")[1:])
    ptx_type = mods.type()
    mods.done()
    target, source = instr.operands[:2]
    if space.startswith("param") and isinstance(source.base, Sym):
        return _load_param(target, source, ptx_type, count)
    size, element = _element(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, source)
        rows = _register_rows(warp, target, ptx_type, load=True)

        def call() -> None:
            lanes = active_lanes(mask)
            if not lanes.size:
                return
            where = address() if mask is None else address()[lanes]
            for span in spans(warp, space, where, lanes, size * count, size * count):
                note_read(warp, span, size * count, ordered)
                _gather(span, rows, size, element)

        return call

    if ptx_type == "b128":
        return _load_b128(instr, space)
    return bind


def _gather(span: Span, rows: list[Array | None], size: int, element: Any) -> None:
    view = span.block.view(size)
    index = span.offsets // size
    whole = span.lanes.size == LANES
    for i, row in enumerate(rows):
        if row is not None:
            values = view[index + i].view(element)
            if whole:
                row[:] = values
            else:
                row[span.lanes] = values


def _load_b128(instr: Instr, space: str) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, instr.operands[1])
        row = warp.row(instr.operands[0], "b128")

        def call() -> None:
            lanes = active_lanes(mask)
            for span in spans(warp, space, address()[lanes], lanes, 16, 16) if lanes.size else ():
                note_read(warp, span, 16, None)
                index = (span.offsets // 8)[:, None] + np.arange(2)
                row[span.lanes] = span.block.view(8)[index]

        return call

    return bind


def _load_param(target: Any, source: Mem, ptx_type: str, count: int) -> Bind:
    """A parameter at a fixed offset: the same value for every lane."""
    size, element = _element(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        program = warp.cta.program
        variable = program.variable(source.base.name)
        rows = _register_rows(warp, target, ptx_type, load=True)
        if variable not in program.entry.params:
            return lambda: _clear(rows)
        offset = variable.offset + source.base.offset + source.offset
        program.params.offsets(np.array([program.params.base + offset]), size * count, size * count)
        values = program.params.view(size)[offset // size : offset // size + count].view(element)
        pairs = [(row, value) for row, value in zip(rows, values, strict=True) if row is not None]
        where: Any = True if mask is None else mask

        def call() -> None:
            for row, value in pairs:
                np.copyto(row, value, "unsafe", where)

        return call

    return bind


def _clear(rows: list[Array | None]) -> None:
    for row in rows:
        if row is not None:
            row.fill(0)


@instruction("st")
def store(instr: Instr) -> Bind:
    mods = Mods(instr)
    ordered = order_of(instr)
    mods.flag(*ORDERED, *SCOPES, *CACHE_HINTS)
    mods.flag("weak", "sc")
    if mods.flag("async", "bulk"):
        raise UnknownInstruction(f"{instr.opcode!r}: st.async is not modelled")
    space = mods.pick(SPACES, "generic")
    count = int(mods.pick(("v2", "v4", "v8"), "v1")[1:])
    ptx_type = mods.type()
    mods.done()
    target, source = instr.operands[:2]
    if space.startswith("param"):
        return _store_param(target, source, ptx_type)
    if ptx_type == "b128":
        return _store_b128(target, source, space)
    size, _ = _element(ptx_type)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        address = address_call(warp, target)
        rows = _register_rows(warp, source, ptx_type, load=False)

        def call() -> None:
            lanes = active_lanes(mask)
            if not lanes.size:
                return
            warp.effects += 1
            where = address() if mask is None else address()[lanes]
            for span in spans(warp, space, where, lanes, size * count, size * count):
                note_write(warp, span, size * count, ordered)
                view, index = span.block.view(size), span.offsets // size
                for i, row in enumerate(rows):
                    if row is not None:
                        view[index + i] = row[span.lanes]

        return call

    return bind


def _store_b128(target: Mem, source: Any, space: str) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        address, row = address_call(warp, target), warp.row(source, "b128")

        def call() -> None:
            lanes = active_lanes(mask)
            warp.effects += 1
            for span in spans(warp, space, address()[lanes], lanes, 16, 16) if lanes.size else ():
                note_write(warp, span, 16, None)
                span.block.view(8)[(span.offsets // 8)[:, None] + np.arange(2)] = row[span.lanes]

        return call

    return bind


def _store_param(target: Mem, source: Any, ptx_type: str) -> Bind:
    """An argument of a call."""

    def bind(warp: Warp, mask: Mask | None) -> Call:
        row = warp.src(source, f"u{bits_of(ptx_type)}")

        def call() -> None:
            warp.call_params[f"{target.base.name}+{target.base.offset}"] = row.copy()

        return call

    return bind
