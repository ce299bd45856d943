"""Mistakes around wgmma: groups and fences, descriptors, accumulators, promotion, slot addresses."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.ir import Plan

from .edit import planted, with_operand
from .ptx_text import Statement, definition, delete, find, insert, register_of, replace, rewrite

DESCRIPTOR_A, DESCRIPTOR_B = 1, 2
LBO, SBO, SWIZZLE = 16, 32, 62


def _products(text: str) -> list[Statement]:
    return find(text, "wgmma.mma_async")


def _constants(text: str, part: Callable[[int], int]) -> str:
    """Every descriptor's constant half changed."""
    found = find(text, "or.b64", lambda each: each.operands[2].isdigit() and int(each.operands[2]) >> 62 == 1)
    for statement in reversed(found):
        text = replace(text, statement, rewrite(statement, _2=str(part(int(statement.operands[2])))))
    return text


@planted("bf16_nt", says=r"wgmma")
def wgmma_fence_deleted(text: str, plan: Plan) -> str:
    """The accumulators were set to zero before it."""
    return delete(text, find(text, "wgmma.fence"))


@planted("fp8", says=r"ab\.a\[\d\]")
def wgmma_commit_deleted(text: str, plan: Plan) -> str:
    return delete(text, find(text, "wgmma.commit_group"))


@planted("fp8", says=r"")
def promotion_before_the_products_have_ended(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "wgmma.wait_group"), 0, "1")


@planted("bf16_nt", says=r"")
def epilogue_before_the_products_have_ended(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "wgmma.wait_group", lambda each: each.operands[0] == "0"), 0, "1")


@planted("fp8")
def sum_starts_with_what_the_registers_held(text: str, plan: Plan) -> str:
    """scale-d is 1 in the first product of a K block."""
    first = _products(text)[0]
    tests = [each for each in find(text, "setp.ne.b32") if each.start < first.start]
    return with_operand(text, tests[-1:], 1, "1")


@planted("bf16_nt")
def accumulators_start_at_one(text: str, plan: Plan) -> str:
    first = _products(text)[0]
    zeros = find(text, "mov.f32", lambda each: each.operands[1] == "0f00000000")
    return with_operand(text, [each for each in zeros if each.start < first.start], 1, "0f3F800000")


@planted("bf16_nt")
def accumulators_not_cleared_between_tiles(text: str, plan: Plan) -> str:
    """The accumulators of the tile before go on: the zeros are written once, before the tile loop."""
    first = _products(text)[0]
    clears = [each for each in find(text, "mov.f32") if each.start < first.start]
    return delete(text, clears)


@planted("fp8")
def k_advance_of_b_too_short(text: str, plan: Plan) -> str:
    second = _products(text)[1]
    step = definition(text, second.operands[DESCRIPTOR_B], second.start)
    return with_operand(text, [step], 2, "1")


@planted("bf16_tn")
def k_advance_of_an_mn_major_b_too_short(text: str, plan: Plan) -> str:
    second = _products(text)[1]
    step = definition(text, second.operands[DESCRIPTOR_B], second.start)
    return with_operand(text, [step], 2, "2")


@planted("fp8")
def k_step_forgotten(text: str, plan: Plan) -> str:
    """The second product reads the first one's B again."""
    first, second = _products(text)[:2]
    return with_operand(text, [second], DESCRIPTOR_B, first.operands[DESCRIPTOR_B])


@planted("fp8")
def stride_offset_halved(text: str, plan: Plan) -> str:
    return _constants(text, lambda bits: bits - (32 << SBO))


@planted("bf16_tn")
def leading_offset_halved(text: str, plan: Plan) -> str:
    return _constants(text, lambda bits: (bits & ~(0x3FFF << LBO)) | (bits >> LBO & 0x3FFF) // 2 << LBO)


@planted("fp8")
def descriptor_with_64_byte_swizzle(text: str, plan: Plan) -> str:
    return _constants(text, lambda bits: bits & ~(3 << SWIZZLE) | 2 << SWIZZLE)


@planted("fp8")
def descriptor_without_swizzle(text: str, plan: Plan) -> str:
    return _constants(text, lambda bits: bits & ~(3 << SWIZZLE))


@planted("bf16_nn_c")
def b_read_as_if_k_were_contiguous(text: str, plan: Plan) -> str:
    """The last immediate, tnspB, is 0."""
    products = _products(text)
    return with_operand(text, products, len(products[0].operands) - 1, "0")


@planted("fp8")
def a_and_b_exchanged(text: str, plan: Plan) -> str:
    first = _products(text)[0]
    a, b = first.operands[DESCRIPTOR_A], first.operands[DESCRIPTOR_B]
    return replace(text, first, rewrite(first, _1=b, _2=a))


@planted("fp8", says=r"ab\.")
def consumer_slots_half_as_far_apart(text: str, plan: Plan) -> str:
    """Slot 1 of A and B is read from the middle of slot 0."""
    first = _products(text)[0]
    shifts = [each for each in find(text, "shl.b32", lambda each: each.operands[2] == "14") if each.start < first.start]
    return with_operand(text, shifts[-1:], 2, "13")


@planted("fp8")
def second_warpgroup_reads_the_firsts_rows(text: str, plan: Plan) -> str:
    first = _products(text)[0]
    sum_ = definition(text, first.operands[DESCRIPTOR_A], first.start)
    return with_operand(text, [sum_], 2, "0")


@planted("fp8")
def scales_of_the_next_row(text: str, plan: Plan) -> str:
    """The lower half of a fragment takes the scale of a row next to its own."""
    loads = find(text, "ld.shared.f32")
    address = definition(text, register_of(loads[-1].operands[1]), loads[-1].start)
    return with_operand(text, [address], 2, str(int(address.operands[2]) + 4))


@planted("fp8", says=r"ab\.")
def scales_read_before_the_full_wait(text: str, plan: Plan) -> str:
    """The column's scale is fetched above the wait for its slot."""
    load = find(text, "ld.shared.f32")[0]
    wait = [each for each in find(text, "mbarrier.try_wait") if each.start < load.start][-1]
    scope = text.rindex("\n$L__BB", 0, wait.start)
    slot = definition(text, register_of(load.operands[1]), load.start)
    offset = slot.operands[2]
    index = definition(text, definition(text, slot.operands[1], slot.start).operands[1], slot.start)
    early = (
        f"{{ .reg .b32 q; .reg .b64 w; shl.b32 q, {index.operands[1]}, {index.operands[2]}; mov.u64 w, gemmgen_shared; "
        f".reg .b32 s; cvt.u32.u64 s, w; add.s32 q, q, s; add.s32 q, q, {offset}; ld.shared.f32 {load.target}, [q]; }}"
    )
    return insert(replace(text, load, ""), scope, early)


@planted("bf16_nt")
def one_k_block_too_few(text: str, plan: Plan) -> str:
    """The consumer leaves the K loop a block early, as does nobody else."""
    last = _products(text)[-1]
    back = next(each for each in find(text, "setp.lt.u32") if each.start > last.start)
    counter, limit = back.operands[1:]
    early = f"{{ .reg .b32 q; add.s32 q, {limit}, -1; setp.lt.u32 {back.target}, {counter}, q; }}"
    return replace(text, back, early)
