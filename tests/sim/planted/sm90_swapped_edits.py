"""Mistakes of swapped sm90 products: whose scales rows and columns have, when they are read, where rows end."""

from __future__ import annotations

from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt
from gemmgen.ir import Plan

from . import barrier_edits
from .edit import planted, with_operand
from .kernels import register
from .ptx_text import Statement, definition, find, register_of, replace, rewrite
from .row_grouped import of_row_groups

_WIDE = Shape(16, 256, slots=2, unroll=1, swap=True)
_LOW = Shape(16, 64, groups=1, slots=2, unroll=1, swap=True)

# groups that begin inside 16 bytes of scales; two warpgroups, each with a scale of B of its own and two blocks of rows
register("swapped_offsets", of_row_groups(fp8_gemm_nt(_WIDE), "ends", (5, 0, 18, 1), n=200, k=272))
# a matrix for each group, which its rows do not fill
register("swapped_masked", of_row_groups(bf16_gemm("nt", _LOW), "counts", (5, 0, 18, 1), n=72, k=168))
# a scale for every row and column of the product
register("swapped_1d1d", of_row_groups(fp8_gemm_nt(_LOW, sfb_columns=1), "ids", (5, 0, 18, 1), n=72, k=272))


def _scales(text: str) -> list[Statement]:
    """Reads of a product's scales: of B on its rows, then of A on its columns."""
    return find(text, "ld.shared")


def _address(text: str, read: Statement) -> str:
    """What a read's address was made of, as another one can use it that stands before."""
    added = definition(text, register_of(read.operands[1]), read.start)
    return f"[{added.operands[1]}+{added.operands[2]}]"


@planted("swapped_offsets")
def rows_scaled_by_a_columns_scale(text: str, plan: Plan) -> str:
    rows, first, *_ = _scales(text)
    return replace(text, rows, rewrite(rows, _1=_address(text, first)))


@planted("swapped_offsets")
def columns_scaled_by_their_rows_scale(text: str, plan: Plan) -> str:
    rows, first, *_ = _scales(text)
    return replace(text, first, rewrite(first, _1=rows.operands[1]))


@planted("swapped_offsets")
def scales_of_a_and_b_exchanged(text: str, plan: Plan) -> str:
    rows, first, *_ = _scales(text)
    text = replace(text, first, rewrite(first, _1=rows.operands[1]))
    return replace(text, rows, rewrite(rows, _1=_address(text, first)))


@planted("swapped_offsets")
def every_warpgroup_takes_the_first_ones_scale_of_b(text: str, plan: Plan) -> str:
    """The scales of a slot lie at a multiple of 16 bytes, one behind the other."""
    rows = _scales(text)[0]
    aligned = f"and.b32 q, {register_of(rows.operands[1])}, -16;"
    return replace(text, rows, f"{{ .reg .b32 q; {aligned} {rewrite(rows, _1='[q]')} }}")


@planted("swapped_offsets")
def odd_columns_take_their_neighbours_scale(text: str, plan: Plan) -> str:
    _, even, odd, *_ = _scales(text)
    return replace(text, odd, rewrite(odd, _1=even.operands[1]))


@planted("swapped_1d1d")
def lower_rows_take_the_scales_of_upper_ones(text: str, plan: Plan) -> str:
    upper, lower, *_ = _scales(text)
    return replace(text, lower, rewrite(lower, _1=upper.operands[1]))


@planted("swapped_offsets")
def scales_read_from_the_start_of_their_box(text: str, plan: Plan) -> str:
    """Where the tile starts inside 16 bytes, those before it are of another group, or of nobody."""
    first = _scales(text)[0]
    skipped = [each for each in find(text, "and.b32") if each.operands[2] == "3" and each.start < first.start][-1]
    return replace(text, skipped, f"mov.b32 {skipped.target}, 0;")


@planted("swapped_offsets", says=r"multiple of (4 elements|16 bytes)")
def scales_copied_from_the_tile_on(text: str, plan: Plan) -> str:
    start = next(each for each in find(text, "and.b32") if each.operands[2] == "-4")
    return replace(text, start, f"mov.b32 {start.target}, {start.operands[1]};")


def _stored_everywhere(text: str, rows: int) -> str:
    """Rows are stored up to another one than the group's last."""
    last = find(text, "wgmma.mma_async")[-1]
    bounds = [each for each in find(text, "setp.ge.u32") if each.start > last.start]
    exchanged = find(text, "shfl.sync.bfly", lambda each: each.start > last.start)[0]
    bound = next(each for each in bounds if each.start > exchanged.start).operands[2]
    return with_operand(text, [each for each in bounds if each.operands[2] == bound], 2, str(rows))


@planted("swapped_offsets")
def rows_stored_past_the_end_of_their_group(text: str, plan: Plan) -> str:
    return _stored_everywhere(text, 9 * plan.tile.m)


@planted("swapped_masked")
def rows_stored_past_the_count_of_their_group(text: str, plan: Plan) -> str:
    return _stored_everywhere(text, 21)


@planted("swapped_1d1d")
def rows_of_nobody_are_stored(text: str, plan: Plan) -> str:
    return _stored_everywhere(text, 9 * plan.tile.m)


@planted("swapped_masked")
def lanes_exchange_values_with_others(text: str, plan: Plan) -> str:
    """Eight lanes apart are columns of the output that are no neighbours."""
    return with_operand(text, find(text, "shfl.sync.bfly"), 2, "8")


@planted("swapped_offsets")
def sums_scaled_before_the_products_have_ended(text: str, plan: Plan) -> str:
    return with_operand(text, find(text, "wgmma.wait_group"), 0, "1")


planted("swapped_offsets", says=r"ab\.(a|b|sfa|sfb)\[\d\]")(barrier_edits.full_wait_deleted)
planted("swapped_offsets", says=r"ab\.(a|b|sfa|sfb)\[\d\]")(barrier_edits.next_slot_taken_for_full)
planted("swapped_offsets", says=r"ab\.(a|b|sfa)\[\d\]")(barrier_edits.empty_wait_of_boxes_deleted)
planted("swapped_offsets", says=r"ab\.(sfb\[\d\]|full\[\d\])")(barrier_edits.empty_wait_of_scales_deleted)
planted("swapped_masked")(barrier_edits.slot_released_a_block_too_early)
planted("swapped_1d1d")(barrier_edits.slot_released_before_its_products_have_ended)
