"""Mistakes of sm120 kernels in what is multiplied: scales, fragments, packed operands."""

from __future__ import annotations

from gemmgen.ir import Plan

from .edit import planted, with_operand
from .ptx_text import Statement, definition, delete, find, register_of, replace, replace_all
from .sm100_parts import EXPECT, at
from .sm120_parts import SFA, SFB, A, B, loads, moved, products, scale_loads, skips

# ------------------------------------------------------------------------------------------------ scales


@planted("sm120_fp8")
def scales_hoisted_for_the_wrong_factor(text: str, plan: Plan) -> str:
    """B's words are read as seldom as A's: trap 6, with one factor's scales per 32 and the other's per 128."""
    of_a, of_b = skips(text)
    return replace(text, of_b, f"{of_a.guard} {of_b.opcode} {', '.join(of_b.operands)};")


@planted("sm120_fp8")
def scales_read_with_every_k_block(text: str, plan: Plan) -> str:
    """A's words are read from slots that none was copied to."""
    return delete(text, skips(text)[:1])


@planted("sm120_fp8", says=r"ab\.full")
def word_copied_but_not_expected(text: str, plan: Plan) -> str:
    expect = at(text, plan, EXPECT, "ab", "full")[0]
    return with_operand(text, [expect], 2, str(plan.ring("ab").tx_bytes))


@planted("sm120_fp8", says=r"ab\.full")
def word_expected_but_not_copied(text: str, plan: Plan) -> str:
    return delete(text, [find(text, "cp.async.bulk.tensor.2d.shared")[2]])


@planted("sm120_fp8")
def lanes_of_a_pair_hold_each_others_rows(text: str, plan: Plan) -> str:
    """The lane that should supply row g has row g + 8."""
    return moved(text, scale_loads(text)[0], 1, "xor.b32 q, {0}, 32;")


@planted("sm120_fp8")
def both_lanes_of_a_pair_hold_the_same_row(text: str, plan: Plan) -> str:
    return moved(text, scale_loads(text)[0], 1, "and.b32 q, {0}, -33;")


@planted("sm120_fp8")
def scales_of_the_next_column(text: str, plan: Plan) -> str:
    return moved(text, scale_loads(text)[1], 1, "xor.b32 q, {0}, 4;")


@planted("sm120_fp8")
def scales_of_the_next_fragment(text: str, plan: Plan) -> str:
    """The second 8 columns take the first one's scales."""
    first, second = scale_loads(text)[1:3]
    return with_operand(text, [second], 1, first.operands[1])


@planted("sm120_fp8")
def scales_of_the_factors_exchanged(text: str, plan: Plan) -> str:
    product = products(text)[0]
    changed = with_operand(text, [product], SFA, product.operands[SFB])
    return with_operand(changed, [products(changed)[0]], SFB, product.operands[SFA])


@planted("sm120_fp8")
def scale_of_the_first_step_for_the_second(text: str, plan: Plan) -> str:
    half = len(products(text)) // 2
    return with_operand(text, products(text)[half : half + 1], SFB, products(text)[0].operands[SFB])


@planted("sm120_fp8")
def scale_not_shifted_into_place(text: str, plan: Plan) -> str:
    """The product takes the word's first byte, whichever K block it is."""
    shift = definition(text, products(text)[0].operands[SFA].strip("{}"), products(text)[0].start)
    assert shift.opcode.startswith("shr")
    return with_operand(text, [shift], 2, "0")


@planted("sm120_fp8")
def selector_takes_the_second_byte(text: str, plan: Plan) -> str:
    return with_operand(text, products(text)[:1], SFA + 1, "{1, 0}")


@planted("sm120_fp8")
def scales_past_the_end_of_k_are_taken(text: str, plan: Plan) -> str:
    """The second step of the last K block lies past k: its byte is NaN, and NaN times 0 is NaN."""
    clamps = [each for each in find(text, "selp.b32") if each.start > products(text)[0].start]
    return replace(text, clamps[0], f"mov.b32 {clamps[0].target}, {clamps[0].operands[1]};")


@planted("sm120_mxfp4")
def scale_of_128_in_one_half_of_the_product_only(text: str, plan: Plan) -> str:
    """Two bytes are picked: the second half of the 64 takes the next byte."""
    pick = definition(text, products(text)[0].operands[SFA].strip("{}"), products(text)[0].start)
    assert pick.opcode.startswith("prmt")
    return replace(text, pick, f"mov.b32 {pick.target}, {pick.operands[1]};")


@planted("sm120_mxfp4")
def second_scale_of_a_product_is_the_first(text: str, plan: Plan) -> str:
    product = products(text)[0]
    register = product.operands[SFB].strip("{}")
    changed = text[product.start : product.end].replace(f"{{{register}}}", "{q}")
    return replace(text, product, f"{{ .reg .b32 q; prmt.b32 q, {register}, 0, 0; {changed} }}")


@planted("sm120_nvfp4")
def words_past_the_end_of_k_taken_as_they_are(text: str, plan: Plan) -> str:
    limits = [each for each in find(text, "prmt") if each.operands[1] in _read(text)]
    return replace_all(text, limits, lambda each: f"mov.b32 {each.target}, {each.operands[1]};")


def _read(text: str) -> set[str]:
    return {each.target for each in scale_loads(text)}


@planted("sm120_nvfp4")
def word_of_the_first_step_for_the_second(text: str, plan: Plan) -> str:
    second = next(each for each in products(text) if each.operands[SFA] != products(text)[0].operands[SFA])
    return with_operand(text, [second], SFA, products(text)[0].operands[SFA])


@planted("sm120_swap")
def scales_not_exchanged_with_the_factors(text: str, plan: Plan) -> str:
    """Trap 38: with the factors swapped, A's granularity is still taken for the rows of the product."""
    product = products(text)[0]
    changed = with_operand(text, [product], SFA, product.operands[SFB])
    return with_operand(changed, [products(changed)[0]], SFB, product.operands[SFA])


# ------------------------------------------------------------------------------------------------ fragments


@planted("sm120_fp8")
def fragment_of_b_of_the_first_step_for_the_second(text: str, plan: Plan) -> str:
    return _step_back(text, of_a=False)


@planted("sm120_fp8")
def fragment_of_a_of_the_first_step_for_the_second(text: str, plan: Plan) -> str:
    return _step_back(text, of_a=True)


def _step_back(text: str, of_a: bool) -> str:
    steps = [each for each in find(text, "xor.b32") if each.operands[2] == "32" and each.start > loads(text)[0].start]
    return with_operand(text, [steps[0 if of_a else 1]], 2, "0")


@planted("sm120_fp8")
def step_added_instead_of_exchanged(text: str, plan: Plan) -> str:
    """32 bytes further, as if rows were not under a smem_swizzle."""
    steps = [each for each in find(text, "xor.b32") if each.operands[2] == "32" and each.start > loads(text)[0].start]
    return replace(text, steps[0], f"add.s32 {', '.join(steps[0].operands)};")


@planted("sm120_fp8")
def fragments_of_b_exchanged(text: str, plan: Plan) -> str:
    """Columns 8 to 15 for columns 0 to 7."""
    first, second = products(text)[:2]
    changed = with_operand(text, [first], B, second.operands[B])
    return with_operand(changed, [products(changed)[1]], B, first.operands[B])


@planted("sm120_fp8")
def halves_of_k_of_b_exchanged(text: str, plan: Plan) -> str:
    product = products(text)[0]
    low, high = product.operands[B].strip("{}").split(", ")
    return with_operand(text, [product], B, f"{{{high}, {low}}}")


@planted("sm120_fp8")
def rows_and_k_of_a_exchanged(text: str, plan: Plan) -> str:
    """A's registers in the order of B's: k before rows."""
    product = products(text)[0]
    w, x, y, z = product.operands[A].strip("{}").split(", ")
    return with_operand(text, [product], A, f"{{{w}, {y}, {x}, {z}}}")


@planted("sm120_fp8")
def b_read_from_the_next_16_columns(text: str, plan: Plan) -> str:
    place = definition(text, register_of(loads(text)[2].operands[1]), loads(text)[2].start)
    return with_operand(text, [place], 2, "0")


@planted("sm120_fp8")
def e4m3_read_as_e5m2(text: str, plan: Plan) -> str:
    product = products(text)[0]
    return replace(text, product, text[product.start : product.end].replace(".e4m3.e4m3.", ".e4m3.e5m2.", 1))


@planted("sm120_fp8")
def sums_start_at_the_last_tiles(text: str, plan: Plan) -> str:
    """Accumulators are not cleared for the second tile."""
    sums = products(text)[0].operands[0].strip("{}").split(", ")
    clears = [each for each in find(text, "mov.f32") if each.target in sums and each.start < products(text)[0].start]
    return delete(text, clears[:1])


@planted("sm120_bf16_nn")
def n_contiguous_factor_not_transposed(text: str, plan: Plan) -> str:
    load = find(text, "ldmatrix.sync.aligned.m8n8.x4.trans")[0]
    return replace(text, load, text[load.start : load.end].replace(".trans", ""))


@planted("sm120_bf16_nn")
def next_16_columns_added_instead_of_exchanged(text: str, plan: Plan) -> str:
    step = next(
        each for each in find(text, "xor.b32") if each.operands[2] == "64" and each.start > loads(text)[0].start
    )
    return replace(text, step, f"add.s32 {', '.join(step.operands)};")


@planted("sm120_bf16_nn")
def second_atom_taken_for_the_first(text: str, plan: Plan) -> str:
    far = [each for each in find(text, "add.s32") if each.operands[2] == str(plan.tile.k * 128)]
    return with_operand(text, [each for each in far if each.start > loads(text)[0].start][:1], 2, "0")


# ------------------------------------------------------------------------------------------------ packed operands


def _spread(text: str) -> Statement:
    return find(text, "ldmatrix.sync.aligned.m8n16")[0]


@planted("sm120_mixed")
def packed_elements_not_shifted(text: str, plan: Plan) -> str:
    """The code of a 4-bit element stays in bits 0 to 3 of its byte."""
    registers = _spread(text).operands[0].strip("{}").split(", ")
    shifts = [each for each in find(text, "shl.b32") if each.operands[1] in registers]
    assert len(shifts) == 4
    return with_operand(text, shifts, 2, "0")


@planted("sm120_mixed")
def one_register_of_packed_elements_not_shifted(text: str, plan: Plan) -> str:
    register = _spread(text).operands[0].strip("{}").split(", ")[3]
    return with_operand(text, [each for each in find(text, "shl.b32") if each.operands[1] == register][:1], 2, "0")


@planted("sm120_mixed")
def packed_elements_shifted_too_far(text: str, plan: Plan) -> str:
    register = _spread(text).operands[0].strip("{}").split(", ")[0]
    return with_operand(text, [each for each in find(text, "shl.b32") if each.operands[1] == register][:1], 2, "3")


@planted("sm120_mixed")
def packed_elements_loaded_as_bytes(text: str, plan: Plan) -> str:
    load = _spread(text)
    plain = text[load.start : load.end].replace("m8n16.x4.shared.b8x16.b4x16_p64", "m8n8.x4.shared.b16")
    return replace(text, load, plain)


@planted("sm120_mixed", says=r"ab\.full")
def bytes_of_packed_elements_counted_as_they_lie(text: str, plan: Plan) -> str:
    """The barrier expects a byte an element, the copy engine counts half of them."""
    more = plan.ring("ab").part("b").bytes // 2
    return moved(text, at(text, plan, EXPECT, "ab", "full")[0], 2, f"add.s32 q, {{0}}, {more};")


@planted("sm120_mixed")
def packed_product_of_another_type(text: str, plan: Plan) -> str:
    product = products(text)[0]
    return replace(text, product, text[product.start : product.end].replace(".e4m3.e2m1.", ".e4m3.e3m2.", 1))
