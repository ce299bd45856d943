"""The work behind bulk and tensor copies: what is read when, what is written when, and who learns of it.
It queues AsyncOps and talks to the shadow; operand decoding is async_copy.py's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .barrier_ops import find_barrier, locate
from .errors import Fault
from .machine import AsyncOp, Cta
from .map_order import MapUse
from .memory import PARAM_WINDOW, SHARED_START, SHARED_WINDOW
from .shadow import Shadow
from .swizzle import SPAN_BYTES, SmemSwizzle
from .tensor_map import (
    TensorMap,
    check_coordinates,
    decode_tensor_map,
    gather_box,
    load_shared_box,
    reduce_box,
    scatter_box,
    store_shared_box,
)
from .types import Array, Instr

if TYPE_CHECKING:
    from .warp import Warp


@dataclass(eq=False)
class BulkStore:
    """A store in a bulk group: reads shared memory first, writes global memory later."""

    read: AsyncOp
    write: AsyncOp
    shadow: Shadow
    words: slice
    use: MapUse | None = None
    waited_read: bool = False

    def wait(self, warp: Warp, lane: int, read_only: bool) -> None:
        """Its group has been waited for."""
        self.read.run()
        if not self.waited_read:
            self.waited_read = True
            self.shadow.async_read_done(warp, self.words)
            warp.waited.append((lane, self.words, warp.epoch))
            if self.use is not None:
                self.use.wait(warp, lane, read_only)
        if not read_only:
            self.write.run()


def load_map(warp: Warp, instr: Instr, lane: int, address: int) -> tuple[TensorMap, MapUse | None]:
    """The tensor map at an address, through the CTA's descriptor cache, and its use when global memory holds it."""
    if address % 64:
        raise Fault(f"tensor map address {address:#x} is not a multiple of 64 bytes")
    if SHARED_START <= address < 1 << 32 or address >> 32 == SHARED_WINDOW >> 32:
        raise Fault(f"tensor map address {address:#x} is in shared memory; copy the map to global memory first")
    order, use = warp.cta.gpu.map_order, None
    if address >> 32 != PARAM_WINDOW >> 32 and order is not None:
        use = order.use(warp, lane, address, _what(warp, instr))
    data = warp.cta.maps.get(address)
    if data is None:
        data = warp.cta.maps[address] = _map_data(warp, address)
    return decode_tensor_map(data), use


def _map_data(warp: Warp, address: int) -> bytes:
    if address >> 32 == PARAM_WINDOW >> 32:
        block = warp.cta.program.params
        offset = address - block.base
        return block.data[offset : offset + 128].tobytes()
    return warp.cta.gpu.memory.bytes_at(address, 128).tobytes()


def _box_words(tensor: TensorMap, offset: int) -> slice:
    pitch = tensor.shared_inner_bytes if tensor.swizzle is SmemSwizzle.NONE else SPAN_BYTES[tensor.swizzle]
    return slice(offset // 4, (offset + tensor.rows * pitch) // 4)


def _ranks(warp: Warp, own: int, mask: int | None) -> list[int]:
    if mask is None:
        return [own]
    ranks = [rank for rank in range(16) if mask >> rank & 1]
    if not ranks or ranks[-1] >= warp.cta.cluster.size:
        raise Fault(f"multicast mask {mask:#x} in a cluster of {warp.cta.cluster.size} CTAs")
    return ranks


def _what(warp: Warp, instr: Instr) -> str:
    return f"{instr.base} copy issued by {warp.who()} (PTX line {instr.line})"


def tensor_load(
    warp: Warp,
    instr: Instr,
    lane: int,
    target: int,
    map_address: int,
    coords: tuple[int, ...],
    barrier: int,
    mask: int | None,
    pair: bool,
) -> None:
    """Global memory to the box's place in one or several CTAs, completing on a barrier there, or of the CTA's pair."""
    tensor, use = load_map(warp, instr, lane, map_address)
    check_coordinates(tensor, coords)
    block = warp.cta.gpu.memory.at(tensor.address)
    if warp.unwaited:
        warp.cta.gpu.in_use.check_box(warp, lane, tensor, coords)

    def fetch() -> Array:
        return gather_box(tensor, coords, block.data, block.base)

    def write(cta: Cta, offset: int) -> None:
        store_shared_box(tensor, cta.smem.data, offset, fetch())

    _check_target(warp, target, 128)
    landed = None
    if use is not None:
        use.parts = 1 if mask is None else mask.bit_count()
        warp.out.map_uses.setdefault(lane, []).append(use)
        landed = use.land
    landing = Landing(tensor.transaction_bytes, lambda at: _box_words(tensor, at), write, pair=pair, landed=landed)
    queue_landings(warp, instr, target, barrier, mask, landing)


def tensor_prefetch(warp: Warp, instr: Instr, lane: int, map_address: int, coords: tuple[int, ...]) -> None:
    """A box that L2 is asked for: nothing but the launch's report tells."""
    tensor, _ = load_map(warp, instr, lane, map_address)
    check_coordinates(tensor, coords)
    warp.cta.gpu.report.fetched.append((tensor.address, coords))


def bulk_load(
    warp: Warp,
    instr: Instr,
    lane: int,
    target: int,
    source: int,
    size: int,
    barrier: int,
    from_shared: bool,
    mask: int | None,
) -> None:
    """Bytes from global memory, or from the own shared memory, to one or several CTAs."""
    if size % 16 or source % 16 or target % 16:
        raise Fault(f"cp.async.bulk: size {size}, source {source:#x} and target {target:#x} must be multiples of 16")
    if not size:
        return
    if warp.unwaited and not from_shared:
        warp.cta.gpu.in_use.check_bytes(warp, lane, source, size)
    clock = warp.clock.copy()

    def fetch() -> Array:
        if not from_shared:
            return warp.cta.gpu.memory.bytes_at(source, size)
        cta, offset = locate(warp, source)
        cta.shadow.async_read(clock, warp.number, slice(offset // 4, (offset + size) // 4), _what(warp, instr))
        cta.shadow.async_read_done(warp, slice(offset // 4, (offset + size) // 4))
        return cta.smem.data[offset : offset + size].copy()

    def write(cta: Cta, offset: int) -> None:
        if offset + size > cta.smem.nbytes:
            raise IndexError(f"cp.async.bulk: {size} bytes at shared offset {offset} of {cta.smem.nbytes}")
        cta.smem.data[offset : offset + size] = fetch()

    def words(at: int) -> slice:
        return slice(at // 4, (at + size) // 4)

    queue_landings(warp, instr, target, barrier, mask, Landing(size, words, write))


def remote_stores(warp: Warp, instr: Instr, targets: Array, data: Array, barrier: int) -> None:
    """A few bytes of each of some lanes to shared memory of one CTA, by the generic proxy; they land together."""
    size = data.shape[1]
    for target in targets.tolist():
        _check_target(warp, target, size)
    first = int(targets.min())
    places = (targets - first)[:, None] + np.arange(size)
    steps = np.unique(places // 4)

    def write(cta: Cta, offset: int) -> None:
        cta.smem.data[offset + places] = data

    def words(at: int) -> Array:
        result: Array = at // 4 + steps
        return result

    queue_landings(warp, instr, first, barrier, None, Landing(data.size, words, write, generic=True))


def _check_target(warp: Warp, target: int, align: int) -> None:
    _, offset = locate(warp, target)
    if offset % align:
        raise Fault(f"shared address {target:#x} of an asynchronous write must be a multiple of {align} bytes")


@dataclass(frozen=True)
class Landing:
    """Bytes that an asynchronous operation writes to shared memory, and which words of a CTA they are.

    With pair (cta_group::2) the barrier is in the CTA of each destination's pair whose rank is as odd as the barrier's.
    """

    nbytes: int
    words: Callable[[int], Any]
    write: Callable[[Cta, int], None]
    generic: bool = False
    pair: bool = False
    landed: Callable[[int, int], None] | None = None  # told the barrier's clock component and phase


def queue_landings(warp: Warp, instr: Instr, target: int, barrier: int, mask: int | None, landing: Landing) -> None:
    """One AsyncOp per destination CTA: write, tell the shadow, complete the bytes on that CTA's barrier."""
    cta, offset = locate(warp, target)
    bar_cta, bar_offset = locate(warp, barrier)
    if bar_cta is not cta and mask is None and not (landing.pair and bar_cta.rank ^ 1 == cta.rank):
        raise Fault(f"{bar_cta.shared(bar_offset)}: the mbarrier of a copy must be in the destination's CTA")
    find_barrier(warp, barrier).check_fenced("the async proxy")
    clock, what = warp.clock.copy(), _what(warp, instr)
    for rank in _ranks(warp, cta.rank, mask):
        destination = holder = warp.cta.cluster.cta(rank)
        if landing.pair:
            holder = warp.cta.cluster.cta(rank & ~1 | bar_cta.rank & 1)

        def land(destination: Cta = destination, holder: Cta = holder) -> None:
            _check_running(destination, holder)
            signal = holder.mbarrier(bar_offset)
            component, phase = signal.component, signal.phase + 1
            landing.write(destination, offset)
            destination.shadow.async_write(clock, landing.words(offset), component, phase, what, landing.generic)
            signal.complete(landing.nbytes, clock)
            if landing.landed is not None:
                landing.landed(component, phase)

        warp.cta.gpu.submit(AsyncOp("load", what, land))


def _check_running(*ctas: Cta) -> None:
    for cta in ctas:
        if cta.exited:
            raise Fault(f"it lands in shared memory of CTA {cta.position}, which has already exited")


def tensor_store(
    warp: Warp, instr: Instr, lane: int, source: int, map_address: int, coords: tuple[int, ...], reduction: str
) -> None:
    """The box from shared to global memory, or combined into it."""
    tensor, use = load_map(warp, instr, lane, map_address)
    check_coordinates(tensor, coords)
    if min(coords) < 0:
        raise Fault(f"a tensor store at {coords}: an H100 traps on a negative coordinate; only loads may start outside")
    cta, offset = _own_shared(warp, source, 128)
    block = warp.cta.gpu.memory.at(tensor.address)
    if not block.writable:
        raise Fault(f"{block.name}: tensor store to memory mapped read-only")
    if warp.unwaited:
        warp.cta.gpu.in_use.check_box(warp, lane, tensor, coords, write=True)

    def read() -> Array:
        return load_shared_box(tensor, cta.smem.data, offset)

    def write(box: Array) -> None:
        if reduction:
            reduce_box(tensor, coords, block.data, block.base, box, reduction)
        else:
            scatter_box(tensor, coords, block.data, block.base, box)

    _queue_store(warp, instr, lane, cta, _box_words(tensor, offset), read, write).use = use


_BULK_TYPES: dict[str, Any] = {"u32": np.uint32, "b32": np.uint32, "s32": np.int32, "f32": np.float32}
_BULK_TYPES |= {"u64": np.uint64, "b64": np.uint64, "s64": np.int64, "f64": np.float64, "f16": np.float16}
_COMBINE: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
_COMBINE |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def bulk_store(
    warp: Warp, instr: Instr, lane: int, target: int, source: int, size: int, reduction: str, element: str
) -> None:
    """Bytes from shared to global memory, or combined into it element by element."""
    if size % 16 or target % 16:
        raise Fault(f"cp.async.bulk: size {size} and target {target:#x} must be multiples of 16")
    cta, offset = _own_shared(warp, source, 16)
    if warp.unwaited:
        warp.cta.gpu.in_use.check_bytes(warp, lane, target, size, write=True)

    def read() -> Array:
        if offset + size > cta.smem.nbytes:
            raise IndexError(f"cp.async.bulk: {size} bytes at shared offset {offset} of {cta.smem.nbytes}")
        return cta.smem.data[offset : offset + size].copy()

    def write(data: Array) -> None:
        place = warp.cta.gpu.memory.bytes_at(target, size, write=True)
        if (maps := warp.cta.gpu.map_order) is not None:
            block = warp.cta.gpu.memory.at(target)
            maps.written_by_copy(block, target - block.base, size)
        if not reduction:
            place[:] = data
        elif element == "bf16":
            place[:] = reduce_bf16(place, data, reduction)
        else:
            values = place.copy().view(_BULK_TYPES[element])
            place[:] = _COMBINE[reduction](values, data.view(_BULK_TYPES[element])).view(np.uint8)

    _queue_store(warp, instr, lane, cta, slice(offset // 4, (offset + size) // 4), read, write)


def reduce_bf16(old: Array, new: Array, reduction: str) -> Array:
    """Element-wise combination of bf16 bytes."""
    from .packed import narrow, widen

    a, b = (widen(x.copy().view(np.uint16)).astype(np.float64) for x in (old, new))
    return narrow(_COMBINE[reduction](a, b), "bf16").view(np.uint8)


def _own_shared(warp: Warp, address: int, align: int) -> tuple[Cta, int]:
    cta, offset = locate(warp, address)
    if cta is not warp.cta:
        raise Fault(f"shared address {address:#x} belongs to CTA {cta.position}; a store reads the CTA's own memory")
    if offset % align:
        raise Fault(f"shared address {address:#x} of a copy must be a multiple of {align} bytes")
    return cta, offset


def _queue_store(
    warp: Warp,
    instr: Instr,
    lane: int,
    cta: Cta,
    words: slice,
    read: Callable[[], Array],
    write: Callable[[Array], None],
) -> BulkStore:
    what = _what(warp, instr)
    cta.shadow.check_issuer(warp, lane, words, what)
    cta.shadow.async_read(warp.clock, warp.number, words, what)
    box: list[Array] = []
    reading = AsyncOp("bulk_store", what, lambda: box.append(read()))

    def finish() -> None:
        reading.run()
        write(box[0])

    writing = AsyncOp("bulk_store", what, finish)
    gpu = cta.gpu
    gpu.submit(reading)
    gpu.submit(writing)
    store = BulkStore(reading, writing, cta.shadow, words)
    warp.out.bulk_open.setdefault(lane, []).append(store)
    return store


def wait_bulk(warp: Warp, lane: int, keep: int, read_only: bool) -> None:
    """All but the latest keep groups have been read (and, unless read_only, written)."""
    groups = warp.out.bulk_groups.get(lane, [])
    done = max(len(groups) - keep, 0)
    for group in groups[:done]:
        for copy in group:
            copy.wait(warp, lane, read_only)
    if not read_only:
        warp.out.bulk_groups[lane] = groups[done:]
