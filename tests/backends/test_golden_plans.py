"""Plans against their golden prints: a stage, an offset or a count that moves shows as one changed line."""

from __future__ import annotations

import pytest
from golden_plans import FOLDER, NAMES, path, print_of


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_prints_as_its_golden_file(name: str) -> None:
    assert print_of(name) == path(name).read_text(encoding="utf-8"), "python tests/golden/golden_plans.py rewrites it"


def test_the_folder_holds_no_other_file() -> None:
    assert sorted(item.name for item in FOLDER.iterdir()) == sorted(path(name).name for name in NAMES)
