"""Mistakes in how warps meet whose rows or columns are reduced.

The text has the counter of a group of rows first, then the one where groups meet, then that of columns.
"""

from __future__ import annotations

from gemmgen.ir import Plan

from .edit import planted, with_operand
from .ptx_text import Statement, definition, delete, find, register_of, replace, rewrite

ROWS, GROUPS, COLUMNS = 0, 1, 2


def _count(text: str, which: int) -> Statement:
    found = find(text, "atom.acq_rel.gpu.global.inc")
    assert len(found) == 3
    return found[which]


def _wraps(text: str, which: int, more: int) -> str:
    """The counter wraps behind so many more arrivals."""
    count = _count(text, which)
    return replace(text, count, f"{{ .reg .u32 q; add.s32 q, {count.operands[2]}, {more}; {rewrite(count, _2='q')} }}")


def _first_reads(text: str, which: int) -> str:
    """Whoever comes first takes itself for the last."""
    count = _count(text, which)
    test = next(
        each for each in find(text, "setp.ne.s32") if each.start > count.end and count.operands[2] in each.operands
    )
    return with_operand(text, [test], 2, "0")


@planted("sm120_reduce", says="counters of arrivals are not 0")
def row_counter_wraps_one_late(text: str, plan: Plan) -> str:
    return _wraps(text, ROWS, 1)


@planted("sm120_reduce", says="of sums differ")
def row_counter_wraps_one_early(text: str, plan: Plan) -> str:
    return _wraps(text, ROWS, -1)


@planted("sm120_reduce", says="counters of arrivals are not 0")
def group_counter_wraps_one_late(text: str, plan: Plan) -> str:
    return _wraps(text, GROUPS, 1)


@planted("sm120_reduce", says="of sums differ")
def rows_read_before_the_last_arrival(text: str, plan: Plan) -> str:
    return _first_reads(text, ROWS)


@planted("sm120_reduce", says="of total differ")
def groups_read_before_the_last_arrival(text: str, plan: Plan) -> str:
    return _first_reads(text, GROUPS)


@planted("sm120_reduce", says="of amax differ")
def partials_of_eight_rows_not_written(text: str, plan: Plan) -> str:
    """The second reduction's, of the first eight rows of a warp."""
    return delete(text, find(text, "st.global", lambda each: each.operands[0].endswith("+64]"))[:1])


@planted("sm120_reduce")
def groups_share_a_counter(text: str, plan: Plan) -> str:
    place = definition(text, register_of(_count(text, ROWS).operands[1]), _count(text, ROWS).start)
    return replace(text, place, f"mov.b64 {place.target}, {place.operands[1]};")


@planted("sm120_reduce", says="of sums differ")
def rows_not_added_across_the_quad(text: str, plan: Plan) -> str:
    """What the second exchange brings is not added."""
    exchanges = find(
        text, "shfl.sync.bfly", lambda each: each.operands[2] == "2" and each.start < _count(text, ROWS).start
    )
    return with_operand(text, exchanges[:1], 2, "0")


@planted("sm120_reduce", says="counters of arrivals are not 0")
def column_counter_wraps_one_late(text: str, plan: Plan) -> str:
    return _wraps(text, COLUMNS, 1)


@planted("sm120_reduce", says="of columns differ")
def column_counter_wraps_one_early(text: str, plan: Plan) -> str:
    return _wraps(text, COLUMNS, -1)


@planted("sm120_reduce", says="of columns differ")
def columns_read_before_the_last_arrival(text: str, plan: Plan) -> str:
    return _first_reads(text, COLUMNS)


@planted("sm120_reduce", says="of columns differ")
def columns_not_added_across_rows(text: str, plan: Plan) -> str:
    """Rows 4 apart count, those 8 apart twice."""
    far = find(text, "shfl.sync.bfly", lambda each: each.operands[2] == "16")
    before = [each for each in far if each.start < _count(text, COLUMNS).start]
    return with_operand(text, before[-1:], 2, "4")
