"""Mistakes of swapped sm90 products: whose scales rows and columns have, when they are read, where rows end."""

from __future__ import annotations

from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt
from gemmgen.ir import Plan

from . import barrier_edits, push_edits, strip_edits, tile_edits
from .edit import planted, with_operand
from .kernels import Subject, register
from .ptx_text import Statement, definition, delete, find, register_of, replace, replace_all, rewrite
from .row_grouped import of_row_groups

_WIDE = Shape(16, 256, slots=2, unroll=1, swap=True)
_LOW = Shape(16, 64, groups=1, slots=2, unroll=1, swap=True)

# groups that begin inside 16 bytes of scales; two warpgroups, each with a scale of B of its own and two blocks of rows
register("swapped_offsets", of_row_groups(fp8_gemm_nt(_WIDE), "ends", (5, 0, 18, 1), n=200, k=272))
# a matrix for each group, which its rows do not fill
register("swapped_masked", of_row_groups(bf16_gemm("nt", _LOW), "counts", (5, 0, 18, 1), n=72, k=168))
# a scale for every row and column of the product
register("swapped_1d1d", of_row_groups(fp8_gemm_nt(_LOW, sfb_columns=1), "ids", (5, 0, 18, 1), n=72, k=272))
# two tiles on one CTA, staged in a buffer a warpgroup of two blocks of rows; strips of B's scales, whole rounds
_TALL = Shape(64, 256, slots=2, unroll=1, staging=1, swap=True, rounds=True, strips=2)
register("swapped_staged", Subject(fp8_gemm_nt(_TALL), m=100, n=200, k=656))
# three warpgroups whose one buffer each serves three parts of a tile, and then the next tile's
_PARTS = Shape(72, 192, groups=3, slots=2, unroll=1, staging=1, staged_rows=24, swap=True)
register("swapped_parts", Subject(bf16_gemm("nt", _PARTS), m=100, n=200, k=104))
# three CTAs that share 7 K blocks (3, 2 and 2); of 16 slices, 8 rows of the tile each, they own 6, 6 and 4
_SHARED = Shape(16, 128, slots=2, unroll=1, swap=True, splits=3)
register("swapped_push", Subject(fp8_gemm_nt(_SHARED), m=21, n=136, k=880))
# two that own 8 rows of the tile each; launched early, weights are read ahead
_EARLY = Shape(16, 64, groups=1, slots=2, unroll=1, swap=True, splits=2)
register("swapped_push_bf16", Subject(bf16_gemm("nt", _EARLY, programmatic_launch=True), m=16, n=72, k=320))
# a full wave of four tiles, and a fifth that four CTAs share; two of its warps have no columns
_LAST = Shape(24, 64, groups=1, slots=2, unroll=1, swap=True, share=True)
register("swapped_share", Subject(bf16_gemm("nt", _LAST), m=24, n=288, k=968, sms=4))


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


def _meetings(text: str) -> list[Statement]:
    """Barriers of a warpgroup: its buffer is free, and then full."""
    return [each for each in find(text, "bar.sync") if each.operands[0] != "0"]


@planted("swapped_staged", says=r"cd\.d\[\d\]")
def buffer_filled_before_its_warpgroup_knows_it_free(text: str, plan: Plan) -> str:
    return delete(text, _meetings(text)[::2])


@planted("swapped_staged", says=r"cd\.d\[\d\]")
def buffer_copied_before_its_warpgroup_has_filled_it(text: str, plan: Plan) -> str:
    return delete(text, _meetings(text)[1::2])


@planted("swapped_staged", says=r"cd\.d\[\d\]")
def buffer_filled_before_its_copy_has_read_it(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read", lambda each: each.start < _meetings(text)[0].start))


@planted("swapped_staged", says=r"cd\.d\[\d\].*fence\.proxy\.async")
def buffer_copied_without_a_fence(text: str, plan: Plan) -> str:
    return delete(text, find(text, "fence.proxy.async"))


@planted("swapped_parts", says=r"cd\.d\[\d\]")
def next_part_filled_before_its_warpgroup_knows_the_buffer_free(text: str, plan: Plan) -> str:
    return delete(text, _meetings(text)[2:3])


@planted("swapped_parts", says=r"cd\.d\[\d\]")
def next_part_copied_before_its_warpgroup_has_filled_it(text: str, plan: Plan) -> str:
    return delete(text, _meetings(text)[3:4])


@planted("swapped_parts", says=r"cd\.d\[\d\]")
def next_part_filled_before_the_one_ahead_was_read(text: str, plan: Plan) -> str:
    return delete(text, find(text, "cp.async.bulk.wait_group.read")[1:2])


@planted("swapped_staged")
def warpgroups_meet_at_one_barrier(text: str, plan: Plan) -> str:
    return with_operand(text, _meetings(text), 0, "1")


@planted("swapped_staged")
def staged_without_exchanging_chunks(text: str, plan: Plan) -> str:
    """The copy engine reads chunks where the smem_swizzle puts them."""
    exchanged = find(text, "shfl.sync.bfly")[0]
    chunk = next(each for each in find(text, "xor.b32") if each.start > exchanged.start)
    return replace(text, chunk, f"mov.b32 {chunk.target}, {chunk.operands[2]};")


@planted("swapped_staged")
def lanes_keep_what_they_should_exchange(text: str, plan: Plan) -> str:
    chosen = find(text, "selp.f32")[0]
    return replace(text, chosen, f"mov.f32 {chosen.target}, {chosen.operands[1]};")


planted("swapped_staged", says=r"strips\.")(strip_edits.a_strip_is_read_before_it_has_come)
planted("swapped_staged", says=r"strips\.")(strip_edits.a_strip_is_written_before_it_is_given_back)

planted("swapped_push", says=r"push\.sums\[\d\]")(push_edits.pushed_sums_not_waited_for)
planted("swapped_push", says=r"exits, but push\.full")(push_edits.exits_before_the_others_have_pushed)
planted("swapped_push", says=r"push\.full")(push_edits.a_slice_is_not_pushed)
planted("swapped_push", says="differ")(push_edits.own_sums_are_not_kept)
planted("swapped_push")(push_edits.pushes_go_to_the_next_cta)
planted("swapped_push", says=r"push\.(full|sums)")(push_edits.part_of_the_bytes_expected)
planted("swapped_push", says=r"push\.full.*mbarrier\.init")(push_edits.pushes_before_the_cluster_has_begun)
planted("swapped_push", says=r"ab\.(a|b|sfa)\[\d\]")(push_edits.a_slot_is_filled_again_too_early)
planted("swapped_push_bf16", says=r"ab\.full\[\d\]")(push_edits.the_first_turn_is_not_expected)


@planted("swapped_push", says=r"differ|push\.sums")
def sums_of_another_slice_are_added(text: str, plan: Plan) -> str:
    first = find(text, "ld.shared.v4")[0]
    return with_operand(text, [first], 1, f"[{register_of(first.operands[1])}+512]")


@planted("swapped_push", says=r"differ")
def scales_of_rows_are_of_the_block_before(text: str, plan: Plan) -> str:
    """Lanes hold a K block's scale each, and pass it on one block late."""
    product = find(text, "wgmma.mma_async")[0].start
    passed = find(text, "shfl.sync.idx", lambda each: each.start < product)[-2:]
    return replace_all(
        text,
        passed,
        lambda each: f"{{ .reg .b32 q; add.u32 q, {each.operands[2]}, 31; and.b32 q, q, 31; {rewrite(each, _2='q')} }}",
    )


planted("swapped_share")(tile_edits.first_role_shares_no_tile)
planted("swapped_share")(tile_edits.second_role_shares_no_tile)


@planted("swapped_share", says=r"differ")
def warps_past_the_rows_are_idle(text: str, plan: Plan) -> str:
    """Whether a warp has anything to add up is asked of its place along m, which is right where m is on the rows."""
    (count,) = find(text, "atom.acq_rel.gpu.global.inc.u32")
    *_, asked = find(text, "setp.ge.u32", lambda each: each.start < count.start)
    return replace(text, asked, f"setp.ge.u32 {asked.target}, {asked.operands[1]}, {plan.tile.m};")
