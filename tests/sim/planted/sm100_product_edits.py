"""Mistakes of sm100 kernels in what is multiplied: descriptors, scale bytes and columns, transposition, sums."""

from __future__ import annotations

from gemmgen.ir import Plan

from .edit import planted, with_operand
from .ptx_text import Statement, definition, delete, find, register_of, replace, replace_all
from .sm100_parts import at, first_of, made_of, moved_on, nearest_before, products, umma, with_constants

D, A, B, SHAPE, SFA, SFB, ACCUMULATE = range(7)
"""Operands of a block-scaled product."""


def _descriptor(text: str, operand: int) -> Statement:
    """Where the shared-memory descriptor of one factor's first slot gets its fixed bits."""
    return first_of(text, products(text)[0], operand)


def _fixed(text: str, product: Statement, operand: int) -> Statement:
    made = definition(text, product.operands[operand], product.start)
    assert made.operands[-1].lstrip("-").isdigit(), made
    return made


# ------------------------------------------------------------------------------------------------ scales


@planted("sm100_fp8")
def wrong_scale_byte_of_b(text: str, plan: Plan) -> str:
    """The second product takes the third byte."""
    return with_constants(text, [made_of(text, products(text)[1], SHAPE, "or.b32")], 3 << 4)


@planted("sm100_fp8")
def moving_scale_byte_of_a_stands_still(text: str, plan: Plan) -> str:
    """Every K block takes the first byte of a word that serves four."""
    mask = made_of(text, products(text)[0], SHAPE, "and.b32")
    return with_operand(text, [mask], 2, "0")


@planted("sm100_fp8")
def moving_scale_byte_of_a_moves_half_as_far(text: str, plan: Plan) -> str:
    mask = made_of(text, products(text)[0], SHAPE, "and.b32")
    return with_operand(text, [mask], 2, str(1 << 29))


@planted("sm100_nvfp4")
def scales_of_the_wrong_word(text: str, plan: Plan) -> str:
    """NVFP4: the second product of a K block takes the first one's columns of B."""
    first, second = products(text)[:2]
    assert first.operands[SFB] != second.operands[SFB]
    return with_operand(text, [second], SFB, first.operands[SFB])


@planted("sm100_fp8")
def scales_lie_in_the_accumulators(text: str, plan: Plan) -> str:
    place = definition(text, register_of(products(text)[0].operands[SFB]), products(text)[0].start)
    return with_operand(text, [place], 2, str(plan.ring("acc").column))


@planted("sm100_fp8")
def scales_of_a_and_b_share_columns(text: str, plan: Plan) -> str:
    place = definition(text, register_of(products(text)[0].operands[SFB]), products(text)[0].start)
    return with_operand(text, [place], 2, str(plan.ring("sf").part("sfa").column))


@planted("sm100_fp8")
def scales_of_a_and_b_exchanged(text: str, plan: Plan) -> str:
    product = products(text)[0]
    return with_operand(
        with_operand(text, [product], SFB, product.operands[SFA]), [product], SFA, product.operands[SFB]
    )


@planted("sm100_fp8")
def scales_not_copied_to_tensor_memory(text: str, plan: Plan) -> str:
    return delete(text, find(text, "tcgen05.cp")[:1])


@planted("sm100_fp8")
def scales_copied_from_the_next_slot(text: str, plan: Plan) -> str:
    return moved_on(text, first_of(text, find(text, "tcgen05.cp")[1], 1), plan.ring("ab").part("sfb").bytes)


def _ready(text: str, plan: Plan) -> Statement:
    """The first arrival of the transposing warp."""
    return at(text, plan, "mbarrier.arrive.shared::cta", "sf", "ready")[0]


@planted("sm100_fp8", says=r"sf\.sfa.*fence\.proxy\.async|proxy")
def transposed_scales_not_fenced(text: str, plan: Plan) -> str:
    return delete(text, [nearest_before(text, "fence.proxy.async", _ready(text, plan).start)])


@planted("sm100_fp8")
def lanes_not_synchronised_between_reading_and_writing_scales(text: str, plan: Plan) -> str:
    store = nearest_before(text, "st.shared.v4", _ready(text, plan).start)
    return delete(text, [nearest_before(text, "bar.warp.sync", store.start)])


@planted("sm100_fp8", says=r"scales")
def lanes_not_synchronised_before_scales_are_handed_on(text: str, plan: Plan) -> str:
    return delete(text, [nearest_before(text, "bar.warp.sync", _ready(text, plan).start)])


@planted("sm100_nvfp4")
def scales_past_the_end_of_k_not_cleared(text: str, plan: Plan) -> str:
    """NaN bytes behind the last scale of a row reach tensor memory; a product of 64 reads them where k has 32 left."""
    masks = [
        made
        for store in find(text, "st.shared.v4")
        for register in store.operands[1].split(",")
        if (made := definition(text, register.strip(" {}"), store.start)).opcode == "and.b32"
    ]
    return replace_all(text, masks, lambda each: f"mov.b32 {each.target}, {each.operands[1]};")


@planted("sm100_fp8")
def words_of_a_row_in_the_wrong_order(text: str, plan: Plan) -> str:
    """The transposition exchanges rows 32 to 63 with rows 64 to 95."""
    store = nearest_before(text, "st.shared.v4", _ready(text, plan).start)
    w, x, y, z = (register.strip(" {}") for register in store.operands[1].split(","))
    return with_operand(text, [store], 1, f"{{{w}, {y}, {x}, {z}}}")


# ------------------------------------------------------------------------------------------------ descriptors


@planted("sm100_fp8")
def stride_between_row_groups_halved(text: str, plan: Plan) -> str:
    return with_constants(text, [_descriptor(text, A)], (64 ^ 32) << 32)


@planted("sm100_bf16_tn")
def leading_offset_of_the_other_major(text: str, plan: Plan) -> str:
    """Atoms along m are as far apart as 8-k groups."""
    found = _descriptor(text, A)
    leading = int(found.operands[-1]) >> 16 & 0x3FFF
    return with_constants(text, [found], (leading ^ 64) << 16)


@planted("sm100_fp8")
def operands_read_without_their_swizzle(text: str, plan: Plan) -> str:
    return with_constants(text, [_descriptor(text, B)], 2 << 61)


@planted("sm100_fp8")
def advance_along_k_too_wide(text: str, plan: Plan) -> str:
    """The second product starts where the third should."""
    return with_constants(text, [_fixed(text, products(text)[1], A)], 2 ^ 4)


@planted("sm100_bf16_tn")
def advance_along_k_as_for_the_other_major(text: str, plan: Plan) -> str:
    second = _fixed(text, products(text)[1], B)
    step = umma(plan).step_k * 128 // 16
    assert step > 2
    return with_operand(text, [second], len(second.operands) - 1, str(int(second.operands[-1]) - step + 2))


@planted("sm100_pair")
def descriptor_of_a_one_slot_ahead(text: str, plan: Plan) -> str:
    return moved_on(text, _descriptor(text, A), plan.ring("ab").part("a").bytes)


@planted("sm100_pair")
def slots_of_b_too_close(text: str, plan: Plan) -> str:
    """The issuing warp takes the slots of B for half as far apart as they are."""
    place = definition(text, products(text)[0].operands[B], products(text)[0].start)
    stride = next(
        made for each in place.operands[1:] if (made := definition(text, each, place.start)).opcode == "mul.wide.u32"
    )
    return with_operand(text, [stride], 2, str(int(stride.operands[2]) // 2))


def _shapes(text: str) -> list[Statement]:
    """Where the instruction descriptor meets the scale bytes of a product or of a K block."""
    return [definition(text, each.operands[SHAPE], each.start) for each in products(text)]


@planted("sm100_fp8")
def instruction_too_wide(text: str, plan: Plan) -> str:
    """n of the instruction is 16 columns more than the tile's."""
    columns = umma(plan).columns
    return with_constants(text, _shapes(text), (columns >> 3 ^ columns + 16 >> 3) << 17)


@planted("sm100_fp8")
def instruction_too_narrow(text: str, plan: Plan) -> str:
    columns = umma(plan).columns
    return with_constants(text, _shapes(text), (columns >> 3 ^ columns - 16 >> 3) << 17)


@planted("sm100_pair")
def instruction_of_one_cta_for_a_pair(text: str, plan: Plan) -> str:
    """m is 128 where the pair has 256 rows."""
    return with_constants(text, _shapes(text), (16 ^ 8) << 24)


@planted("sm100_fp8")
def e4m3_read_as_e5m2(text: str, plan: Plan) -> str:
    return with_constants(text, _shapes(text), 1 << 7)


@planted("sm100_nvfp4")
def ue4m3_scales_read_as_ue8m0(text: str, plan: Plan) -> str:
    return _with_shape(text, plan, 1 << 23)


@planted("sm100_bf16_tn")
def m_contiguous_operand_read_as_k_contiguous(text: str, plan: Plan) -> str:
    return _with_shape(text, plan, 1 << 15)


def _with_shape(text: str, plan: Plan, change: int) -> str:
    """Bits inverted wherever the whole instruction descriptor is moved into a register."""
    shape = umma(plan).descriptor
    moves = find(text, "mov.b32", lambda each: each.operands[1] == str(shape))
    return with_operand(text, moves, 1, str(shape ^ change))


# ------------------------------------------------------------------------------------------------ accumulators


@planted("sm100_fp8")
def first_product_of_a_tile_adds(text: str, plan: Plan) -> str:
    flag = definition(text, _flag(text, products(text)[0]), products(text)[0].start)
    return replace(text, flag, f"mov.b32 {flag.target}, 1;")


@planted("sm100_fp8")
def second_product_overwrites(text: str, plan: Plan) -> str:
    flag = definition(text, _flag(text, products(text)[1]), products(text)[1].start)
    return replace(text, flag, f"mov.b32 {flag.target}, 0;")


def _flag(text: str, product: Statement) -> str:
    """The register that the product's predicate is made of."""
    return definition(text, "p", product.start).operands[1]


@planted("sm100_fp8")
def accumulator_slots_overlap(text: str, plan: Plan) -> str:
    """The issuing thread puts slot 1 half a slot behind slot 0; the storing warps do not."""
    place = definition(text, register_of(products(text)[0].operands[D]), products(text)[0].start)
    shift = definition(text, place.operands[1], place.start)
    assert shift.opcode == "shl.b32"
    return with_operand(text, [shift], 2, str(int(shift.operands[2]) - 1))


@planted("sm100_fp8")
def second_product_goes_to_the_other_slot(text: str, plan: Plan) -> str:
    product = products(text)[1]
    d = register_of(product.operands[D])
    moved = f"{{ .reg .b32 q; xor.b32 q, {d}, {plan.ring('acc').columns};"
    others = ", ".join(product.operands[1:])
    return replace(text, product, f"{moved} {product.opcode} [q], {others}; }}")


@planted("sm100_pair")
def product_of_one_cta_in_a_kernel_for_pairs(text: str, plan: Plan) -> str:
    product = products(text)[0]
    return replace(
        text, product, f"{product.opcode.replace('cta_group::2', 'cta_group::1')} {', '.join(product.operands)};"
    )
