"""How much longer the tiles that the rule picks for groups of rows take than the fastest, by times measured before.

    python benchmarks/group_picks.py

Problems were drawn at random as ``benchmarks/group_draws.py`` draws them, and no fit of the rule has seen these. Every
tile near the cheapest was timed. Results of the first file were not looked at in its run, those of the second were
compared with products. ``kept`` tiles are those of the same size whose weights do not go first. Where tiles were timed
that no longer ship, picks are judged among what was timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from measured import geomean, load

from gemmgen.catalog import Shape
from gemmgen.catalog.grouped import finds_groups, grouped_shapes
from gemmgen.ir import DType
from gemmgen.ops import choice_grouped
from gemmgen.ops.cost import Cost

RESULT = "group_picks_h200.json"
CHECKED = "group_draws_h200.json"
"""Fewer problems, whose results were looked at."""
ALIKE = "group_alike_h200.json"
"""Groups of as many rows each, likewise."""
TYPES = {"fp8": DType.E4M3, "bf16": DType.BF16}
ALIGNMENT = {"ids": 128, "ends": 1, "counts": 1}
SIZES = {"3 to 48": 48, "49 to 256": 256, "more": 10**9}
"""Rows of a group, on average, up to which problems are counted together."""
KEPT = " kept"
SMS = 132


@dataclass(frozen=True)
class Pick:
    """What the rule picks for a problem: its time over that of the fastest tile."""

    form: str
    kind: str
    rows: float
    ratio: float

    @property
    def size(self) -> str:
        """Which problems it is counted with."""
        return next(name for name, most in SIZES.items() if self.rows <= most)


def picks(rows: list[list[Any]]) -> Iterator[Pick]:
    """Of every problem: ``form``, ``kind``, groups, rows of all, n, k, and microseconds by tile."""
    for form, kind, groups, total, n, k, times in rows:
        costs = {name: cost_of(_shape(kind, form, name), form, kind, groups, total, n, k).key for name in times}
        picked = min(costs, key=lambda name: costs[name])
        yield Pick(form, kind, total / groups, times[picked] / min(times.values()))


def _shape(kind: str, form: str, name: str) -> Shape:
    """The tile of a name."""
    found = next(each for each in grouped_shapes(TYPES[kind], form) if each.label == name.removesuffix(KEPT))
    return replace(found, stream=False) if name.endswith(KEPT) else found


def cost_of(shape: Shape, form: str, kind: str, groups: int, total: int, n: int, k: int) -> Cost:
    """What the rule compares, of so many rows in all."""
    size, alignment = (-(-total // groups), n, k * TYPES[kind].bytes), ALIGNMENT[form]
    found = finds_groups(form, alignment, shape.m)
    return choice_grouped.cost(shape, *size, SMS, kind == "fp8", groups, alignment, found)


def table(result: str = RESULT) -> list[str]:
    """Geometric means and the worst, by what groups are given by and how many rows they have."""
    found = list(picks(load(result)["rows"]))
    lines = ["| | rows of a group | problems | mean | worst | more than 10 % |", "|---|---|--:|--:|--:|--:|"]
    kinds = [(kind, form, size) for kind in TYPES for form in ALIGNMENT for size in SIZES]
    for kind, form, size in kinds:
        some = [each.ratio for each in found if (each.kind, each.form, each.size) == (kind, form, size)]
        lines += [_line(f"{kind.upper()}, by {form} | {size}", some)] if some else []
    return [*lines, _line("all |", [each.ratio for each in found])]


def _line(what: str, ratios: list[float]) -> str:
    over = sum(each > 1.1 for each in ratios)
    return f"| {what} | {len(ratios)} | {geomean(ratios):.3f} | {max(ratios):.3f} | {over} |"


if __name__ == "__main__":
    print("\n".join([*table(), "", *table(CHECKED), "", *table(ALIKE)]))
