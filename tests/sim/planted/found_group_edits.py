"""Mistakes of kernels that find groups by row ids: what is found, who may read it when, where a group's rows end."""

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
def parts_are_not_waited_for(text: str, plan: Plan) -> str:
    """A warp makes runs of what threads have yet to read."""
    return delete(text, find(text, SYNC)[1:2])


@planted("early_found")
def runs_are_not_waited_for(text: str, plan: Plan) -> str:
    """Roles ask where groups lie while a warp still finds them."""
    return delete(text, find(text, SYNC)[2:3])


@planted("early_found", says=r"layout.*before their griddepcontrol\.wait")
def ids_are_read_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    wait, sync = find(text, WAIT)[0], find(text, SYNC)[1]
    return delete(insert(text, sync.start, f"{WAIT};\n"), [wait])


@planted("early_found")
def only_the_first_part_begins_a_run(text: str, plan: Plan) -> str:
    found = find(text, BALLOT)[0]
    return replace(text, found, f"mov.b32 {found.operands[0]}, 1;")


@planted("early_found")
def rows_of_a_run_are_a_part_too_many(text: str, plan: Plan) -> str:
    """Rows of padding, and those of the next group, are taken for the group's."""
    (left,) = find(text, "st.shared.v2.u32")
    rows, group = (each.strip() for each in left.operands[1].strip("{}").split(","))
    changed = rewrite(left, _1=f"{{q, {group}}}")
    return replace(text, left, f"{{ .reg .b32 q; add.u32 q, {rows}, 128; {changed} }}")


@planted("early_found")
def padding_is_counted(text: str, plan: Plan) -> str:
    """A part has all its rows, whatever ids say of the last."""
    wait = find(text, WAIT)[0]
    whole = next(each for each in find(text, "or.pred") if each.start > wait.start)
    return replace(text, whole, f"setp.ne.u32 {whole.operands[0]}, 1, 0;")


@planted("early_found")
def rows_are_counted_in_eights(text: str, plan: Plan) -> str:
    """Of the last eight that have any, none is looked at."""
    wait = find(text, WAIT)[0]
    counted = [each for each in find(text, "selp.u32") if each.start > wait.start and each.operands[1:3] == ("1", "0")]
    steps = counted[16:23]  # behind the part's last row and the 15 that are asked first
    assert len(steps) == 7
    return with_operand(text, steps, 1, "0")
