"""clusterlaunchcontrol: a running cluster cancels the launch of a pending one and takes over its work.
Answers are 16 bytes of our own encoding; which clusters are pending is the GPU's business, who wins the schedule's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .async_copy import lane_address, per_lane
from .bulk import Landing, queue_landings
from .elementwise import destination
from .errors import Fault, UnknownInstruction
from .machine import Cta
from .memory_ops import active_lanes
from .registry import Bind, Call, Mods, instruction
from .types import Array, Instr, Mask, Vec, Void

if TYPE_CHECKING:
    from .machine import Cluster
    from .warp import Warp

_CANCELLED, _REFUSED = 0x434C4331, 0x434C4330  # first word of an answer; x, y, z of the first CTA follow
_BYTES = 16


@instruction("clusterlaunchcontrol.try_cancel")
def try_cancel(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    complete = mods.flag("async") and mods.flag("mbarrier::complete_tx::bytes") and mods.flag("b128")
    mods.flag("shared::cta")
    everyone = mods.flag("multicast::cluster::all")
    mods.done()
    if not complete:
        raise UnknownInstruction(f"{instr.opcode!r}: .async, .mbarrier::complete_tx::bytes and .b128 are needed")

    def bind(warp: Warp, mask: Mask | None) -> Call:
        target, barrier = lane_address(warp, instr.operands[0]), lane_address(warp, instr.operands[1])

        def issue(lane: int) -> None:
            _request(warp, instr, target(lane), barrier(lane), everyone)

        return per_lane(warp, mask, issue)

    return bind


def _request(warp: Warp, instr: Instr, target: int, barrier: int, everyone: bool) -> None:
    cluster = warp.cta.cluster
    if target % _BYTES:
        raise Fault(f"clusterlaunchcontrol.try_cancel: the answer's address {target:#x} is not a multiple of 16")
    for component, phase in cluster.refusals:
        if warp.clock[0, component] >= phase:
            raise Fault("clusterlaunchcontrol.try_cancel after an answer that nothing is left; its result is undefined")
    answer: list[Array] = []

    def write(cta: Cta, offset: int) -> None:
        if not answer:
            answer.append(_answer(cluster))
        cta.smem.data[offset : offset + _BYTES] = answer[0]

    def landed(component: int, phase: int) -> None:
        if int(answer[0].view(np.uint32)[0]) == _REFUSED:
            cluster.refusals.append((component, phase))

    def words(at: int) -> slice:
        return slice(at // 4, (at + _BYTES) // 4)

    ranks = (1 << cluster.size) - 1 if everyone else None
    queue_landings(warp, instr, target, barrier, ranks, Landing(_BYTES, words, write, landed=landed))


def _answer(cluster: Cluster) -> Array:
    """Cancel the next pending cluster, unless none is left or the schedule gives it to a free multiprocessor."""
    gpu = cluster.gpu
    if not gpu.unlaunched or gpu.schedule.refuses():
        return np.array([_REFUSED, *[0xFFFFFFFF] * 3], np.uint32).view(np.uint8)
    return np.array([_CANCELLED, *gpu.unlaunched.popleft()], np.uint32).view(np.uint8)


@instruction("clusterlaunchcontrol.query_cancel")
def query_cancel(instr: Instr) -> Bind:
    mods = Mods(instr, 2)
    mods.flag("b128")
    wanted = mods.pick(("is_canceled", *_FIRST_CTA))
    mods.flag("pred" if wanted == "is_canceled" else "b32")
    vector = mods.flag("v4")
    mods.done()
    if wanted == "is_canceled":
        return _bind_is_canceled(instr)
    if wanted not in _FIRST_CTA or vector != (wanted == "get_first_ctaid"):
        raise UnknownInstruction(f"{instr.opcode!r}: query_cancel of what?")
    return _bind_first_cta(instr, _FIRST_CTA[wanted])


_FIRST_CTA = {
    "get_first_ctaid": (0, 1, 2),
    "get_first_ctaid::x": (0,),
    "get_first_ctaid::y": (1,),
    "get_first_ctaid::z": (2,),
}


def _words(row: Array, lanes: Array) -> Array:
    """[lanes, 4] words of answers; anything else than an answer is a fault."""
    words = np.ascontiguousarray(row[lanes]).view(np.uint32).reshape(-1, 4)
    if not np.isin(words[:, 0], (_CANCELLED, _REFUSED)).all():
        raise Fault(
            "clusterlaunchcontrol.query_cancel of 16 bytes that no try_cancel wrote; wait for its mbarrier first"
        )
    return words


def _bind_is_canceled(instr: Instr) -> Bind:
    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, row = destination(warp, instr.operands[0], "p"), warp.row(instr.operands[1], "b128")

        def call() -> None:
            lanes = active_lanes(mask)
            if lanes.size:
                out[lanes] = _words(row, lanes)[:, 0] == _CANCELLED

        return call

    return bind


def _bind_first_cta(instr: Instr, axes: tuple[int, ...]) -> Bind:
    items = instr.operands[0].items if isinstance(instr.operands[0], Vec) else (instr.operands[0],)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        outs = [None if isinstance(item, Void) else destination(warp, item, "u32") for item in items[: len(axes)]]
        row = warp.row(instr.operands[1], "b128")

        def call() -> None:
            lanes = active_lanes(mask)
            words = _words(row, lanes) if lanes.size else np.zeros((0, 4), np.uint32)
            for axis, out in zip(axes, outs, strict=True):
                if out is not None:
                    out[lanes] = words[:, 1 + axis]

        return call

    return bind
