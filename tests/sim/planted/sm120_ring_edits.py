"""Mistakes of sm120 kernels around the product: slots, staging, swapped stores, CTAs that share K blocks of a tile."""

from __future__ import annotations

import re

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import barrier_inits, planted, waits, with_operand
from .ptx_text import Statement, definition, delete, find, insert, register_of, replace, replace_all
from .sm100_parts import ARRIVE, at, nearest_before
from .sm120_parts import loads, moved, scale_loads

# ------------------------------------------------------------------------------------------------ slots


@planted("sm120_fp8", says=r"ab\.")
def fragments_loaded_before_they_arrive(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "full"), lambda each: PASSED)


@planted("sm120_fp8", says=r"ab\.")
def slot_filled_before_it_is_free(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "empty"), lambda each: PASSED)


@planted("sm120_fp8", says=r"ab\.")
def slot_released_before_its_fragments_are_loaded(text: str, plan: Plan) -> str:
    """The arrival stands right behind the wait."""
    arrive = at(text, plan, ARRIVE, "ab", "empty")[0]
    address = definition(text, register_of(arrive.operands[1]), arrive.start)
    early = (
        f"{{ .reg .pred q; .reg .b32 l, e; mov.u32 l, %tid.x; and.b32 l, l, 31; setp.eq.u32 q, l, 0; "
        f"add.s32 e, {address.operands[1]}, {address.operands[2]}; @q mbarrier.arrive.shared::cta.b64 _, [e]; }}"
    )
    place = nearest_before(text, "ld.shared.u32", loads(text)[0].start)
    first = min(each.start for each in scale_loads(text))
    assert first <= place.start
    before = nearest_before(text, "and.b32", first)
    return insert(replace(text, arrive, ""), before.start, early)


@planted("sm120_fp8", says=r"ab\.empty")
def slot_never_released(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "ab", "empty"))


@planted("sm120_fp8", says=r"ab\.")
def slot_released_by_one_warp_of_two(text: str, plan: Plan) -> str:
    return with_operand(text, barrier_inits(text, plan, "empty"), 1, "1")


def _slot_fence(text: str, plan: Plan) -> Statement:
    """Between the loads of a slot and the arrival that gives it back."""
    return nearest_before(text, "fence.proxy.async", at(text, plan, ARRIVE, "ab", "empty")[0].start)


@planted("sm120_fp8", says=r"ab\..*(ordinary loads|in flight)")
def slot_released_without_a_fence(text: str, plan: Plan) -> str:
    """What an H100 answered with some hundred wrong elements of 4096 x 4096."""
    return delete(text, [_slot_fence(text, plan)])


@planted("sm120_fp8")
def b_copied_to_the_next_slot(text: str, plan: Plan) -> str:
    copy = find(text, "cp.async.bulk.tensor.2d.shared")[1]
    return moved(text, copy, 0, f"add.s32 q, {{0}}, {plan.ring('ab').part('b').bytes};")


@planted("sm120_fp8")
def k_block_copied_one_ahead(text: str, plan: Plan) -> str:
    copy = find(text, "cp.async.bulk.tensor.2d.shared")[0]
    inner = re.search(r"\{(%r\d+)", copy.operands[1])
    assert inner is not None
    ahead = text[copy.start : copy.end].replace(f"{{{inner[1]}", "{q")
    return replace(text, copy, f"{{ .reg .b32 q; add.s32 q, {inner[1]}, {plan.tile.k}; {ahead} }}")


@planted("sm120_fp8")
def staged_rows_not_fenced(text: str, plan: Plan) -> str:
    """The copy engine may read what stmatrix has not made visible to it."""
    kept = _slot_fence(text, plan).start
    return delete(text, [each for each in find(text, "fence.proxy.async") if each.start != kept])


@planted("sm120_fp8")
def staging_buffer_reused_early(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read")[:1])


@planted("sm120_swap")
def neighbours_of_the_wrong_lane(text: str, plan: Plan) -> str:
    """Columns of the output lie 4 lanes apart, rows beside each other."""
    exchange = find(text, "shfl.sync.bfly")[0]
    return with_operand(text, [exchange], 2, "1")


# ------------------------------------------------------------------------------------------------ split k


def _share(text: str, role: int) -> Statement:
    """K blocks of a split, a multiple of what a word serves, as the role that stands there computes them."""
    shifts = [each for each in find(text, "shl.b32") if each.operands[2] == "3"]
    found = []
    for each in shifts:
        made = definition(text, each.operands[1], each.start)
        half = definition(text, made.operands[1], made.start) if made.opcode == "add.s32" else made
        if half.opcode.startswith("shr") and half.operands[2] == "1":
            found.append(each)
    return found[role]


@planted("sm120_split")
def split_starts_inside_a_word_of_scales(text: str, plan: Plan) -> str:
    """Trap 39: the second split begins one K block late, with a word of A's scales that was never copied."""
    for role in (1, 0):
        share = _share(text, role)
        text = insert(text, share.end, f"add.s32 {share.target}, {share.target}, 1;")
    return text


@planted("sm120_split")
def roles_share_k_out_differently(text: str, plan: Plan) -> str:
    share = _share(text, 0)
    return insert(text, share.end, f"add.s32 {share.target}, {share.target}, 8;")


@planted("sm120_split")
def counter_not_reset(text: str, plan: Plan) -> str:
    count = find(text, "atom.acq_rel.gpu.global.inc")[0]
    return replace(text, count, text[count.start : count.end].replace(".inc.", ".add."))


@planted("sm120_split")
def first_split_to_come_stores(text: str, plan: Plan) -> str:
    test = next(each for each in find(text, "setp.ne.s32") if each.start > find(text, "atom.")[0].start)
    return with_operand(text, [test], 2, "0")


@planted("sm120_split")
def sums_of_one_split_added_twice(text: str, plan: Plan) -> str:
    first, second = find(text, "ld.global.v4.f32")[:2]
    return with_operand(text, [second], 1, first.operands[1])


@planted("sm120_split")
def splits_write_to_one_place(text: str, plan: Plan) -> str:
    offset = next(each for each in find(text, "and.b64") if each.start < find(text, "st.global.v4.f32")[0].start)
    return replace(text, offset, f"mov.b64 {offset.target}, 0;")


@planted("sm120_split")
def partial_sums_not_written(text: str, plan: Plan) -> str:
    return delete(text, find(text, "st.global.v4.f32")[1:2])


@planted("sm120_split")
def tiles_share_a_counter(text: str, plan: Plan) -> str:
    count = find(text, "atom.acq_rel.gpu.global.inc")[0]
    place = definition(text, register_of(count.operands[1]), count.start)
    return replace(text, place, f"mov.b64 {place.target}, {place.operands[1]};")
