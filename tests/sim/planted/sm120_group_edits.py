"""Mistakes of sm120 kernels for groups of rows: whose operands are read, where words begin, where rows end."""

from __future__ import annotations

import re

from gemmgen.catalog.dense_sm100 import Factor
from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, scaled_gemm_nt
from gemmgen.ir import DType, Plan

from .edit import planted, with_operand
from .kernels import register
from .ptx_text import Statement, find, insert, replace
from .row_grouped import of_row_groups
from .sm120_parts import products

_FLAT = WarpShape(16, 32, warps=(2, 1), slots=2, swap=True)
_WARP = WarpShape(16, 16, warps=(1, 1), slots=2)
_FINE, _COARSE = Factor(DType.E4M3, 32), Factor(DType.E4M3, 128)

# tiles that start anywhere, so that boxes of words start before them; n on the product's rows
register("sm120_offsets", of_row_groups(scaled_gemm_nt(_FINE, _COARSE, _FLAT), "ends", (5, 0, 18, 1), n=40, k=160))
# a matrix for each group, staged: the end of a group cuts boxes
register("sm120_masked", of_row_groups(bf16_gemm("nt", _WARP), "counts", (5, 0, 18, 1), n=24, k=96))
# groups at multiples of a tile, with rows of nobody behind theirs
register("sm120_ids", of_row_groups(bf16_gemm("nt", _WARP), "ids", (5, 0, 18, 1), n=24, k=96))

LOAD, STORE = "cp.async.bulk.tensor.3d.shared", "cp.async.bulk.tensor.3d.global"


def _first_group(text: str, copy: Statement) -> str:
    """The copy's last coordinate becomes 0."""
    changed = re.sub(r"%\w+\}", "q}", text[copy.start : copy.end])
    return replace(text, copy, f"{{ .reg .b32 q; mov.b32 q, 0; {changed} }}")


@planted("sm120_offsets")
def every_group_multiplies_by_the_first_b(text: str, plan: Plan) -> str:
    return _first_group(text, find(text, LOAD)[0])


@planted("sm120_offsets")
def every_group_scales_by_the_first_ones_scales(text: str, plan: Plan) -> str:
    return _first_group(text, find(text, LOAD)[1])


@planted("sm120_masked")
def every_group_reads_the_first_ones_rows(text: str, plan: Plan) -> str:
    return _first_group(text, find(text, LOAD)[0])


@planted("sm120_masked")
def every_group_stores_to_the_first_ones_rows(text: str, plan: Plan) -> str:
    return _first_group(text, find(text, STORE)[0])


@planted("sm120_offsets")
def words_read_from_the_start_of_their_box(text: str, plan: Plan) -> str:
    """Where the tile starts inside 16 bytes, those before it are of another group, or of nobody."""
    skipped = next(each for each in find(text, "and.b32") if each.operands[2] == "12")
    return replace(text, skipped, f"mov.b32 {skipped.target}, 0;")


@planted("sm120_offsets", says=r"multiple of (4 elements|16 bytes)")
def words_copied_from_the_tile_on(text: str, plan: Plan) -> str:
    start = next(each for each in find(text, "and.b32") if each.operands[2] == "-4")
    return replace(text, start, f"mov.b32 {start.target}, {start.operands[1]};")


@planted("sm120_offsets")
def rows_stored_past_the_end_of_their_group(text: str, plan: Plan) -> str:
    """Trap 51: up to the end of the matrix."""
    last = products(text)[-1]
    rows = next(each for each in find(text, "setp.ge.u32") if each.start > last.start)
    bound = rows.operands[2]
    checks = [each for each in find(text, "setp.ge.u32") if each.start > last.start and each.operands[2] == bound]
    return with_operand(text, checks, 2, str(plan.tile.m * 9))


@planted("sm120_masked")
def a_box_that_its_group_ends_in_is_stored_whole(text: str, plan: Plan) -> str:
    """Trap 36: a partial tile of a masked group."""
    copied = find(text, "st.global.v4")[0]
    cut = next(each for each in reversed(find(text, "setp.le.u32")) if each.start < copied.start)
    return with_operand(text, [cut], 1, "0")


@planted("sm120_ids")
def rows_of_nobody_are_counted_to_the_group_before(text: str, plan: Plan) -> str:
    end = find(text, "redux.sync.max")[0]
    return insert(text, end.end, f"add.s32 {end.target}, {end.target}, 1;")


@planted("sm120_masked", says=r"no warp can make progress.*(\n.*)*ab\.empty")
def roles_take_other_counts_for_a_groups_rows(text: str, plan: Plan) -> str:
    """The role that multiplies sees half the rows in groups behind the first."""
    last = products(text)[-1]
    count = next(each for each in find(text, "min.u32") if each.start > last.start)
    return insert(text, count.end, f"shr.u32 {count.target}, {count.target}, 1;")
