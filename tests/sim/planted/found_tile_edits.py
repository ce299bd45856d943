"""Mistakes of kernels that find tiles by row ids: what is found, who may read it when, where a group's rows end."""

from __future__ import annotations

from gemmgen.catalog import Shape, fp8_gemm_nt
from gemmgen.ir import Plan

from .edit import planted, with_operand
from .kernels import register
from .ptx_text import delete, find, insert, replace, rewrite
from .row_grouped import of_row_groups

WAIT, SYNC, BALLOT = "griddepcontrol.wait", "bar.sync", "vote.sync.ballot"

# six tiles of three groups on one CTA, runs of one part, three and two; launched early, ids are read behind the wait
_TILES = Shape(192, 32, groups=3, slots=2, unroll=1)
_EARLY = fp8_gemm_nt(_TILES, programmatic_launch=True)
register("early_found", of_row_groups(_EARLY, "ids", (100, 300, 0, 256), n=40, k=272, alignment=128))


@planted("early_found")
def tiles_are_not_waited_for(text: str, plan: Plan) -> str:
    """Roles ask where tiles are while a warp still finds them."""
    return delete(text, find(text, SYNC)[1:2])


@planted("early_found", says=r"layout.*before their griddepcontrol\.wait")
def ids_are_read_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    wait, sync = find(text, WAIT)[0], find(text, SYNC)[1]
    return delete(insert(text, sync.start, f"{WAIT};\n"), [wait])


@planted("early_found")
def only_the_first_part_begins_a_run(text: str, plan: Plan) -> str:
    found = find(text, BALLOT)[0]
    return replace(text, found, f"mov.b32 {found.operands[0]}, 1;")


@planted("early_found")
def every_tile_is_taken_to_be_whole(text: str, plan: Plan) -> str:
    """Rows of padding, and those of the next group, are written with the wrong group's."""
    for left in reversed(find(text, "st.shared.v2.u32")):
        row, group = left.operands[1].strip("{}").split(",")
        changed = rewrite(left, _1=f"{{{row}, q}}")
        text = replace(text, left, f"{{ .reg .b32 q; or.b32 q, {group.strip()}, 1; {changed} }}")
    return text


@planted("early_found")
def rows_of_others_are_counted(text: str, plan: Plan) -> str:
    """Where a tile is not whole, whatever ids say."""
    found = find(text, BALLOT)[-1]
    return with_operand(text, [found], 1, "1")
