"""Bindings of the asynchronous copies: cp.async, cp.async.bulk, tensor copies and their groups, st.async.
They queue work with the GPU's schedule; how a box is laid out is tensor_map.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .barrier_ops import find_barrier
from .bulk import bulk_load, bulk_store, remote_stores, tensor_load, tensor_prefetch, tensor_store, wait_bulk
from .control import active_bits
from .errors import Fault, UnknownInstruction
from .machine import AsyncOp
from .memory import RANK_SHIFT
from .memory_ops import active_lanes, address_call, note_write, spans, words_of
from .registry import Bind, Call, Mods, instruction
from .types import Array, Imm, Instr, Mask, Mem, Vec, dtype_of

if TYPE_CHECKING:
    from .warp import Warp

_CACHE = ("L2::cache_hint",)
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
Scalars = Callable[[int], int]


def lane_value(warp: Warp, operand: Any, dtype: str) -> Scalars:
    row = warp.src(operand, dtype)
    return lambda lane: int(row[lane])


def lane_address(warp: Warp, operand: Mem) -> Scalars:
    address = address_call(warp, operand)
    return lambda lane: int(address()[lane])


def _coordinates(warp: Warp, operand: Mem, rank: int) -> Callable[[int], tuple[int, ...]]:
    if len(operand.coords) != 1 or not isinstance(operand.coords[0], Vec) or len(operand.coords[0].items) != rank:
        raise UnknownInstruction(f"tensor coordinates {operand.coords} do not fit a {rank}d copy")
    rows = [warp.src(item, "s32") for item in operand.coords[0].items]
    return lambda lane: tuple(int(row[lane]) for row in rows)


def per_lane(warp: Warp, mask: Mask | None, issue: Callable[[int], None]) -> Call:
    def call() -> None:
        warp.effects += 1
        for lane in active_lanes(mask).tolist():
            issue(lane)

    return call


@instruction("cp.async.bulk")
def cp_async_bulk(instr: Instr) -> Bind:
    mods = Mods(instr, 3)
    if mods.flag("commit_group"):
        return _commit(instr)
    if mods.flag("wait_group"):
        return _wait(instr, mods.flag("read"))
    if mods.flag("prefetch"):
        return _tensor_prefetch(instr, mods) if mods.flag("tensor") else lambda warp, mask: lambda: None
    if mods.flag("tensor"):
        return _tensor_copy(instr, mods, "")
    return _bulk_copy(instr, mods, "")


@instruction("cp.reduce.async.bulk")
def cp_reduce(instr: Instr) -> Bind:
    mods = Mods(instr, 4)
    tensor = mods.flag("tensor")
    operation = mods.pick(_REDUCTIONS)
    return _tensor_copy(instr, mods, operation) if tensor else _bulk_copy(instr, mods, operation)


def _tensor_copy(instr: Instr, mods: Mods, reduction: str) -> Bind:
    rank = int(mods.pick(("1d", "2d", "3d", "4d", "5d"), "0d")[0])
    mods.flag("tile", *_CACHE)
    multicast = mods.flag("multicast::cluster")
    pair = mods.pick(("cta_group::1", "cta_group::2")) == "cta_group::2"
    direction = tuple(p for p in mods.left if p.startswith(("shared", "global")))
    mods.left = [p for p in mods.left if p not in direction]
    completion = mods.pick(("mbarrier::complete_tx::bytes", "bulk_group"))
    mods.done()
    if direction[0] == "global":
        return _bind_tensor_store(instr, rank, reduction)
    if completion != "mbarrier::complete_tx::bytes" or reduction:
        raise UnknownInstruction(f"{instr.opcode!r}: a load completes on an mbarrier")
    return _bind_tensor_load(instr, rank, multicast, pair)


def _tensor_prefetch(instr: Instr, mods: Mods) -> Bind:
    rank = int(mods.pick(("1d", "2d", "3d", "4d", "5d"), "0d")[0])
    mods.flag("L2", "global", "tile", *_CACHE)
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        source = instr.operands[0]
        tensor, coords = lane_address(warp, Mem(source.base, source.offset)), _coordinates(warp, source, rank)
        return per_lane(warp, mask, lambda lane: tensor_prefetch(warp, instr, lane, tensor(lane), coords(lane)))

    return bind


def _bind_tensor_load(instr: Instr, rank: int, multicast: bool, pair: bool) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, source, barrier = instr.operands[:3]
        to, bar = lane_address(warp, target), lane_address(warp, barrier)
        tensor, coords = lane_address(warp, Mem(source.base, source.offset)), _coordinates(warp, source, rank)
        ranks = lane_value(warp, instr.operands[3], "u16") if multicast else None

        def issue(lane: int) -> None:
            chosen = None if ranks is None else ranks(lane)
            tensor_load(warp, instr, lane, to(lane), tensor(lane), coords(lane), bar(lane), chosen, pair)

        return per_lane(warp, mask, issue)

    return bind


def _bind_tensor_store(instr: Instr, rank: int, reduction: str) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, source = instr.operands[:2]
        tensor, coords = lane_address(warp, Mem(target.base, target.offset)), _coordinates(warp, target, rank)
        origin = lane_address(warp, source)

        def issue(lane: int) -> None:
            tensor_store(warp, instr, lane, origin(lane), tensor(lane), coords(lane), reduction)

        return per_lane(warp, mask, issue)

    return bind


def _bulk_copy(instr: Instr, mods: Mods, reduction: str) -> Bind:
    mods.flag(*_CACHE)
    multicast = mods.flag("multicast::cluster")
    mods.flag("noftz")
    direction = tuple(p for p in mods.left if p.startswith(("shared", "global")))
    mods.left = [p for p in mods.left if p not in direction]
    mods.pick(("mbarrier::complete_tx::bytes", "bulk_group"))
    element = mods.pick(("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"))
    mods.done()
    to_shared = direction[0] != "global"
    if to_shared and reduction:
        raise UnknownInstruction(f"{instr.opcode!r}: reductions into shared memory are not modelled")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        to, origin = (lane_address(warp, op) for op in instr.operands[:2])
        size = lane_value(warp, instr.operands[2], "u32")
        bar = lane_address(warp, instr.operands[3]) if to_shared else None
        ranks = lane_value(warp, instr.operands[4], "u16") if multicast else None

        def issue(lane: int) -> None:
            if bar is not None:
                from_shared = direction[1] != "global"
                chosen = None if ranks is None else ranks(lane)
                bulk_load(warp, instr, lane, to(lane), origin(lane), size(lane), bar(lane), from_shared, chosen)
            else:
                bulk_store(warp, instr, lane, to(lane), origin(lane), size(lane), reduction, element)

        return per_lane(warp, mask, issue)

    return bind


def _commit(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def commit(lane: int) -> None:
            copies = [*warp.out.bulk_open.pop(lane, []), *warp.out.map_uses.pop(lane, [])]
            warp.out.bulk_groups.setdefault(lane, []).append(copies)

        return per_lane(warp, mask, commit)

    return bind


def _wait(instr: Instr, read_only: bool) -> Bind:
    keep = instr.operands[0].value

    def bind(warp: Warp, mask: Mask | None) -> Call:
        return per_lane(warp, mask, lambda lane: wait_bulk(warp, lane, keep, read_only))

    return bind


# cp.async of a few bytes per thread


@instruction("cp.async")
def cp_async(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    if mods.flag("commit_group"):
        return lambda warp, mask: lambda: _commit_copies(warp, mask)
    if mods.flag("wait_group"):
        keep = instr.operands[0].value
        return lambda warp, mask: lambda: _wait_copies(warp, keep)
    if mods.flag("wait_all"):
        return lambda warp, mask: lambda: _wait_all_copies(warp, mask)
    if mods.flag("mbarrier"):
        return _copy_arrive(instr, mods)
    mods.flag("ca", "cg", "shared", "shared::cta", "global", "L2::128B", "L2::256B", "L2::64B", *_CACHE)
    mods.done()
    return _small_copy(instr)


def _small_copy(instr: Instr) -> Bind:
    nbytes = instr.operands[2].value
    has_size = len(instr.operands) > 3 and (isinstance(instr.operands[3], Imm) or instr.operands[3].kind == "32")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        to, origin = address_call(warp, instr.operands[0]), address_call(warp, instr.operands[1])
        size = warp.src(instr.operands[3], "u32") if has_size else None

        def call() -> None:
            lanes = active_lanes(mask)
            if not lanes.size:
                return
            warp.effects += 1
            targets, sources = to()[lanes], origin()[lanes].copy()
            valid = np.full(lanes.size, nbytes) if size is None else np.minimum(size[lanes], nbytes)
            if warp.unwaited:
                for lane, source, count in zip(lanes.tolist(), sources.tolist(), valid.tolist(), strict=True):
                    if count:
                        warp.cta.gpu.in_use.check_bytes(warp, lane, source, count)
            words = np.unique(words_of((targets - warp.cta.shared_base).astype(np.int64), nbytes))
            action = _small_action(warp, lanes, targets, sources, valid, nbytes, words)
            op = AsyncOp("cp_async", instr.text[:80], action)
            warp.out.copy_open.append((op, words))
            warp.cta.gpu.submit(op)

        return call

    return bind


def _small_action(
    warp: Warp, lanes: Array, targets: Array, sources: Array, valid: Array, nbytes: int, words: Array
) -> Callable[[], None]:
    def action() -> None:
        data = np.zeros((lanes.size, nbytes), np.uint8)
        memory = warp.cta.gpu.memory
        for row, (address, count) in enumerate(zip(sources.tolist(), valid.tolist(), strict=True)):
            if count:
                if address % nbytes:
                    raise Fault(f"cp.async: source address {address:#x} is not a multiple of {nbytes}")
                data[row, :count] = memory.bytes_at(address, count)
        for span in spans(warp, "shared", targets, lanes, nbytes, nbytes):
            note_write(warp, span, nbytes, None)
            span.block.data[span.offsets[:, None] + np.arange(nbytes)] = data
        warp.cta.shadow.in_flight(words)

    return action


def _commit_copies(warp: Warp, mask: Mask | None) -> None:
    if active_bits(warp, mask):
        warp.out.copy_groups.append(warp.out.copy_open)
        warp.out.copy_open = []


def _wait_copies(warp: Warp, keep: int) -> None:
    done = len(warp.out.copy_groups) - keep
    for group in warp.out.copy_groups[: max(done, 0)]:
        _land_copies(warp, group)
    warp.out.copy_groups = warp.out.copy_groups[max(done, 0) :]


def _wait_all_copies(warp: Warp, mask: Mask | None) -> None:
    _commit_copies(warp, mask)
    _wait_copies(warp, 0)


def _land_copies(warp: Warp, copies: list[tuple[AsyncOp, Array]]) -> None:
    for op, words in copies:
        op.run()
        warp.cta.shadow.landed(warp, words)


def _copy_arrive(instr: Instr, mods: Mods) -> Bind:
    """cp.async.mbarrier.arrive: arrives when the copies issued so far by the thread have landed."""
    mods.flag("arrive", "shared", "shared::cta", "b64")
    noinc = mods.flag("noinc")
    mods.done()

    def bind(warp: Warp, mask: Mask | None) -> Call:
        where = lane_address(warp, instr.operands[0])

        def call() -> None:
            lanes = active_lanes(mask).tolist()
            if not lanes:
                return
            warp.effects += 1
            before = [copy for group in warp.out.copy_groups for copy in group] + list(warp.out.copy_open)
            barriers = [find_barrier(warp, where(lane)) for lane in lanes]
            for barrier in barriers:
                if not noinc:
                    barrier.pending += 1

            def arrive() -> None:
                _land_copies(warp, before)
                done = {id(op) for op, _ in before}
                warp.out.copy_open = [copy for copy in warp.out.copy_open if id(copy[0]) not in done]
                clock = warp.release()
                for barrier in barriers:
                    barrier.arrive(clock)

            warp.cta.gpu.submit(AsyncOp("cp_async", instr.text[:80], arrive))

        return call

    return bind


# st.async


@instruction("st.async")
def store_async(instr: Instr) -> Bind:
    """Registers to another CTA's shared memory, completing their bytes on an mbarrier there."""
    mods = Mods(instr, 2)
    mods.flag("weak", "shared::cluster", "mbarrier::complete_tx::bytes")
    mods.pick(("v2", "v4"))
    ptx_type = mods.type()
    mods.done()
    dtype = dtype_of(ptx_type)
    values = instr.operands[1].items if isinstance(instr.operands[1], Vec) else (instr.operands[1],)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        to, bar = address_call(warp, instr.operands[0]), address_call(warp, instr.operands[2])
        rows = [warp.src(value, dtype) for value in values]

        def call() -> None:
            lanes = active_lanes(mask)
            if not lanes.size:
                return
            warp.effects += 1
            data = np.stack([row[lanes] for row in rows], axis=1).view(np.uint8)
            targets, barriers = to()[lanes], bar()[lanes]
            meant = np.stack([targets >> RANK_SHIFT, barriers], axis=1)
            for one in np.unique(meant, axis=0):
                chosen = (meant == one).all(1)
                remote_stores(warp, instr, targets[chosen], data[chosen], int(one[1]))

        return call

    return bind
