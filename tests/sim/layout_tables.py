"""Reads the layout tables under tests/fixtures/layouts: oracles that share no code with the simulator."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "fixtures" / "layouts"


@cache
def layout_table(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def evaluate(formula: str, **names: Any) -> Any:
    """Value of a table's formula, an expression in integers (or integer arrays) of the given names."""
    return eval(formula, {"__builtins__": {}}, names)
