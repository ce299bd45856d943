"""Mistakes in the ring whose slots hold scales of several K blocks: its barriers, its lanes, its places."""

from __future__ import annotations

from gemmgen.ir import Plan, RingPlan

from .edit import planted, with_operand
from .ptx_text import address_constant, delete, find, replace_all


def _strips(plan: Plan) -> RingPlan:
    return plan.ring("strips")


@planted("fp8_strips", says=r"strips\.")
def strips_count_one_arrival_more(text: str, plan: Plan) -> str:
    ring = _strips(plan)
    places = range(ring.full, ring.full + 8 * ring.slots, 8)
    inits = find(text, "mbarrier.init", lambda each: address_constant(text, each, 0) in places)
    return with_operand(text, inits, 1, str(ring.full_count + 1))


@planted("fp8_strips", says=r"strips\.")
def strips_count_one_reader_more(text: str, plan: Plan) -> str:
    ring = _strips(plan)
    places = range(ring.empty, ring.empty + 8 * ring.slots, 8)
    inits = find(text, "mbarrier.init", lambda each: address_constant(text, each, 0) in places)
    return with_operand(text, inits, 1, str(ring.empty_count + 1))


@planted("fp8_strips", says=r"strips\.")
def a_strip_is_read_before_it_has_come(text: str, plan: Plan) -> str:
    waits = find(text, "mbarrier.try_wait", lambda each: address_constant(text, each, 1) == _strips(plan).full)
    return with_operand(text, waits, 2, "1")


@planted("fp8_strips", says=r"strips\.")
def a_strip_is_written_before_it_is_given_back(text: str, plan: Plan) -> str:
    waits = find(text, "mbarrier.try_wait", lambda each: address_constant(text, each, 1) == _strips(plan).empty)
    return with_operand(text, waits, 2, "1")


@planted("fp8_strips", says=r"strips\.sfb\[\d\]")
def strips_arrive_before_they_are_copied(text: str, plan: Plan) -> str:
    return replace_all(
        text,
        find(text, "cp.async.mbarrier.arrive"),
        lambda each: f"mbarrier.arrive.shared::cta.b64 _, {each.operands[0]};",
    )


@planted("fp8_strips", says=r"strips\.full\[\d\]")
def strips_never_arrive(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.mbarrier.arrive"))
