"""Mistakes of the copy engine and the epilogue: boxes, multicast, cp.async, staging buffers, proxies, bulk groups."""

from __future__ import annotations

import re

from gemmgen.ir import Plan

from .edit import planted, with_operand
from .ptx_text import (
    Statement,
    definition,
    delete,
    find,
    insert,
    register_of,
    replace,
    replace_all,
    rewrite,
    statements,
)

LOAD = "cp.async.bulk.tensor.2d.shared::cluster"
STORE = "cp.async.bulk.tensor.2d.global"
COMMIT = "cp.async.bulk.commit_group"


def _exchanged(text: str, copy: Statement, operand: int) -> str:
    swapped = re.sub(r"\{(\S+), (\S+)\}", r"{\2, \1}", copy.operands[operand])
    return replace(text, copy, rewrite(copy, **{f"_{operand}": swapped}))


@planted("bf16_nt")
def coordinates_of_a_exchanged(text: str, plan: Plan) -> str:
    return _exchanged(text, find(text, LOAD)[0], 1)


@planted("bf16_nt")
def coordinates_of_the_store_exchanged(text: str, plan: Plan) -> str:
    return _exchanged(text, find(text, STORE)[0], 0)


@planted("bf16_nt", says=r"ab\.")
def b_copied_where_a_goes(text: str, plan: Plan) -> str:
    a, b = find(text, LOAD)[:2]
    return with_operand(text, [b], 0, a.operands[0])


@planted("bf16_nt", says=r"ab\.full\[\d\]")
def one_copy_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, LOAD)[1:2])


@planted("bf16_nt", says=r"ab\.")
def producer_slots_half_as_far_apart(text: str, plan: Plan) -> str:
    copy = find(text, LOAD)[0]
    address = definition(text, register_of(copy.operands[0]), copy.start)
    base = definition(text, address.operands[1], address.start)
    shift = definition(text, base.operands[1], base.start)
    return with_operand(text, [shift], 2, str(int(shift.operands[2]) - 1))


@planted("fp8_parts", says=r"ab\.full\[\d\]")
def bytes_expected_of_parts_that_stay_away(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "mbarrier.arrive.expect_tx")[:1], 2, str(plan.mainloop.tx_bytes))


@planted("fp8_parts", says=r"ab\.full\[\d\]")
def a_part_with_rows_stays_away(text: str, plan: Plan) -> str:
    return delete(text, find(text, LOAD)[2:3])


@planted("fp8_parts")
def a_part_where_another_goes(text: str, plan: Plan) -> str:
    first, second = find(text, LOAD)[1:3]
    return with_operand(text, [second], 0, first.operands[0])


@planted("fp8_parts", says=r"ab\.")
def a_part_by_the_map_of_whole_tiles(text: str, plan: Plan) -> str:
    """More rows than the slot waits for, past its end."""
    whole, first, second = find(text, LOAD)[:3]
    a, part = (each.operands[1].split(",")[0].strip("[ ") for each in (whole, first))
    return replace(text, second, rewrite(second, _1=second.operands[1].replace(part, a)))


@planted("fp8_pair", says=r"ab\.full\[\d\]")
def multicast_only_to_the_first_cta(text: str, plan: Plan) -> str:
    copy = find(text, f"{LOAD}.global.mbarrier::complete_tx::bytes.multicast")[0]
    return with_operand(text, [definition(text, copy.operands[3], copy.start)], 1, "1")


@planted("fp8_pair", says=r"ab\.full\[\d\]|rank|CTA")
def multicast_beyond_the_cluster(text: str, plan: Plan) -> str:
    copy = find(text, f"{LOAD}.global.mbarrier::complete_tx::bytes.multicast")[0]
    return with_operand(text, [definition(text, copy.operands[3], copy.start)], 1, "7")


@planted("fp8_pair")
def both_ctas_fetch_the_same_half(text: str, plan: Plan) -> str:
    """The row coordinate forgets the CTA's rank."""
    copy = find(text, f"{LOAD}.global.mbarrier::complete_tx::bytes.multicast")[0]
    outer = re.findall(r"%\w+", copy.operands[1])[2]
    tile = definition(text, outer, copy.start)
    rank = next(name for name in tile.operands[1:] if _from_rank(text, name, tile.start))
    plain = next(name for name in tile.operands[1:] if name != rank)
    return replace(text, copy, rewrite(copy, _1=copy.operands[1].replace(outer, plain)))


def _from_rank(text: str, register: str, place: int) -> bool:
    made = definition(text, register, place)
    return made.opcode == "shl.b32" and "cluster_ctarank" in str(definition(text, made.operands[1], made.start))


@planted("fp8", says=r"ab\.")
def scale_copied_to_the_wrong_slot(text: str, plan: Plan) -> str:
    copy = find(text, "cp.async.ca")[0]
    address = definition(text, register_of(copy.operands[0]), copy.start)
    return with_operand(text, [address], 2, str(int(address.operands[2]) + 16))


@planted("fp8_rows", says=r"sfa")
def scales_past_the_matrix(text: str, plan: Plan) -> str:
    """The last row's index is no longer clamped."""
    copies = find(text, "cp.async.ca")
    clamps = [each for each in find(text, "min.u32") if copies[0].start > each.start > copies[0].start - 4000]
    clamp = clamps[-1]
    return replace(text, clamp, f"mov.u32 {clamp.target}, {clamp.operands[1]};")


@planted("bf16_nt", says=r"cd\.d\[\d\].*fence\.proxy\.async")
def proxy_fence_before_the_store_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.proxy.async"))


@planted("bf16_nt", says=r"cd\.d\[\d\]")
def warp_not_synchronised_before_the_store(text: str, plan: Plan) -> str:
    """bar.warp.sync between the lanes that wrote the staging buffer and the lane that stores it."""
    store = find(text, STORE)[0]
    return delete(text, [each for each in find(text, "bar.warp.sync") if each.start < store.start][-1:])


@planted("bf16_nt", says=r"cd\.d\[\d\]")
def warp_not_synchronised_before_a_buffer_is_used_again(text: str, plan: Plan) -> str:
    """bar.warp.sync between the lane that waited for the buffer and the lanes that write it."""
    return delete(text, find(text, "bar.warp.sync")[:1])


@planted("bf16_nt", says=r"cd\.d\[\d\] of math warp\[\d\]")
def staging_buffer_used_again_unwaited(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read", lambda each: each.operands[0] != "0"))


@planted("bf16_nt")
def exit_while_stores_read_shared_memory(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read", lambda each: each.operands[0] == "0"))


@planted("bf16_nt", says=r"")
def store_never_committed(text: str, plan: Plan) -> str:
    return delete(text, find(text, COMMIT))


@planted("bf16_nt")
def store_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, STORE))


@planted("fp8", says=r"cd\.d\[\d\]")
def one_staging_buffer_too_few(text: str, plan: Plan) -> str:
    """Every turn begins at buffer 0, while the wait still lets one be in flight."""
    store = find(text, STORE)[0]
    address = definition(text, register_of(store.operands[1]), store.start)
    offset = definition(text, address.operands[2], address.start)
    toggles = find(text, "selp.b32", lambda each: each.target == offset.operands[1])
    return with_operand(text, toggles, 2, "0")


@planted("bf16_nt")
def stmatrix_without_the_swizzle(text: str, plan: Plan) -> str:
    store = find(text, "stmatrix")[0]
    address = definition(text, register_of(store.operands[0]), store.start)
    swizzled = definition(text, address.operands[1], address.start)
    return replace(text, swizzled, f"mov.b32 {swizzled.target}, {swizzled.operands[2]};")


@planted("bf16_nt")
def stmatrix_16_bytes_off(text: str, plan: Plan) -> str:
    store = find(text, "stmatrix")[1]
    address = register_of(store.operands[0])
    return with_operand(text, [store], 0, f"[{address}+16]")


@planted("bf16_nt")
def stmatrix_of_exchanged_fragments(text: str, plan: Plan) -> str:
    store = find(text, "stmatrix")[0]
    registers = re.findall(r"%\w+", store.operands[1])
    swapped = [registers[index] for index in (0, 2, 1, 3)]
    return with_operand(text, [store], 1, "{" + ", ".join(swapped) + "}")


@planted("bf16_nn_c", says=r"\bc\b")
def c_read_past_its_end(text: str, plan: Plan) -> str:
    """The row of the residual is not held back at the last one."""
    lower = find(text, "ld.global")[2]
    clamp = [each for each in find(text, "selp") if each.start < lower.start][-1]
    return with_operand(text, [clamp], 2, clamp.operands[1])


@planted("bf16_direct", says=r"\bd\b")
def direct_store_past_the_last_row(text: str, plan: Plan) -> str:
    """The row check of the direct store passes always."""
    store = find(text, "st.global")[0]
    checks = [each for each in find(text, "bra") if each.start < store.start]
    return delete(text, checks[-1:])


@planted("bf16_turns", says=r"cd\.d\[\d\]")
def turn_begun_before_its_buffers_are_free(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read")[:1])


@planted("bf16_turns", says=r"cd\.d\[\d\]")
def last_box_of_a_turn_behind_its_group(text: str, plan: Plan) -> str:
    """Nobody waits for a copy that is asked for when its group has ended."""
    store, commit = find(text, STORE)[-1], find(text, COMMIT)[-1]
    before = f"{commit.opcode}; {text[store.start : store.end]}"
    return replace_all(text, [store, commit], lambda each: before if each is store else "")


@planted("bf16_turns")
def second_box_of_a_turn_from_the_first_buffer(text: str, plan: Plan) -> str:
    first, second = find(text, STORE)[:2]
    return with_operand(text, [second], 1, first.operands[1])


@planted("bf16_turns", says=r"cd\.d\[\d\].*fence\.proxy\.async")
def proxy_fence_before_a_turn_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.proxy.async"))


@planted("fp8_apart", says=r"cd\.d\[\d\].*fence\.proxy\.async")
def proxy_fence_before_staged_products_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.proxy.async"))


@planted("fp8_apart", says=r"cd\.d\[\d\]")
def products_outside_end_no_group(text: str, plan: Plan) -> str:
    """A product that is not copied ends no group, so that the next one to fill its buffer waits for too few."""
    return delete(text, [each for each in find(text, COMMIT) if not _has_copies(text, each)])


def _has_copies(text: str, commit: Statement) -> bool:
    """Whether a copy is asked for between the last label or branch and the end of the group."""
    before = text[: commit.start]
    block = max(before.rfind("\n$"), before.rfind("bra"))
    return STORE in before[block:]


@planted("fp8_apart")
def last_product_never_copied(text: str, plan: Plan) -> str:
    return delete(text, find(text, STORE)[-1:])


@planted("fp8_apart", says=r"cd\.d\[\d\]")
def product_staged_before_its_buffer_is_free(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read"))


@planted("fp8_apart_columns", says=r"ab\.sfa\[\d\].*ordinary loads")
def scales_read_behind_what_is_staged(text: str, plan: Plan) -> str:
    """An H200 multiplied with scales of a later K block so: reads that wait for a warp's stores may miss their slot."""
    kinds = {"wgmma.commit_group": "c", "ld.shared.f32": "l", "st.shared.v2": "s", "wgmma.wait_group": "w"}
    found = [
        (each, kind) for each in statements(text) for opcode, kind in kinds.items() if each.opcode.startswith(opcode)
    ]
    beside = re.search("c(l+)(s+)w", "".join(kind for _, kind in found))
    assert beside is not None
    loads = [each for each, _ in found[beside.start(1) : beside.end(1)]]
    last, _ = found[beside.end(2) - 1]
    return delete(insert(text, last.end, " ".join(text[each.start : each.end] for each in loads)), loads)
