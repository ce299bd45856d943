"""Mistakes of sm100 kernels at barriers: commits, accumulator and scale rings, CTA pairs, tensor memory's lifetime."""

from __future__ import annotations

from gemmgen.ir import Plan

from .barrier_edits import PASSED
from .edit import planted, with_operand
from .ptx_text import definition, delete, find, insert, next_label, replace, replace_all, rewrite
from .sm100_parts import ARRIVE, COMMIT, EXPECT, MAP, WAIT, address_of, at, nearest_before, products, umma

OWN = "{{ .reg .b32 own; mov.u32 own, %cluster_ctarank; mapa.shared::cluster.u32 {0}, {1}, own; }}"
"""The barrier of the CTA itself instead of the leader's."""


# ------------------------------------------------------------------------------------------------ accumulators


@planted("sm100_fp8", says=r"acc")
def accumulator_read_without_waiting_for_its_products(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "acc", "full"), lambda each: PASSED)


@planted("sm100_fp8")
def accumulator_slot_reused_early(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "acc", "empty"), lambda each: PASSED)


@planted("sm100_fp8", says=r"fence::after")
def accumulator_slot_reused_without_a_fence(text: str, plan: Plan) -> str:
    """None of the fences between the wait for an empty slot and the first product."""
    start, end = at(text, plan, WAIT, "acc", "empty")[0].start, products(text)[0].start
    return delete(text, [each for each in find(text, "tcgen05.fence::after") if start < each.start < end])


@planted("sm100_pair")
def pair_reuses_an_accumulator_slot_early(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "acc", "empty"), lambda each: PASSED)


@planted("sm100_fp8")
def loads_of_the_accumulator_not_waited_for(text: str, plan: Plan) -> str:
    return delete(text, find(text, "tcgen05.wait::ld"))


@planted("sm100_fp8")
def slot_released_before_its_loads_have_ended(text: str, plan: Plan) -> str:
    """tcgen05.wait::ld moves behind the arrival at acc.empty."""
    wait, arrive = find(text, "tcgen05.wait::ld")[0], at(text, plan, ARRIVE, "acc", "empty")[0]
    place = next_label(text, arrive.end)
    return replace(insert(text, place, text[wait.start : wait.end]), wait, "")


@planted("sm100_fp8", says=r"acc\.empty")
def accumulators_never_released(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "acc", "empty"))


@planted("sm100_pair", says=r"acc\.empty")
def peer_releases_its_own_accumulator_barrier(text: str, plan: Plan) -> str:
    """The second CTA arrives at home, not where the products are issued."""
    return replace_all(text, at(text, plan, MAP, "acc", "empty"), lambda each: OWN.format(*each.operands))


# ------------------------------------------------------------------------------------------------ commits


@planted("sm100_fp8", says=r"ab\.")
def slot_commit_to_the_full_barrier(text: str, plan: Plan) -> str:
    commit = at(text, plan, COMMIT, "ab", "empty")[0]
    return with_operand(text, [address_of(text, commit, COMMIT)], 2, str(plan.ring("ab").full))


@planted("sm100_fp8", says=r"ab\.empty")
def slot_commit_deleted(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, COMMIT, "ab", "empty"))


@planted("sm100_fp8", says=r"acc\.full")
def accumulator_commit_deleted(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, COMMIT, "acc", "full"))


@planted("sm100_fp8", says=r"acc")
def accumulator_committed_before_its_products(text: str, plan: Plan) -> str:
    """The commit stands in front of the K loop."""
    commit, wait = at(text, plan, COMMIT, "acc", "full")[0], at(text, plan, WAIT, "acc", "empty")[0]
    address = address_of(text, commit, COMMIT)
    fence = next(each for each in find(text, "tcgen05.fence::after") if each.start > wait.start)
    early = f"{{ .reg .b32 q; add.s32 q, {address.operands[1]}, {address.operands[2]}; {commit.opcode} [q]; }}"
    return insert(replace(text, commit, ""), fence.end, early)


@planted("sm100_fp8", says=r"ab\.|acc\.")
def slot_released_by_a_plain_arrival(text: str, plan: Plan) -> str:
    """The issuing thread arrives at once instead of committing: products still read the slot."""
    commits = at(text, plan, COMMIT, "ab", "empty")
    return replace_all(text, commits, lambda each: f"mbarrier.arrive.shared::cta.b64 _, {each.operands[0]};")


@planted("sm100_pair", says=r"ab\.empty")
def slot_commit_reaches_the_first_cta_only(text: str, plan: Plan) -> str:
    commit = at(text, plan, COMMIT, "ab", "empty")[0]
    return with_operand(text, [definition(text, commit.operands[1], commit.start)], 1, "1")


@planted("sm100_pair", says=r"acc\.full")
def accumulator_commit_reaches_the_first_cta_only(text: str, plan: Plan) -> str:
    commit = at(text, plan, COMMIT, "acc", "full")[0]
    return with_operand(text, [definition(text, commit.operands[1], commit.start)], 1, "1")


@planted("sm100_pair", says=r"sf\.empty")
def scale_commit_reaches_the_first_cta_only(text: str, plan: Plan) -> str:
    commit = at(text, plan, COMMIT, "sf", "empty")[0]
    return with_operand(text, [definition(text, commit.operands[1], commit.start)], 1, "1")


@planted("sm100_fp8", says=r"ab\.")
def operands_multiplied_before_they_arrive(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "ab", "full"), lambda each: PASSED)


@planted("sm100_fp8", says=r"ab\.")
def producer_does_not_wait_for_products(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "ab", "empty"), lambda each: PASSED)


# ------------------------------------------------------------------------------------------------ scales


@planted("sm100_fp8", says=r"sf\.sfa")
def scales_copied_before_they_are_transposed(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "sf", "ready"), lambda each: PASSED)


@planted("sm100_fp8", says=r"ab\.")
def data_multiplied_before_its_scales_are_transposed(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "ab", "ready"), lambda each: PASSED)


@planted("sm100_fp8", says=r"ab\.sfb")
def multiplier_waits_for_untransposed_scales(text: str, plan: Plan) -> str:
    """It waits until the slot is full, not until it is ready."""
    waits = at(text, plan, WAIT, "ab", "ready")
    return with_operand(text, [address_of(text, each, WAIT) for each in waits], 2, str(plan.ring("ab").full))


@planted("sm100_fp8", says=r"sf\.sfa")
def scales_transposed_before_they_arrive(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "sf", "full"), lambda each: PASSED)


@planted("sm100_fp8", says=r"ab\.sfb")
def scales_among_data_transposed_before_they_arrive(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "ab", "full"), lambda each: PASSED)


@planted("sm100_fp8", says=r"sf\.ready")
def transposed_scales_not_handed_on(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, ARRIVE, "sf", "ready"))


@planted("sm100_pair", says=r"sf\.ready")
def peers_scales_not_handed_on_to_the_leader(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, MAP, "sf", "ready"), lambda each: OWN.format(*each.operands))


@planted("sm100_nvfp4", says=r"ab\.ready")
def peers_slot_not_handed_on_to_the_leader(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, MAP, "ab", "ready"), lambda each: OWN.format(*each.operands))


@planted("sm100_pair", says=r"sf\.")
def leader_waits_for_its_own_scales_only(text: str, plan: Plan) -> str:
    return _one_arrival_makes_ready(text, plan, "sf")


@planted("sm100_nvfp4", says=r"ab\.")
def leader_waits_for_its_own_slot_only(text: str, plan: Plan) -> str:
    return _one_arrival_makes_ready(text, plan, "ab")


def _one_arrival_makes_ready(text: str, plan: Plan, name: str) -> str:
    """The ring's ready barriers count one arrival where both CTAs of the pair arrive."""
    ring = plan.ring(name)
    places = [str(ring.ready + 8 * slot) for slot in range(ring.slots)]
    inits = find(
        text,
        "mbarrier.init",
        lambda each: definition(text, each.operands[0].strip("[]"), each.start).operands[-1] in places,
    )
    return with_operand(text, inits, 1, "1")


@planted("sm100_pair", says=r"sf\.empty")
def scale_slots_never_released(text: str, plan: Plan) -> str:
    return delete(text, at(text, plan, COMMIT, "sf", "empty"))


@planted("sm100_mixed", says=r"sf\.")
def scale_slots_filled_without_waiting(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, WAIT, "sf", "empty"), lambda each: PASSED)


@planted("sm100_fp8", says=r"sf\.")
def producer_turns_the_scale_ring_at_the_wrong_block(text: str, plan: Plan) -> str:
    """The producer loads a word of A's scales every second K block, not every fourth."""
    expect = at(text, plan, EXPECT, "sf", "full")[0]
    return with_operand(text, [nearest_before(text, "and.b32", expect.start)], 2, "1")


@planted("sm100_fp8", says=r"sf\.")
def issuer_turns_the_scale_ring_at_the_wrong_block(text: str, plan: Plan) -> str:
    wait = at(text, plan, WAIT, "sf", "ready")[0]
    return with_operand(text, [nearest_before(text, "and.b32", wait.start)], 2, "1")


# ------------------------------------------------------------------------------------------------ bytes


@planted("sm100_mixed", says=r"ab\.full")
def bytes_of_spread_fp4_not_halved(text: str, plan: Plan) -> str:
    """Elements that take a byte each in shared memory are counted as bytes; TMA counts the packed ones."""
    ring = plan.ring("ab")
    full = sum(part.atoms * part.atom_bytes for part in ring.parts)
    assert full > ring.tx_bytes
    expects = at(text, plan, EXPECT, "ab", "full")
    return with_operand(text, [definition(text, each.operands[2], each.start) for each in expects], 1, str(full))


@planted("sm100_pair", says=r"ab\.full")
def bytes_of_one_cta_expected_of_two(text: str, plan: Plan) -> str:
    half = str(plan.ring("ab").tx_bytes // 2)
    expects = at(text, plan, EXPECT, "ab", "full")
    return with_operand(text, [definition(text, each.operands[2], each.start) for each in expects], 1, half)


@planted("sm100_pair", says=r"ab\.full")
def peer_loads_signal_its_own_barrier(text: str, plan: Plan) -> str:
    return replace_all(text, at(text, plan, MAP, "ab", "full"), lambda each: OWN.format(*each.operands))


@planted("sm100_pair", says=r"ab\.full")
def both_ctas_expect_the_bytes(text: str, plan: Plan) -> str:
    """The peer arms its own barrier too, which nothing ever completes."""
    expect = at(text, plan, EXPECT, "ab", "full")[0]
    return delete(text, [nearest_before(text, "bra", expect.start)])


@planted("sm100_pair")
def both_ctas_load_the_same_half_of_b(text: str, plan: Plan) -> str:
    load = find(text, "cp.async.bulk.tensor.2d.cta_group::2")[-1]
    row = load.operands[1].split(",")[-1].strip(" }]")
    place = definition(text, row, load.start)
    assert place.opcode == "add.s32"
    return replace(text, place, f"mov.u32 {place.target}, {place.operands[1]};")


# ------------------------------------------------------------------------------------------------ lifetime


@planted("sm100_pair")
def both_ctas_issue_products(text: str, plan: Plan) -> str:
    """The second CTA's issuing warp goes to work as well: its own rank is hidden from it."""
    elect = nearest_before(text, "elect.sync", products(text)[0].start)
    rank = nearest_before(text, "mov.u32", elect.start)
    assert rank.operands[1] == "%cluster_ctarank"
    return replace(text, rank, f"mov.u32 {rank.target}, 0;")


@planted("sm100_fp8", says=r"tensor memory|columns|dealloc")
def tensor_memory_not_freed(text: str, plan: Plan) -> str:
    return delete(text, find(text, "tcgen05.dealloc"))


@planted("sm100_fp8", says=r"dealloc|columns")
def more_columns_freed_than_allocated(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "tcgen05.dealloc"), 1, str(2 * umma(plan).tmem_columns))


@planted("sm100_fp8", says=r"dealloc|columns")
def fewer_columns_freed_than_allocated(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "tcgen05.dealloc"), 1, str(umma(plan).tmem_columns // 2))


@planted("sm100_fp8", says=r"allocat|columns")
def half_the_columns_allocated(text: str, plan: Plan) -> str:
    half = str(umma(plan).tmem_columns // 2)
    return with_operand(
        with_operand(text, find(text, "tcgen05.alloc"), 1, half), find(text, "tcgen05.dealloc"), 1, half
    )


@planted("sm100_fp8")
def tensor_memory_freed_while_others_read_it(text: str, plan: Plan) -> str:
    """The CTA is not synchronised before its memory goes away."""
    free = find(text, "tcgen05.dealloc")[0]
    return delete(text, [nearest_before(text, "bar.sync", free.start)])


@planted("sm100_pair")
def pair_frees_before_the_peer_is_done(text: str, plan: Plan) -> str:
    """The CTA is synchronised at the end, the pair is not."""
    arrive, wait = find(text, "barrier.cluster.arrive")[-1], find(text, "barrier.cluster.wait")[-1]
    return replace(replace(text, wait, ""), arrive, "bar.sync 0;")


@planted("sm100_fp8")
def address_of_tensor_memory_read_before_it_is_written(text: str, plan: Plan) -> str:
    allocate = find(text, "tcgen05.alloc")[0]
    return delete(text, [next(each for each in find(text, "bar.sync") if each.start > allocate.start)])


@planted("sm100_pair", says=r"ab|acc|sf|exited|CTA")
def cta_leaves_without_draining_its_slots(text: str, plan: Plan) -> str:
    """The waits behind the K loop and the last cluster barrier are gone: arrivals of late products find nobody."""
    drains = [each for ring in ("ab", "sf") for each in at(text, plan, WAIT, ring, "empty")[1:]]
    text = replace_all(text, drains, lambda each: PASSED)
    return delete(text, find(text, "barrier.cluster.arrive")[-1:] + find(text, "barrier.cluster.wait")[-1:])


@planted("sm100_fp8", says=r"lane|warp|quadrant|subpartition")
def warps_reach_for_lanes_of_others(text: str, plan: Plan) -> str:
    """Lane 16 w of tensor memory where warp w owns 32 w."""
    shift = find(text, "shl.b32", lambda each: each.operands[2] == "21")[0]
    return replace(text, shift, rewrite(shift, _2="20"))
