"""The table and the sums of a conformance run, on the terminal and in the documentation; knows result rows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

GOOD = ("equal", "close", "ran", "refused", "trapped")
BEGIN, END = "<!-- table of the last run: written by --document -->", "<!-- end of the table -->"
DOCUMENT = Path(__file__).parents[3] / "docs" / "conformance.md"


class Family(NamedTuple):
    """The sums of one family, and what else there is to say."""

    name: str
    cases: int
    equal: int
    unequal: int
    remarks: str


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


def by_family(rows: list[dict[str, Any]]) -> Iterator[Family]:
    for name, counts in summary(rows)["families"].items():
        mine = [row for row in rows if row["family"] == name]
        good = sum(counts.get(result, 0) for result in GOOD)
        notes = [f"{n} {result}" for result, n in counts.items() if result not in ("equal", "close")]
        if any("ulp" in row for row in mine):
            notes.append(f"at most {max(row.get('ulp', 0) for row in mine)} ulp")
        yield Family(name, len(mine), good, len(mine) - good, ", ".join(notes))


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per family, then one per case that does not agree."""
    print(f"{'family':28} {'cases':>5} {'equal':>6} {'unequal':>8}  remarks")
    for family in by_family(rows):
        print(f"{family.name:28} {family.cases:5} {family.equal:6} {family.unequal:8}  {family.remarks}")
    for row in rows:
        if row["result"] not in GOOD:
            print(f"\n{row['name']}: {row['result']}\n    {row.get('detail', '')[:600]}")


def markdown(report: dict[str, Any]) -> str:
    """The run's machine, its sums, a row per family, and every case that does not agree."""
    rows = report["cases"]
    said = "; ".join(f"{name} {version}" for name, version in report.get("machine", {}).items())
    lines = [
        f"{said or 'Machine not recorded'}.",
        f"{len(rows)} cases: {report['equal']} equal, {report['unequal']} unequal.",
        "",
        "| family | cases | equal | unequal | remarks |",
        "|---|---|---|---|---|",
        *(f"| {f.name} | {f.cases} | {f.equal} | {f.unequal} | {f.remarks} |" for f in by_family(rows)),
    ]
    different = [row for row in rows if row["result"] not in GOOD]
    if different:
        lines += ["", "Not equal:", ""]
        lines += [f"- `{row['name']}`: {row['result']}; {row.get('detail', '')[:160]}" for row in different]
    return "\n".join(lines) + "\n"


def write_document(report: dict[str, Any], path: Path = DOCUMENT) -> None:
    """Replace the table between the two markers of the documentation."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{path} lacks the lines {BEGIN!r} and {END!r}; put both where the table belongs")
    path.write_text(f"{before}{BEGIN}\n{markdown(report)}{END}{after}")
