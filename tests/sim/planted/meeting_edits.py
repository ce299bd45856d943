"""Mistakes in how warps of CTAs meet at a counter: what orders the sums of all of them before the last one's loads."""

from __future__ import annotations

from gemmgen.ir import Plan

from .edit import planted
from .ptx_text import Statement, delete, find

SUBJECTS = ("fp8_share", "swapped_share", "prenorm", "sm100_prenorm", "sm120_split", "sm120_reduce")
UNORDERED = r"partials\+\d+: reads it, but warp \d+ \(\w+\), CTA .* wrote it, and nothing orders that before"


def _with_order(text: str, order: str) -> str:
    find(text, "atom.acq_rel.gpu")
    return text.replace("atom.acq_rel.gpu", f"atom.{order}")


def counted_without_order(text: str, plan: Plan) -> str:
    return _with_order(text, "relaxed.gpu")


def counted_without_release(text: str, plan: Plan) -> str:
    return _with_order(text, "acquire.gpu")


def counted_without_acquire(text: str, plan: Plan) -> str:
    return _with_order(text, "release.gpu")


def counted_for_the_own_cta(text: str, plan: Plan) -> str:
    return _with_order(text, "acq_rel.cta")


def lanes_do_not_meet_before_the_count(text: str, plan: Plan) -> str:
    return delete(text, [_meetings(text)[0]])


def lanes_do_not_meet_after_the_count(text: str, plan: Plan) -> str:
    return delete(text, [_meetings(text)[1]])


def _meetings(text: str) -> tuple[Statement, Statement]:
    """The warp's synchronisations around the first count."""
    count, meetings = find(text, "atom.acq_rel.gpu")[0], find(text, "bar.warp.sync")
    before = [each for each in meetings if each.start < count.start]
    return before[-1], meetings[len(before)]


for _subject in SUBJECTS:
    for _edit in (
        counted_without_order,
        counted_without_release,
        counted_without_acquire,
        counted_for_the_own_cta,
        lanes_do_not_meet_before_the_count,
        lanes_do_not_meet_after_the_count,
    ):
        planted(_subject, says=UNORDERED)(_edit)
