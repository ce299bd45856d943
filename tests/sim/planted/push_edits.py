"""Mistakes in how CTAs of a cluster push slices of their sums to those that own them."""

from __future__ import annotations

import re

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import planted, waits, with_operand
from .ptx_text import Statement, address_constant, delete, find, insert, replace, replace_all, rewrite


def _push_wait(text: str) -> Statement:
    (wait,) = find(text, "mbarrier.try_wait.parity.acquire.cluster")
    return wait


def _push_barrier(text: str, plan: Plan, opcode: str, operand: int) -> list[Statement]:
    """What a thread does to the barrier of pushes, by its address."""
    assert plan.push is not None
    full = plan.push.full
    return find(text, opcode, lambda each: _constant(text, each, operand) == full)


def _constant(text: str, statement: Statement, operand: int) -> int | None:
    try:
        return address_constant(text, statement, operand)
    except LookupError:
        return None


@planted("push", says=r"push\.sums\[\d\]")
def pushed_sums_not_waited_for(text: str, plan: Plan) -> str:
    return replace(text, _push_wait(text), PASSED)


@planted("push", says=r"push\.(full|sums)")
def pushes_waited_for_in_the_wrong_phase(text: str, plan: Plan) -> str:
    return with_operand(text, [_push_wait(text)], 2, "1")


@planted("push", says=r"exits, but push\.full")
def exits_before_the_others_have_pushed(text: str, plan: Plan) -> str:
    return insert(text, _push_wait(text).start, "exit;")


@planted("push", says=r"push\.full")
def a_slice_is_not_pushed(text: str, plan: Plan) -> str:
    return delete(text, find(text, "st.async")[:1])


@planted("push", says="differ")
def own_sums_are_not_kept(text: str, plan: Plan) -> str:
    """They are added up from where pushed ones lie, too."""
    return delete(text, find(text, "st.shared.v4.f32"))


@planted("push", says=r"push\.(full|sums)")
def own_sums_are_pushed_too(text: str, plan: Plan) -> str:
    """The barrier is told of what others send: own bytes complete it before theirs have come."""
    memory = re.search(r"\.extern \.shared [^;]* (\w+)\[\]", text)
    assert plan.push is not None and memory is not None
    own = "{ .reg .b32 q, r, s; mov.u32 s, %%cluster_ctarank; mapa.shared::cluster.u32 r, %s, s; "
    own += f"mov.u32 q, {memory[1]}; add.u32 q, q, {plan.push.full}; mapa.shared::cluster.u32 q, q, s; "
    own += "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [r], %s, [q]; }"
    return replace_all(
        text, find(text, "st.shared.v4.f32"), lambda each: own % (each.operands[0].strip("[]"), each.operands[1])
    )


@planted("push")
def pushes_go_to_the_first_cta(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "mapa"), 2, "0")


@planted("push")
def pushes_go_to_the_next_cta(text: str, plan: Plan) -> str:
    def next_cta(each: Statement) -> str:
        more = f"{{ .reg .b32 q; add.u32 q, {each.operands[2]}, 1; rem.u32 q, q, {plan.splits};"
        return f"{more} {rewrite(each, _2='q')} }}"

    return replace_all(text, find(text, "mapa"), next_cta)


@planted("push", says=r"must be in the destination's CTA")
def bytes_are_counted_at_the_own_barrier(text: str, plan: Plan) -> str:
    rank = "{ .reg .b32 q; mov.u32 q, %%cluster_ctarank; %s }"
    barriers = {each.operands[2].strip("[]") for each in find(text, "st.async")}
    maps = find(text, "mapa", lambda each: each.target in barriers)
    return replace_all(text, maps, lambda each: rank % rewrite(each, _2="q"))


@planted("push_bf16", says=r"push\.sums\[\d\]")
def two_columns_are_pushed_into_one_place(text: str, plan: Plan) -> str:
    stores = find(text, "st.async")
    return with_operand(text, stores[1:2], 0, stores[0].operands[0])


@planted("push", says=r"push\.full.*-64 bytes outstanding")
def fewer_bytes_expected_than_pushed(text: str, plan: Plan) -> str:
    return _expected(text, plan, -64)


@planted("push", says=r"push\.full.* 64 bytes outstanding")
def more_bytes_expected_than_pushed(text: str, plan: Plan) -> str:
    return _expected(text, plan, 64)


def _expected(text: str, plan: Plan, more: int) -> str:
    (expect,) = _push_barrier(text, plan, "mbarrier.arrive.expect_tx", 1)
    changed = f"{{ .reg .b32 q; add.u32 q, {expect.operands[2]}, {more}; {rewrite(expect, _2='q')} }}"
    return replace(text, expect, changed)


@planted("push", says=r"push\.(full|sums)")
def part_of_the_bytes_expected(text: str, plan: Plan) -> str:
    """What one CTA sends less: the barrier completes before all have pushed."""
    (expect,) = _push_barrier(text, plan, "mbarrier.arrive.expect_tx", 1)
    fewer = f"{{ .reg .b32 q; div.u32 q, {expect.operands[2]}, 3; sub.u32 q, {expect.operands[2]}, q;"
    return replace(text, expect, f"{fewer} {rewrite(expect, _2='q')} }}")


@planted("push", says=r"push\.full")
def the_barrier_of_pushes_is_not_initialised(text: str, plan: Plan) -> str:
    return delete(text, _push_barrier(text, plan, "mbarrier.init", 0))


@planted("push", says=r"push\.full")
def the_barrier_of_pushes_counts_one_more(text: str, plan: Plan) -> str:
    return with_operand(text, _push_barrier(text, plan, "mbarrier.init", 0), 1, "2")


@planted("push", says=r"push\.full.*mbarrier\.init")
def pushes_before_the_cluster_has_begun(text: str, plan: Plan) -> str:
    return delete(text, find(text, "barrier.cluster.wait"))


@planted("push", says=r"mbarrier|ab\.|push\.")
def initialised_barriers_of_pushes_not_fenced(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.mbarrier_init"))


@planted("push", says=r"ab\.|mbarrier")
def products_before_the_cta_has_begun(text: str, plan: Plan) -> str:
    return delete(text, find(text, "bar.sync"))


@planted("push", says=r"ab\.(a|b|sfa)\[\d\]")
def a_slot_is_filled_again_too_early(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "empty"), lambda each: PASSED)


@planted("push_bf16", says=r"ab\.full\[\d\]")
def the_first_turn_is_not_expected(text: str, plan: Plan) -> str:
    """Weights that are read ahead complete bytes at barriers that nobody has armed."""
    pushed = _push_barrier(text, plan, "mbarrier.arrive.expect_tx", 1)
    *turn, _ = [each for each in find(text, "mbarrier.arrive.expect_tx") if each not in pushed]
    return delete(text, turn)


@planted("push_bf16", says=r"exits, but push\.full")
def halves_not_waited_for(text: str, plan: Plan) -> str:
    return replace(text, _push_wait(text), PASSED)


@planted("push_bf16", says=r"differ")
def halves_are_exchanged(text: str, plan: Plan) -> str:
    """Sums of the first half of the columns are stored as those of the other."""
    stores = find(text, "cp.async.bulk.tensor.2d.global")
    inner = stores[0].operands[0].split("{")[1].split(",")[0]
    flipped = stores[0].operands[0].replace(f"{{{inner},", "{q,")
    return replace(text, stores[0], f"{{ .reg .b32 q; xor.b32 q, {inner}, 16; {rewrite(stores[0], _0=flipped)} }}")
