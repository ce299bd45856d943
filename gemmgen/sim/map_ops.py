"""Tensor maps as values that a kernel edits: tensormap.replace, tensormap.cp_fenceproxy, which publishes one, and the
fences of their proxy. What a field means is tensor_map_fields.py's, order is map_order.py's; this file moves bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .async_copy import lane_address, lane_value, per_lane
from .barrier_ops import lane_addresses, locate
from .control import active_bits
from .errors import Fault, UnknownInstruction
from .map_order import EVERY_LANE
from .memory_ops import Span, note_read, note_write, words_of
from .registry import SCOPES, SYNC, Bind, Call, Mods, instruction
from .shadow import EVERY_LANE as EVERY_SHARED_LANE
from .tensor_map import TENSOR_MAP_BYTES, replace_field
from .types import Array, Imm, Instr, Mask, dtype_of

if TYPE_CHECKING:
    from .warp import Warp

ALIGNMENT = 64
WIDE_FIELDS = ("global_address", "global_stride")
ORDINAL_FIELDS = ("box_dim", "global_dim", "global_stride", "element_stride")
FIELDS = (*ORDINAL_FIELDS, "global_address", "rank", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode")


@instruction("tensormap.replace")
def tensormap_replace(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    mods.flag("tile", "b1024")
    shared = mods.flag("shared::cta", "shared")
    mods.flag("global")
    field, ptx_type = mods.pick(FIELDS), mods.type()
    mods.done()
    with_ordinal = field in ORDINAL_FIELDS
    if not field or ptx_type != ("b64" if field in WIDE_FIELDS else "b32") or len(instr.operands) != 2 + with_ordinal:
        raise UnknownInstruction(
            f"{instr.opcode!r}: it names one field, with an ordinal for {', '.join(ORDINAL_FIELDS)}; "
            f"{' and '.join(WIDE_FIELDS)} are .b64, the others .b32"
        )

    def bind(warp: Warp, mask: Mask | None) -> Call:
        where = lane_address(warp, instr.operands[0])
        ordinal = lane_value(warp, instr.operands[1], "u32") if with_ordinal else None
        value = lane_value(warp, instr.operands[-1], dtype_of(ptx_type))

        def replace(lane: int) -> None:
            data = _edited(warp, lane, where(lane), shared)
            index = None if ordinal is None else ordinal(lane)
            data[:] = np.frombuffer(replace_field(data.tobytes(), field, index, value(lane)), np.uint8)

        return per_lane(warp, mask, replace)

    return bind


def _edited(warp: Warp, lane: int, address: int, shared: bool) -> Array:
    """The 128 bytes that a lane reads and writes as one memory operation of the generic proxy."""
    if address % ALIGNMENT:
        raise Fault(f"tensormap.replace: address {address:#x} is not a multiple of {ALIGNMENT} bytes")
    if not shared and address >> 32 in warp.cta.gpu.memory.blocks:
        return _published(warp, address, lane)
    span = _shared_map(warp, address, lane)
    note_read(warp, span, TENSOR_MAP_BYTES, None)
    note_write(warp, span, TENSOR_MAP_BYTES, None)
    return _bytes(span)


def _shared_map(warp: Warp, address: int, lane: int) -> Span:
    cta, offset = locate(warp, address)
    if cta is not warp.cta or offset + TENSOR_MAP_BYTES > cta.smem.nbytes:
        raise Fault(f"tensor map at shared address {address:#x}: it must lie in the CTA's own shared memory")
    return Span(cta.smem, cta, np.array([lane]), np.array([offset]))


def _bytes(span: Span) -> Array:
    offset = int(span.offsets[0])
    return span.block.data[offset : offset + TENSOR_MAP_BYTES]


def _published(warp: Warp, address: int, lane: int) -> Array:
    """The 128 bytes of a map in global memory, about to be written."""
    gpu = warp.cta.gpu
    data = gpu.memory.bytes_at(address, TENSOR_MAP_BYTES, write=True)
    if warp.unwaited:
        gpu.in_use.check_bytes(warp, lane, address, TENSOR_MAP_BYTES, write=True)
    if gpu.map_order is not None:
        gpu.map_order.written_whole(warp, address, lane)
    return data


def _check_size(instr: Instr, operand: Any) -> None:
    if not isinstance(operand, Imm) or operand.value != TENSOR_MAP_BYTES:
        raise UnknownInstruction(f"{instr.opcode!r}: the size must be {TENSOR_MAP_BYTES}")


@instruction("tensormap.cp_fenceproxy", kind=SYNC)
def tensormap_copy(instr: Instr) -> Bind:
    """The whole warp copies one map from shared to global memory and releases it to the tensor map proxy."""
    mods = Mods(instr, 2)
    mods.flag("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned")
    scope = mods.pick(SCOPES)
    mods.done()
    _check_size(instr, instr.operands[2])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, source = (lane_address(warp, operand) for operand in instr.operands[:2])

        def copy() -> None:
            warp.effects += 1
            span = _shared_map(warp, source(0), EVERY_SHARED_LANE)
            if span.offsets[0] % TENSOR_MAP_BYTES or target(0) % TENSOR_MAP_BYTES:
                raise Fault(
                    f"{instr.opcode}: from {source(0):#x} to {target(0):#x}; both must be multiples of "
                    f"{TENSOR_MAP_BYTES}"
                )
            warp.cta.shadow.generic_read(warp, words_of(span.offsets, TENSOR_MAP_BYTES), span.lanes[:, None])
            _published(warp, target(0), EVERY_LANE)[:] = _bytes(span)
            if warp.cta.gpu.map_order is not None:
                warp.cta.gpu.map_order.release(warp, warp.live, scope, target(0))
            warp.fence_clock = warp.clock.copy()

        return copy

    return bind


@instruction("fence.proxy.tensormap::generic")
def tensormap_fence(instr: Instr) -> Bind:
    """Release: what was written becomes available to copies. Acquire: a CTA's copies see what is at an address."""
    mods = Mods(instr, 3)
    semantics, scope = mods.pick(("release", "acquire")), mods.pick(SCOPES)
    mods.done()
    if not semantics or not scope or len(instr.operands) != (0 if semantics == "release" else 2):
        raise UnknownInstruction(f"{instr.opcode!r}: it is .release.scope, or .acquire.scope [address], 128")
    return _release(scope) if semantics == "release" else _acquire(instr, scope)


def _release(scope: str) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        def call() -> None:
            lanes = active_bits(warp, mask)
            if lanes and warp.cta.gpu.map_order is not None:
                warp.cta.gpu.map_order.release(warp, lanes, scope)
            if lanes:
                warp.fence_clock = warp.clock.copy()

        return call

    return bind


def _acquire(instr: Instr, scope: str) -> Bind:
    _check_size(instr, instr.operands[1])

    def bind(warp: Warp, mask: Mask | None) -> Call:
        targets = lane_addresses(warp, instr.operands[0], mask)

        def call() -> None:
            lanes: dict[int, int] = {}
            for lane, address in targets():
                lanes[address] = lanes.get(address, 0) | 1 << lane
            order = warp.cta.gpu.map_order
            for address, bits in lanes.items():
                seen = order is not None and order.acquire(warp, bits, scope, address)
                if seen:
                    warp.cta.maps.pop(address, None)

        return call

    return bind
