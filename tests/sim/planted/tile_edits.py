"""Mistakes in the walk over tiles: cut ones that roles do not agree on, products that begin before an epilogue."""

from __future__ import annotations

from gemmgen.ir import CutRemainder, MmaPlan, Plan

from .edit import planted, waits, with_operand
from .ptx_text import Statement, delete, find, replace, rewrite


def _following(text: str, statement: Statement, opcode: str) -> Statement:
    return next(each for each in find(text, opcode) if each.start > statement.start)


def _expected_bytes(text: str, plan: Plan) -> Statement:
    """The choice between a whole tile's bytes and a part's."""
    return find(text, "selp.b32", lambda each: each.operands[1] == str(plan.mainloop.tx_bytes))[0]


def _never_cuts(text: str, plan: Plan, role: int) -> str:
    """One role takes every tile for whole: nothing is left over for it."""
    assert isinstance(plan.schedule, CutRemainder)
    few = [each.target for each in find(text, "setp.lt.u32") if each.operands[2] == str(plan.schedule.parts + 1)]
    left = find(text, "selp.b32", lambda each: each.operands[2] == "0" and each.operands[3] in few)
    assert len(left) == len(plan.roles) + 1, "boxes, scales and products each have a schedule"
    return replace(text, left[role], f"mov.u32 {left[role].target}, 0;")


@planted("fp8_cut", says=r"ab\.full\[\d\].* 8192 bytes outstanding")
def cut_tile_expects_the_bytes_of_a_whole_one(text: str, plan: Plan) -> str:
    choice = _expected_bytes(text, plan)
    return replace(text, choice, f"mov.u32 {choice.target}, {plan.mainloop.tx_bytes};")


@planted("fp8_cut", says=r"ab\.full\[\d\]")
def whole_tile_expects_the_bytes_of_a_part(text: str, plan: Plan) -> str:
    choice = _expected_bytes(text, plan)
    return with_operand(text, [choice], 1, choice.operands[2])


@planted("fp8_cut", says=r"ab\.full\[\d\]")
def every_part_is_copied_for_a_cut_tile(text: str, plan: Plan) -> str:
    """The jump over a stack's further boxes is gone."""
    copies = [each for each in find(text, "cp.async.bulk.tensor.2d") if "mbarrier" in text[each.start : each.end]]
    return delete(text, [_following(text, copies[1], "bra")])


@planted("fp8_cut")
def a_part_is_copied_from_the_first_ones_place(text: str, plan: Plan) -> str:
    place = _following(text, _expected_bytes(text, plan), "selp.b32")
    return replace(text, place, rewrite(place, _2="0"))


@planted("fp8_cut")
def first_role_cuts_no_tile(text: str, plan: Plan) -> str:
    return _never_cuts(text, plan, 0)


@planted("fp8_cut")
def second_role_cuts_no_tile(text: str, plan: Plan) -> str:
    return _never_cuts(text, plan, 1)


@planted("fp8_cut")
def third_role_cuts_no_tile(text: str, plan: Plan) -> str:
    return _never_cuts(text, plan, 2)


def _never_shares(text: str, plan: Plan, role: int) -> str:
    """One role counts all tiles among those of whole waves."""
    left = find(text, "rem.u32")
    scaled = isinstance(plan.mma, MmaPlan) and plan.mma.sfa is not None
    assert len(left) == len(plan.roles) + scaled, "boxes, scales and products each have a schedule"
    return replace(text, left[role], f"mov.u32 {left[role].target}, 0;")


def _before_meeting(text: str, opcode: str, *factors: str) -> Statement:
    """The last such statement ahead of a meeting with one of those as its second factor."""
    (meeting,) = find(text, "atom.acq_rel.gpu.global.inc")
    return [each for each in find(text, opcode) if each.operands[2] in factors and each.start < meeting.start][-1]


@planted("fp8_share")
def first_role_shares_no_tile(text: str, plan: Plan) -> str:
    return _never_shares(text, plan, 0)


@planted("fp8_share")
def second_role_shares_no_tile(text: str, plan: Plan) -> str:
    return _never_shares(text, plan, 1)


@planted("fp8_share")
def third_role_shares_no_tile(text: str, plan: Plan) -> str:
    return _never_shares(text, plan, 2)


@planted("fp8_share", says="partials: access of 16 bytes at offset")
def shared_tile_has_the_place_it_has_among_all(text: str, plan: Plan) -> str:
    """Four tiles of four warps are in the full wave."""
    first = _before_meeting(text, "shl.b32", "2")
    return replace(text, first, f"{rewrite(first)} add.s32 {first.target}, {first.target}, 16;")


@planted("fp8_share", says="in no mapped buffer")
def tiles_of_whole_waves_meet_too(text: str, plan: Plan) -> str:
    counts = [_following(text, each, "sub.s32").target for each in find(text, "rem.u32")]
    whole = _before_meeting(text, "setp.lt.u32", *counts)
    return replace(text, whole, f"setp.ne.u32 {whole.target}, 0, 0;")


@planted("fp8_overlap", says=r"ab\.(a|b)\[\d\]")
def next_tile_begun_before_its_slot_is_full(text: str, plan: Plan) -> str:
    return replace(text, waits(text, plan, "full")[-1], "setp.eq.u32 p, 0, 0;")


@planted("fp8_overlap", says=r"wgmma")
def products_begun_ahead_are_not_waited_for(text: str, plan: Plan) -> str:
    return delete(text, find(text, "wgmma.wait_group")[:1])


@planted("fp8_overlap")
def next_tile_begun_twice(text: str, plan: Plan) -> str:
    """Its first products start anew in the loop over K blocks, which counts from the first one."""
    first = waits(text, plan, "full")[2]
    start = [each for each in find(text, "mov.u32") if each.start < first.start and each.operands[1] == "1"][-1]
    return replace(text, start, rewrite(start, _1="0"))
