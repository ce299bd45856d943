"""A sample of the deletion campaign, and its page; all of it: python tests/sim/run_deletions.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted.deletions import KINDS, campaign, deletions
from planted.kernels import subject
from planted.score import REASONS, UNKNOWN

TIMINGS = (("early", 0), ("late", 0), ("random", 0), ("starve", 0))
PAGE = Path(__file__).parents[2] / "docs" / "simulator_deletions.md"


@pytest.mark.parametrize(("name", "every"), [("bf16_nn_c", 3), ("fp8", 7), ("fp8_pair", 11)])
def test_a_deleted_instruction_is_noticed(name: str, every: int) -> None:
    outcomes = campaign(name, TIMINGS, every)
    assert all(each.executed for each in outcomes)
    unfound = [f"{each.deletion.kind} {each.deletion.where}" for each in outcomes if not each.found]
    assert [text for text in unfound if not text.startswith("fence.mbarrier_init")] == []


def test_every_kind_is_deleted_from_some_kernel() -> None:
    seen = {each.kind for name in ("fp8", "bf16_nn_c", "fp8_pair") for each in deletions(subject(name))}
    assert seen == {kind for kind, _ in KINDS}


def test_the_page_explains_whatever_was_not_found() -> None:
    missed = PAGE.read_text().split("## Not found")[1]
    assert UNKNOWN not in " ".join(missed.split())
    assert all(note.split(" (")[0] in REASONS for note in missed.split("\n- ")[1:])
