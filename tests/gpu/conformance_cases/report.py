"""The table and the sums of a conformance run; knows result rows only."""

from __future__ import annotations

from collections import Counter
from typing import Any

GOOD = ("equal", "close", "ran", "refused", "trapped")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many cases agree, and the sums by family."""
    families: dict[str, Counter[str]] = {}
    for row in rows:
        families.setdefault(row["family"], Counter())[row["result"]] += 1
    good = sum(row["result"] in GOOD for row in rows)
    return {
        "equal": good,
        "unequal": len(rows) - good,
        "families": {family: dict(counts) for family, counts in families.items()},
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per family, then one per case that does not agree."""
    print(f"{'family':28} {'cases':>5} {'equal':>6} {'unequal':>8}  notes")
    for family, counts in summary(rows)["families"].items():
        mine = [row for row in rows if row["family"] == family]
        good = sum(counts.get(name, 0) for name in GOOD)
        notes = [f"{n} {name}" for name, n in counts.items() if name not in ("equal", "close")]
        largest = max((row.get("ulp", 0) for row in mine), default=0)
        notes += [f"at most {largest} ulp"] if any("ulp" in row for row in mine) else []
        print(f"{family:28} {len(mine):5} {good:6} {len(mine) - good:8}  {', '.join(notes)}")
    for row in rows:
        if row["result"] not in GOOD:
            print(f"\n{row['name']}: {row['result']}\n    {row.get('detail', '')[:600]}")
