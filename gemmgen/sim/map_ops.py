"""Tensor maps as values that a kernel edits: tensormap.replace, and tensormap.cp_fenceproxy, which publishes one.
What a field means is tensor_map_fields.py's; this file moves bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .async_copy import lane_address, lane_value, per_lane
from .barrier_ops import locate
from .errors import Fault
from .registry import SCOPES, SYNC, Bind, Call, Mods, instruction
from .tensor_map import TENSOR_MAP_BYTES, replace_field
from .types import Array, Instr, Mask, dtype_of

if TYPE_CHECKING:
    from .warp import Warp


@instruction("tensormap.replace")
def tensormap_replace(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    mods.flag("tile", "b1024")
    shared = mods.flag("shared::cta", "shared")
    mods.flag("global")
    fields = ("global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride")
    field = mods.pick((*fields, "elemtype", "interleave_layout", "swizzle_mode", "fill_mode"))
    ptx_type = mods.type()
    mods.done()
    with_ordinal = len(instr.operands) == 3

    def bind(warp: Warp, mask: Mask | None) -> Call:
        where = lane_address(warp, instr.operands[0])
        ordinal = lane_value(warp, instr.operands[1], "u32") if with_ordinal else None
        value = lane_value(warp, instr.operands[-1], dtype_of(ptx_type))

        def replace(lane: int) -> None:
            data = _map_bytes(warp, where(lane), shared)
            index = None if ordinal is None else ordinal(lane)
            data[:] = np.frombuffer(replace_field(data.tobytes(), field, index, value(lane)), np.uint8)

        return per_lane(warp, mask, replace)

    return bind


def _map_bytes(warp: Warp, address: int, shared: bool) -> Array:
    if not shared and not warp.cta.gpu.memory.blocks.get(address >> 32):
        shared = True
    if shared:
        cta, offset = locate(warp, address)
        return cta.smem.data[offset : offset + TENSOR_MAP_BYTES]
    return warp.cta.gpu.memory.bytes_at(address, TENSOR_MAP_BYTES, write=True)


@instruction("tensormap.cp_fenceproxy", kind=SYNC)
def tensormap_copy(instr: Instr) -> Bind:
    """The whole warp copies one map from shared to global memory and releases it to the tensor map proxy."""
    mods = Mods(instr, 2)
    mods.flag("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned", *SCOPES)
    mods.done()
    if instr.operands[2].value != TENSOR_MAP_BYTES:
        raise Fault(f"{instr.opcode}: the size is {instr.operands[2].value}; it must be {TENSOR_MAP_BYTES}")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, source = (lane_address(warp, operand) for operand in instr.operands[:2])

        def copy() -> None:
            warp.effects += 1
            cta, offset = locate(warp, source(0))
            if cta is not warp.cta or offset % TENSOR_MAP_BYTES or target(0) % TENSOR_MAP_BYTES:
                raise Fault(
                    f"{instr.opcode}: from {source(0):#x} to {target(0):#x}; both must be multiples of "
                    f"{TENSOR_MAP_BYTES}, the source in the CTA's own shared memory"
                )
            words = np.arange(offset // 4, (offset + TENSOR_MAP_BYTES) // 4)
            cta.shadow.generic_read(warp, words, np.zeros_like(words))
            _map_bytes(warp, target(0), False)[:] = _map_bytes(warp, offset, True)
            warp.fence_clock = warp.clock.copy()

        return copy

    return bind
