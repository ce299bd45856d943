"""A sample of the deletion campaign, and its page; all of it: python tests/sim/run_deletions.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted.deletions import KINDS, campaign, deletions
from planted.kernels import subject
from planted.score import REASONS, TITLES, UNKNOWN, reason

TIMINGS = (("early", 0), ("late", 0), ("random", 0), ("starve", 0))
PAGE = Path(__file__).parents[2] / "docs" / "simulator_deletions.md"


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("bf16_nn_c", 3),
        ("fp8", 7),
        ("fp8_pair", 11),
        ("push", 7),
        ("fp8_share", 7),
        ("fp8_partials", 9),
        ("sm100_fp8", 9),
        ("sm100_pair", 13),
        ("sm100_clc_pair", 17),
        ("sm120_fp8", 7),
        ("sm120_split", 9),
    ],
)
def test_a_deleted_instruction_is_noticed(name: str, every: int) -> None:
    outcomes = campaign(name, TIMINGS, every)
    assert all(each.executed for each in outcomes)
    unfound = [each.deletion for each in outcomes if not each.found]
    assert [f"{each.kind} {each.where}" for each in unfound if reason(TITLES[name], each) == UNKNOWN] == []


def test_every_kind_is_deleted_from_some_kernel() -> None:
    seen = {each.kind for name in TITLES for each in deletions(subject(name))}
    assert seen == {kind for kind, _ in KINDS}


def test_the_page_explains_whatever_was_not_found_or_only_warned_of() -> None:
    warned, missed = PAGE.read_text().split("## Found as a warning")[1].split("## Not found")
    assert UNKNOWN not in " ".join((warned + missed).split())
    assert {note.split(" (")[0] for note in missed.split("\n- ")[1:]} <= {kind for kind, _, _ in REASONS}
