"""Mistakes at mbarriers: waits, phases, counts, bytes, arrivals, initialisation, cluster barriers."""

from __future__ import annotations

from gemmgen.ir import Plan

from .edit import barrier_inits, planted, waits, with_operand
from .ptx_text import (
    Statement,
    definition,
    delete,
    find,
    insert,
    next_label,
    register_of,
    replace,
    replace_all,
    statements,
)

PASSED = "setp.eq.u32 p, 0, 0;"


def _following(text: str, statement: Statement, opcode: str) -> Statement:
    return next(each for each in find(text, opcode) if each.start > statement.start)


@planted("fp8", says=r"ab\.(a|b|sfa|sfb)\[\d\]")
def full_wait_deleted(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "full"), lambda each: PASSED)


@planted("fp8", says=r"ab\.(a|b|sfa)\[\d\]")
def empty_wait_of_boxes_deleted(text: str, plan: Plan) -> str:
    return replace(text, waits(text, plan, "empty")[-1], PASSED)


@planted("fp8", says=r"ab\.(sfb\[\d\]|full\[\d\])")
def empty_wait_of_scales_deleted(text: str, plan: Plan) -> str:
    return replace(text, waits(text, plan, "empty")[0], PASSED)


@planted("fp8")
def full_wait_tried_once(text: str, plan: Plan) -> str:
    return delete(text, [_following(text, waits(text, plan, "full")[0], "bra")])


@planted("bf16_nt")
def empty_wait_tried_once(text: str, plan: Plan) -> str:
    return delete(text, [_following(text, waits(text, plan, "empty")[0], "bra")])


@planted("fp8", says=r"ab\.\w+\[\d\]")
def only_lane_0_waits_for_full(text: str, plan: Plan) -> str:
    """The other lanes of the warp jump over the wait."""
    wait = waits(text, plan, "full")[0]
    back = _following(text, wait, "bra")
    label = text.rindex("\n$L__BB", 0, wait.start)
    skip = "{ .reg .pred q; .reg .b32 l; mov.u32 l, %laneid; setp.ne.b32 q, l, 0; @q bra $L__passed; }"
    return insert(insert(text, back.end, "$L__passed:"), label, skip)


@planted("fp8")
def full_wait_of_the_other_parity(text: str, plan: Plan) -> str:
    return _flip(text, waits(text, plan, "full")[0])


@planted("fp8", says=r"ab\.(a|b|sfa|sfb)\[\d\]")
def next_slot_taken_for_full(text: str, plan: Plan) -> str:
    """The test ahead of the promotion always says yes, so nobody waits."""
    return replace(text, waits(text, plan, "full")[-1], PASSED)


@planted("fp8")
def next_slot_tested_in_its_old_phase(text: str, plan: Plan) -> str:
    """It was full once before: the test is true too early."""
    return _flip(text, waits(text, plan, "full")[-1])


@planted("bf16_nt", says=r"ab\.empty\[0\]")
def empty_wait_without_the_first_free_pass(text: str, plan: Plan) -> str:
    return _flip(text, waits(text, plan, "empty")[0])


def _flip(text: str, wait: Statement) -> str:
    bar, parity = wait.operands[1:]
    flipped = f".reg .b32 q; xor.b32 q, {parity}, 1; mbarrier.try_wait.parity.shared::cta.b64 p, {bar}, q;"
    return replace(text, wait, flipped)


@planted("bf16_nt", says=r"ab\.full\[\d\]")
def phase_never_flips(text: str, plan: Plan) -> str:
    """The consumer's parity stays 0 when the ring wraps round."""
    parity = waits(text, plan, "full")[0].operands[2]
    flips = find(text, "xor.b32", lambda each: each.target == parity)
    return delete(text, flips)


@planted("fp8", says=r"ab\.full\[\d\]")
def expects_too_few_bytes(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "mbarrier.arrive.expect_tx"), 2, str(plan.mainloop.tx_bytes - 128))


@planted("fp8", says=r"ab\.full\[\d\]")
def expects_too_many_bytes(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "mbarrier.arrive.expect_tx"), 2, str(plan.mainloop.tx_bytes + 128))


@planted("fp8", says=r"ab\.full\[\d\]")
def full_counts_one_more(text: str, plan: Plan) -> str:
    return with_operand(text, barrier_inits(text, plan, "full"), 1, str(plan.mainloop.full_count + 1))


@planted("fp8", says=r"ab\.")
def full_counts_one_less(text: str, plan: Plan) -> str:
    return with_operand(text, barrier_inits(text, plan, "full"), 1, str(plan.mainloop.full_count - 1))


@planted("bf16_nt", says=r"ab\.empty\[\d\]")
def empty_counts_one_more(text: str, plan: Plan) -> str:
    return with_operand(text, barrier_inits(text, plan, "empty"), 1, str(plan.mainloop.empty_count + 1))


@planted("fp8", says=r"ab\.")
def empty_counts_one_less(text: str, plan: Plan) -> str:
    return with_operand(text, barrier_inits(text, plan, "empty"), 1, str(plan.mainloop.empty_count - 1))


@planted("bf16_nt", says=r"\(load\).*ab\.empty\[\d\]")
def release_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "mbarrier.arrive.shared::cta"))


@planted("fp8_pair", says=r"ab\.empty\[\d\]")
def remote_release_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "mbarrier.arrive.shared::cluster"))


@planted("fp8_pair", says=r"ab\.empty\[\d\]")
def both_releases_go_to_the_first_cta(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "mapa"), 2, "0")


@planted("fp8")
def slot_released_before_its_products_have_ended(text: str, plan: Plan) -> str:
    """The wait for wgmma moves behind the arrival at ``empty``."""
    wait = find(text, "wgmma.wait_group")[0]
    place = next_label(text, wait.end)
    return replace(insert(text, place, text[wait.start : wait.end]), wait, "")


@planted("bf16_nt")
def slot_released_a_block_too_early(text: str, plan: Plan) -> str:
    """In the K loop two groups stay in flight where one may."""
    return with_operand(text, find(text, "wgmma.wait_group", lambda each: each.operands[0] == "1"), 0, "2")


@planted("fp8", says=r"ab\.(full|empty)\[\d\]")
def every_lane_releases(text: str, plan: Plan) -> str:
    """The lane-0 guard of the consumer's arrival is gone."""
    arrive = find(text, "mbarrier.arrive.shared::cta")[0]
    guard = [each for each in find(text, "bra") if each.start < arrive.start][-1]
    return delete(text, [guard])


@planted("fp8", says=r"math: ab\.empty\[\d\].*arrive for their warp")
def warp_not_synchronised_before_its_release(text: str, plan: Plan) -> str:
    """bar.warp.sync between the lanes that read scales and the lane that releases the slot for all."""
    arrive = find(text, "mbarrier.arrive.shared::cta")[0]
    return delete(text, [each for each in find(text, "bar.warp.sync") if each.start < arrive.start][-1:])


@planted("bf16_nt", says=r"ab\.full\[\d\]")
def every_lane_loads(text: str, plan: Plan) -> str:
    """elect.sync elects all."""
    elect = find(text, "elect.sync")[0]
    chosen = _following(text, elect, "selp.b32")
    return replace(text, chosen, f"mov.u32 {chosen.target}, 1;")


@planted("fp8", says=r"ab\.full\[\d\]")
def copied_scales_never_arrive(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.mbarrier.arrive"))


@planted("fp8", says=r"ab\.sfb\[\d\]")
def scales_arrive_before_they_are_copied(text: str, plan: Plan) -> str:
    """A plain arrival where one is due that waits for cp.async."""
    return replace_all(
        text,
        find(text, "cp.async.mbarrier.arrive"),
        lambda each: f"mbarrier.arrive.shared::cta.b64 _, {each.operands[0]};",
    )


@planted("bf16_nt")
def initialised_barriers_not_fenced(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.mbarrier_init"))


@planted("bf16_nt", says=r"ab\.|mbarrier")
def cta_not_synchronised_after_initialisation(text: str, plan: Plan) -> str:
    return delete(text, find(text, "bar.sync"))


@planted("fp8_pair", says=r"ab\.|mbarrier")
def cluster_not_synchronised_after_initialisation(text: str, plan: Plan) -> str:
    return delete(text, find(text, "barrier.cluster.arrive")[:1] + find(text, "barrier.cluster.wait")[:1])


@planted("fp8_pair", says=r"exited")
def cluster_not_synchronised_before_exit(text: str, plan: Plan) -> str:
    return delete(text, find(text, "barrier.cluster.arrive")[-1:] + find(text, "barrier.cluster.wait")[-1:])


@planted("fp8_pair")
def cluster_barrier_not_waited_for(text: str, plan: Plan) -> str:
    return delete(text, find(text, "barrier.cluster.wait")[:1])


@planted("bf16_nt", says=r"ab\.")
def consumer_walks_the_slots_in_another_order(text: str, plan: Plan) -> str:
    """The consumer's ring has one slot less than the producer's."""
    slot = _slot_counter(text, plan)
    wrap = find(
        text, "setp.eq.s32", lambda each: each.operands[1] == slot and each.operands[2] == str(plan.mainloop.slots)
    )
    return with_operand(text, wrap, 2, str(plan.mainloop.slots - 1))


def _slot_counter(text: str, plan: Plan) -> str:
    """The consumer's slot number plus one: what is compared with the ring's length after its full wait."""
    wait = waits(text, plan, "full")[0]
    compared = [each for each in statements(text) if each.start > wait.start and each.opcode == "setp.eq.s32"]
    return next(each.operands[1] for each in compared if each.operands[2] == str(plan.mainloop.slots))


@planted("bf16_nt", says=r"ab\.")
def producer_waits_at_the_wrong_barrier(text: str, plan: Plan) -> str:
    """The producer tests ``full`` where it should test ``empty``."""
    wait = waits(text, plan, "empty")[0]
    address = definition(text, register_of(wait.operands[1]), wait.start)
    return with_operand(text, [address], 2, str(plan.mainloop.full))
