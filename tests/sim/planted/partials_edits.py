"""Mistakes where products take turns at two sets of registers: a wait for one too few, a slot given back under one."""

from __future__ import annotations

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import planted, with_operand
from .ptx_text import Statement, find, insert, next_label, replace

STEPS = 4
"""Instructions of a product."""


def _waits(text: str, pending: int) -> list[Statement]:
    """In a round of two blocks of two products: those behind which one may run, then the one at its end."""
    return find(text, "wgmma.wait_group", lambda each: each.operands[0] == str(pending))


def _products(text: str, index: int) -> list[Statement]:
    """The instructions of a round's product."""
    return find(text, "wgmma.mma_async")[STEPS * index : STEPS * (index + 1)]


@planted("fp8_partials", says=r"wgmma")
def sums_are_scaled_while_two_products_run(text: str, plan: Plan) -> str:
    return with_operand(text, _waits(text, 1), 0, "2")


@planted("fp8_partials", says=r"wgmma")
def one_product_of_a_block_is_scaled_too_early(text: str, plan: Plan) -> str:
    return with_operand(text, _waits(text, 1)[:1], 0, "2")


@planted("fp8_partials", says=r"wgmma")
def last_product_of_a_round_is_scaled_too_early(text: str, plan: Plan) -> str:
    return with_operand(text, _waits(text, 0)[:1], 0, "1")


@planted("fp8_partials", says=r"wgmma")
def last_product_of_a_block_alone_is_scaled_too_early(text: str, plan: Plan) -> str:
    return with_operand(text, _waits(text, 0)[1:], 0, "1")


@planted("fp8_partials", says=r"ab\.(a|b)\[\d\]")
def slot_released_before_its_last_product_has_ended(text: str, plan: Plan) -> str:
    """Between blocks of a round the wait moves behind the arrival at ``empty``."""
    wait = _waits(text, 1)[1]
    place = next_label(text, wait.end)
    return replace(insert(text, place, text[wait.start : wait.end]), wait, "")


@planted("fp8_partials", says=r"ab\.(a|b|sfa|sfb)\[\d\]")
def next_block_begins_in_a_slot_that_is_not_full(text: str, plan: Plan) -> str:
    """The test between a block's products always says yes."""
    wait = _waits(text, 1)[0]
    test = next(each for each in find(text, "mbarrier.try_wait") if each.start > wait.end)
    return replace(text, test, PASSED)


@planted("fp8_partials")
def products_take_no_turns(text: str, plan: Plan) -> str:
    """The second one goes to the registers whose sums have yet to be scaled."""
    return with_operand(text, _products(text, 1), 0, _products(text, 0)[0].operands[0])


@planted("fp8_partials", says=r"math: ab\.empty\[\d\].*arrive for their warp")
def warp_not_synchronised_before_its_last_release(text: str, plan: Plan) -> str:
    """bar.warp.sync between the lanes that read scales and the lane that releases a round's last slot for all.

    Ahead of other slots' releases every lane has seen the next one full, which orders them here.
    """
    sync = next(each for each in find(text, "bar.warp.sync") if each.start > _waits(text, 0)[0].end)
    return replace(text, sync, "")
