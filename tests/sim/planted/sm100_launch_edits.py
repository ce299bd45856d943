"""Mistakes of kernels that take over launches: answers read, understood, shared within a pair and given back."""

from __future__ import annotations

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import planted, with_operand
from .ptx_text import Statement, definition, delete, find, insert, replace, replace_all, rewrite
from .sm100_barrier_edits import OWN
from .sm100_parts import ARRIVE, EXPECT, MAP, WAIT, at, nearest_before

ASK, TAKEN, FIRST = (
    "clusterlaunchcontrol.try_cancel",
    "clusterlaunchcontrol.query_cancel.is_canceled",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid",
)


def _fetchers_and_others(text: str, plan: Plan) -> tuple[Statement, list[Statement]]:
    """The wait for an answer of the thread that asks, and those of all other roles."""
    waits = at(text, plan, WAIT, "tile", "full")
    ask = find(text, ASK)[0]
    fetcher = next(each for each in waits if each.start > ask.start)
    return fetcher, [each for each in waits if each != fetcher]


def _verdicts(text: str) -> list[Statement]:
    """What makes a number of each answer's predicate."""
    found = []
    for query in find(text, TAKEN):
        found.append(next(each for each in find(text, "selp.b32") if each.start > query.start))
    return found


# ------------------------------------------------------------------------------------------------ answers


@planted("sm100_clc", says=r"tile|query_cancel")
def answer_read_without_waiting(text: str, plan: Plan) -> str:
    return replace_all(text, _fetchers_and_others(text, plan)[1], lambda each: PASSED)


@planted("sm100_clc", says=r"tile|query_cancel")
def one_role_reads_the_answer_without_waiting(text: str, plan: Plan) -> str:
    return replace(text, _fetchers_and_others(text, plan)[1][0], PASSED)


@planted("sm100_clc", says=r"tile|query_cancel")
def fetcher_reads_the_answer_without_waiting(text: str, plan: Plan) -> str:
    return replace(text, _fetchers_and_others(text, plan)[0], PASSED)


@planted("sm100_clc", says=r"tile")
def answer_slot_asked_for_again_early(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "tile", "empty"), lambda each: PASSED)


@planted("sm100_clc", says=r"tile\.full|query_cancel")
def bytes_of_the_answer_not_expected(text: str, plan: Plan) -> str:
    """The asking thread arrives without announcing 16 bytes."""
    expects = at(text, plan, EXPECT, "tile", "full")
    return replace_all(text, expects, lambda each: f"mbarrier.arrive.shared::cta.b64 _, {each.operands[1]};")


@planted("sm100_clc", says=r"tile\.full")
def half_the_bytes_of_the_answer_expected(text: str, plan: Plan) -> str:
    expects = at(text, plan, EXPECT, "tile", "full")
    return with_operand(text, [definition(text, each.operands[2], each.start) for each in expects], 1, "8")


@planted("sm100_clc", says=r"tile\.full")
def nobody_asks(text: str, plan: Plan) -> str:
    return delete(text, find(text, ASK))


@planted("sm100_clc")
def taken_over_and_refused_exchanged(text: str, plan: Plan) -> str:
    """Every role takes the predicate for its opposite."""
    verdicts = _verdicts(text)
    return with_operand(with_operand(text, verdicts, 1, "0"), _verdicts(with_operand(text, verdicts, 1, "0")), 2, "1")


@planted("sm100_clc", says=r"nothing is left")
def refusal_ignored(text: str, plan: Plan) -> str:
    """Every role goes on whatever the answer says."""
    return replace_all(text, _verdicts(text), lambda each: f"mov.b32 {each.target}, 1;")


@planted("sm100_clc")
def refusal_ignored_by_the_storing_warps(text: str, plan: Plan) -> str:
    first = _verdicts(text)[0]
    return replace(text, first, f"mov.b32 {first.target}, 1;")


@planted("sm100_clc")
def which_cta_was_taken_over_not_read(text: str, plan: Plan) -> str:
    """Every tile is the first one."""
    return replace_all(text, find(text, FIRST), lambda each: f"mov.b32 {each.target}, 0;")


@planted("sm100_clc")
def storing_warps_take_the_tile_after_the_answers(text: str, plan: Plan) -> str:
    first = find(text, FIRST)[0]
    return insert(text, first.end, f"@p add.s32 {first.target}, {first.target}, 1;")


@planted("sm100_clc", says=r"tile\.full|tile\.empty")
def fetcher_stops_after_one_answer(text: str, plan: Plan) -> str:
    """It leaves its loop, the others wait for more."""
    last = _verdicts(text)[-1]
    return replace(text, last, f"mov.b32 {last.target}, 0;")


# ------------------------------------------------------------------------------------------------ slots


@planted("sm100_clc", says=r"tile\.empty")
def one_role_keeps_the_answers_slot(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "tile", "empty")[:1])


@planted("sm100_clc", says=r"tile")
def answers_slot_released_before_it_is_read(text: str, plan: Plan) -> str:
    """The loading thread arrives as soon as the answer is there."""
    arrive = at(text, plan, ARRIVE, "tile", "empty")[1]
    address = definition(text, arrive.operands[1].strip("[]"), arrive.start)
    read = nearest_before(text, "ld.shared.b128", arrive.start)
    scope = text.rindex("{ .reg .pred p; .reg .b128 r;", 0, read.start)
    early = f"{{ .reg .b32 q; add.s32 q, {', '.join(address.operands[1:])}; {arrive.opcode} _, [q]; }}"
    return text[:scope] + early + "\n\t" + replace(text, arrive, "")[scope:]


@planted("sm100_clc", says=r"tile\.empty|tile")
def slot_counts_one_arrival_too_few(text: str, plan: Plan) -> str:
    """The slowest role may still read the answer when the next one comes."""
    return _counting(text, plan, plan.ring("tile").empty_count - 1)


def _counting(text: str, plan: Plan, arrivals: int) -> str:
    """The ring's empty barriers wait for so many arrivals."""
    ring = plan.ring("tile")
    places = [str(ring.empty + 8 * slot) for slot in range(ring.slots)]
    inits = find(
        text,
        "mbarrier.init",
        lambda each: definition(text, each.operands[0].strip("[]"), each.start).operands[-1] in places,
    )
    return with_operand(text, inits, 1, str(arrivals))


# ------------------------------------------------------------------------------------------------ pairs


@planted("sm100_clc_pair")
def both_ctas_ask(text: str, plan: Plan) -> str:
    """Two answers for a slot that has room for one: the fetching thread's own rank is hidden from it."""
    rank = nearest_before(text, "mov.u32", at(text, plan, EXPECT, "tile", "full")[0].start)
    ranks = [each for each in find(text, "mov.u32") if each.start <= rank.start and "%cluster_ctarank" in each.operands]
    return replace(text, ranks[-1], f"mov.u32 {ranks[-1].target}, 0;")


@planted("sm100_clc_pair", says=r"tile\.full|tile")
def answer_goes_to_the_asking_cta_only(text: str, plan: Plan) -> str:
    ask = find(text, ASK)[0]
    opcode = ask.opcode.replace(".multicast::cluster::all", "")
    return replace(text, ask, f"{opcode} {', '.join(ask.operands)};")


@planted("sm100_clc_pair", says=r"tile")
def only_the_first_cta_expects_the_answer(text: str, plan: Plan) -> str:
    """The second CTA's barrier never completes its phase."""
    expect = at(text, plan, EXPECT, "tile", "full")[0]
    guarded = f"@q {expect.opcode} {', '.join(expect.operands)};"
    own = "{ .reg .pred q; .reg .b32 r; mov.u32 r, %cluster_ctarank; setp.eq.u32 q, r, 0;"
    return replace(text, expect, f"{own} {guarded} }}")


@planted("sm100_clc_pair", says=r"tile\.empty")
def second_cta_gives_slots_back_at_home(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, MAP, "tile", "empty"), lambda each: OWN.format(*each.operands))


@planted("sm100_clc_pair", says=r"tile")
def slot_counts_the_first_cta_only(text: str, plan: Plan) -> str:
    """The leader asks again while the second CTA still reads."""
    return _counting(text, plan, plan.ring("tile").empty_count // 2)


@planted("sm100_clc_pair", says=r"tile\.empty|tile")
def second_fetcher_does_not_give_the_slot_back(text: str, plan: Plan) -> str:
    return delete(text, [_arrival(text, at(text, plan, MAP, "tile", "empty")[-1])])


def _arrival(text: str, mapped: Statement) -> Statement:
    return next(each for each in find(text, "mbarrier.arrive.shared::cluster") if each.start > mapped.start)


@planted("sm100_clc_pair")
def index_of_a_cta_taken_for_that_of_a_pair(text: str, plan: Plan) -> str:
    """The storing warps do not halve the index of the CTA that was taken over."""
    first = find(text, FIRST)[0]
    half = next(
        each
        for each in find(text, "shr.u32", lambda each: each.operands[1:] == (first.target, "1"))
        if each.start > first.start
    )
    return replace(text, half, rewrite(half, _2="0"))


@planted("sm100_clc", says=r"tile\.answer.*fence\.proxy\.async")
def answer_read_without_a_fence_before_the_next(text: str, plan: Plan) -> str:
    """The loading thread's read is not ordered before what the asynchronous proxy writes, by it or by who asks."""
    arrive, ask = at(text, plan, ARRIVE, "tile", "empty")[1], find(text, ASK)[0]
    return delete(text, [nearest_before(text, "fence.proxy.async", each.start) for each in (arrive, ask)])


@planted("sm100_clc_pair", says=r"read with ordinary loads")
def answers_are_fenced_neither_by_who_reads_nor_by_who_asks(text: str, plan: Plan) -> str:
    """Either orders reads of an answer before the next one is written to its place."""
    fences = find(text, "fence.proxy.async")
    asking = [nearest_before(text, "fence.proxy.async", find(text, ASK)[0].start)]
    reading = [next(each for each in fences if each.start > query.start) for query in find(text, TAKEN)]
    return delete(text, [*asking, *reading])
