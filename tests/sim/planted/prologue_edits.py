"""Mistakes of prologues: how A reaches registers and stays there, how squares are summed, how splits of k meet."""

from __future__ import annotations

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import planted, waits, with_operand
from .ptx_text import Statement, delete, find, insert, next_label, replace, replace_all, rewrite
from .sm100_parts import ARRIVE, COMMIT, WAIT, address_of, at, nearest_before

# ------------------------------------------------------------------------------------------------ A in registers


@planted("prenorm", says=r"ab\.a\[\d\]")
def a_read_before_it_arrives(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "full"), lambda each: PASSED)


@planted("prenorm", says=r"ab\.a\[\d\]")
def next_slot_read_before_it_arrives(text: str, plan: Plan) -> str:
    """The wait that stands between a block's products and the loads for the next one."""
    return replace(text, waits(text, plan, "full")[-1], PASSED)


@planted("prenorm", says="may still read it")
def slot_released_before_its_products_have_ended(text: str, plan: Plan) -> str:
    """The wait for wgmma moves behind the arrival at ``empty``, and with it what keeps A in its registers."""
    wait = find(text, "wgmma.wait_group")[0]
    return replace(insert(text, next_label(text, wait.end), text[wait.start : wait.end]), wait, "")


@planted("prenorm", says="wgmma")
def last_products_not_waited_for(text: str, plan: Plan) -> str:
    return delete(text, find(text, "wgmma.wait_group")[-1:])


@planted("prenorm", says="may still read it|wgmma")
def set_read_anew_while_it_is_multiplied(text: str, plan: Plan) -> str:
    """The wait of the body's second copy lets two blocks' products go on, not one's."""
    return with_operand(text, find(text, "wgmma.wait_group")[1:2], 0, "2")


@planted("prenorm", says="wgmma.fence")
def a_not_fenced(text: str, plan: Plan) -> str:
    return delete(text, find(text, "wgmma.fence"))


@planted("prenorm", says=r"ab\.empty")
def slot_never_released(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "ab", "empty"))


@planted("prenorm", says="elements differ")
def every_lane_takes_the_lower_half(text: str, plan: Plan) -> str:
    select = find(text, "selp.b32", lambda each: {each.operands[1], each.operands[2]} == {"12868", "4164"})
    return replace_all(text, select, lambda each: rewrite(each, _1="4164", _2="4164"))


@planted("prenorm", says="elements differ")
def words_of_the_next_step(text: str, plan: Plan) -> str:
    """A load in the K loop goes one 16-byte chunk on."""
    loads = find(text, "ld.shared.u32")
    assert len(loads) == 96  # before the loop and in both copies of its body
    return with_operand(text, loads[-1:], 1, loads[-5].operands[1])


# ------------------------------------------------------------------------------------------------ shared K


def _written(text: str, action: str) -> list[Statement]:
    return [_meeting(text, action, "1")]


def _read(text: str, action: str) -> list[Statement]:
    return [_meeting(text, action, "2")]


def _meeting(text: str, action: str, barrier: str) -> Statement:
    """Where a warpgroup waits for the other, or tells it: sums are written (1), those of the last tile are read (2)."""
    named = {register.operands[0] for register in find(text, "mov.u32", lambda each: each.operands[1:] == (barrier,))}
    (found,) = find(text, action, lambda each: each.operands[0] in {barrier, *named} and len(each.operands) == 2)
    return found


@planted("prenorm_shared")
def sums_read_before_they_are_written(text: str, plan: Plan) -> str:
    return delete(text, _written(text, "bar.sync"))


@planted("prenorm_shared")
def sums_written_before_those_of_the_last_tile_are_read(text: str, plan: Plan) -> str:
    return delete(text, _read(text, "bar.sync"))


@planted("prenorm_shared")
def nobody_is_told_that_sums_are_written(text: str, plan: Plan) -> str:
    return delete(text, _written(text, "bar.arrive"))


@planted("prenorm_shared")
def nobody_is_told_that_sums_have_been_read(text: str, plan: Plan) -> str:
    return delete(text, _read(text, "bar.arrive"))


# ------------------------------------------------------------------------------------------------ squares


def _exchanges(text: str) -> list[Statement]:
    """With the neighbour, then with the pair beside: of the upper rows and of the lower ones each."""
    found = find(text, "shfl.sync.bfly")
    assert len(found) == 4
    return found


@planted("prenorm", says="of sqr_sum differ")
def squares_not_added_over_the_quad(text: str, plan: Plan) -> str:
    return with_operand(text, _exchanges(text)[2:], 2, "0")


@planted("sm120_prenorm", says="of sqr_sum differ")
def squares_added_over_half_the_quad(text: str, plan: Plan) -> str:
    return with_operand(text, _exchanges(text)[:1], 2, "0")


# ------------------------------------------------------------------------------------------------ splits that meet


def _count(text: str) -> Statement:
    (found,) = find(text, "atom.acq_rel.gpu.global.inc")
    return found


@planted("prenorm", says="counters of arrivals are not 0")
def counter_wraps_one_late(text: str, plan: Plan) -> str:
    count = _count(text)
    return replace(text, count, f"{{ .reg .u32 q; add.s32 q, {count.operands[2]}, 1; {rewrite(count, _2='q')} }}")


@planted("prenorm", says="elements differ")
def first_to_come_adds_up(text: str, plan: Plan) -> str:
    place = _count(text).end
    return with_operand(text, [each for each in find(text, "setp.ne.s32") if each.start > place][:1], 2, "0")


@planted("sm120_prenorm", says="elements differ")
def sums_left_where_another_split_leaves_its_own(text: str, plan: Plan) -> str:
    """The first 16 bytes of a lane go where split 0 has them."""
    stores = find(text, "st.global.v4.f32")
    count = _count(text)
    own = [each for each in stores if each.start < count.start]
    return delete(text, own[:1])


# ------------------------------------------------------------------------------------------------ sm120


@planted("sm120_prenorm", says=r"ab\.")
def fragments_loaded_before_they_arrive(text: str, plan: Plan) -> str:
    return replace_all(text, waits(text, plan, "full"), lambda each: PASSED)


@planted("sm120_prenorm", says=r"ab\..*(ordinary loads|in flight)")
def slot_released_without_a_fence(text: str, plan: Plan) -> str:
    fence = nearest_before(text, "fence.proxy.async", at(text, plan, ARRIVE, "ab", "empty")[0].start)
    return delete(text, [fence])


@planted("sm120_prenorm", says="elements differ")
def upper_elements_not_cleared(text: str, plan: Plan) -> str:
    """An element of the upper half keeps its neighbour's bits, which tf32 counts the highest of."""
    masks = find(text, "and.b32", lambda each: each.operands[2] == "-65536")
    return replace_all(text, masks, lambda each: f"mov.b32 {each.target}, {each.operands[1]};")


@planted("sm120_prenorm", says="elements differ")
def a_pair_of_b_from_other_rows(text: str, plan: Plan) -> str:
    pairs = find(text, "ld.shared.v2.f32")
    return with_operand(text, pairs[1:2], 1, pairs[0].operands[1])


# ------------------------------------------------------------------------------------------------ sm100


@planted("sm100_prenorm", says=r"TMEM columns|wide")
def told_before_it_is_stored(text: str, plan: Plan) -> str:
    """A's columns may still be on their way to tensor memory when the products are told."""
    return delete(text, find(text, "tcgen05.wait::st")[:1])


@planted("sm100_prenorm", says=r"TMEM columns|wide")
def cast_over_what_is_multiplied(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "wide", "empty"), lambda each: PASSED)


@planted("sm100_prenorm", says=r"TMEM columns|wide")
def products_of_what_is_not_cast(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "wide", "full"), lambda each: PASSED)


@planted("sm100_prenorm", says=r"wide\.")
def commit_to_the_full_barrier(text: str, plan: Plan) -> str:
    commit = at(text, plan, COMMIT, "wide", "empty")[0]
    return with_operand(text, [address_of(text, commit, COMMIT)], 2, str(plan.ring("wide").full))


@planted("sm100_prenorm", says=r"ab\.empty")
def rows_never_given_back(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "ab", "empty"))


@planted("sm100_prenorm", says=r"ab\..*(ordinary loads|in flight)")
def rows_given_back_without_a_fence(text: str, plan: Plan) -> str:
    fence = nearest_before(text, "fence.proxy.async", at(text, plan, ARRIVE, "ab", "empty")[0].start)
    return delete(text, [fence])


@planted("sm100_prenorm", says="of sqr_sum differ")
def one_of_four_sums_left_out(text: str, plan: Plan) -> str:
    """The last addition before a row's sum is written."""
    added = nearest_before(text, "add.f32", find(text, "st.global.f32")[0].start)
    return with_operand(text, [added], 2, added.operands[1])


@planted("sm100_prenorm_tiles", says=r"TMEM columns 16 to 19")
def squares_over_those_of_the_tile_before(text: str, plan: Plan) -> str:
    """The casting role does not wait until the slot of accumulators is empty."""
    squares = find(text, "tcgen05.st.sync.aligned.32x32b.x4")[0].start
    waits = [each for each in at(text, plan, WAIT, "acc", "empty") if each.start < squares]
    return replace_all(text, waits[-1:], lambda each: PASSED)


@planted("sm100_prenorm_tiles", says=r"acc\.|acc\[")
def squares_never_told(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "acc", "full"))
