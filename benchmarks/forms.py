"""Tiles that do not ship, beside the shipped ones that cost least by the rule: is one of them worth shipping?

    python benchmarks/forms.py fp8_gemm_nt --problems problems.txt --json forms.json \\
        "Shape(8, 128, unroll=1, splits=4, ctas_per_sm=2, swap=True)" "Shape(64, 96, groups=1, stream=True)"

Problems are lines of m n k. Every kernel is checked against a float64 reference and timed as ``gemmgen tune`` does it.
What cannot be lowered is said and left out. At the end new tiles are listed by what they gain: first the one with
which the fastest of all takes the least time, then the one that gains most beside it, and so on.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environment import card, keep_apart, write
from selection import rule

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.commands.measuring import measure
from gemmgen.commands.targets import Sizes
from gemmgen.commands.tuning import read_shapes
from gemmgen.ir import KernelSpec
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu
from gemmgen.runtime.timing import FLUSH_KINDS, Flush

OPERATORS = ("fp8_gemm_nt", "bf16_gemm_nt")
BESIDE = 14
"""Shipped tiles that new ones are timed beside."""
WHAT = "tiles that do not ship beside shipped ones, medians in us, L2 flushed before each launch"
Specs = Mapping[str, KernelSpec]
Row = dict[str, Any]


def shape_of(text: str) -> Shape:
    """``Shape(...)`` of literals; raises ``ValueError`` on anything else."""
    call = ast.parse(text.strip(), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Shape"):
        raise ValueError(f"{text!r} is no tile; write Shape(64, 128, groups=1), as in gemmgen/catalog/shapes.py")
    named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
    return Shape(*map(ast.literal_eval, call.args), **named)


def specs_of(operator: str, texts: Sequence[str]) -> dict[str, KernelSpec]:
    """Kernels of new tiles by the text they were given as, named apart from shipped ones."""
    made: dict[str, KernelSpec] = {}
    for index, text in enumerate(texts):
        shape = shape_of(text)
        try:
            spec = catalog.fp8_gemm_nt(shape) if operator == "fp8_gemm_nt" else catalog.bf16_gemm("nt", shape)
            spec = spec.replace(name=f"{spec.name}_new{index}")
            kernel_of(spec)
        except ValueError as error:
            print(f"{text} is left out: {error}", flush=True)
            continue
        made[text] = spec
    return made


def beside(operator: str, sizes: Sizes, sms: int) -> list[KernelSpec]:
    """The shipped kernels that cost least."""
    ordered = sorted(rule(operator, sizes, sms).candidates, key=lambda each: each.cost.key)
    return [each.spec for each in ordered[:BESIDE]]


def measured(operator: str, sizes: Sizes, new: Specs, sms: int, flush: Flush) -> Row:
    """Microseconds of the right ones of both kinds, by the shipped kernel's name and the new tile's text."""
    shipped = {spec.name: spec for spec in beside(operator, sizes, sms)}
    found = measure([*shipped.values(), *new.values()], sizes, 0, flush)
    row: Row = {"op": operator, "m": sizes.m, "n": sizes.n, "k": sizes.k, "shipped": {}, "new": {}}
    for key, each in zip((*shipped, *new), found, strict=True):
        if each.right:
            row["shipped" if key in shipped else "new"][key] = round(each.us, 2)
        else:
            print(f"WRONG {key} {sizes}: {each.error:.2e}", flush=True)
    return row


def line(row: Row) -> str:
    none = ("nothing", math.inf)
    ours, theirs = (min(row[kind].items(), key=lambda each: each[1], default=none) for kind in ("shipped", "new"))
    problem = f"{row['m']:6} {row['n']:6} {row['k']:6}"
    return f"{problem}  {ours[1]:8.1f} {ours[0]}  x{theirs[1] / ours[1]:.3f} {theirs[0]}"


def gains(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """New tiles, the best first: its text, and the fastest's time with it over that without.

    Over all problems, geometric mean, and where it gains most. Those that gain nothing beside the others are left out.
    """
    rows = [row for row in rows if row["shipped"]]
    best = [min(row["shipped"].values()) for row in rows]
    names, found = {name for row in rows for name in row["new"]}, []

    def over(name: str) -> list[float]:
        return [min(1.0, row["new"].get(name, math.inf) / us) for row, us in zip(rows, best, strict=True)]

    while names:
        means = {name: math.prod(over(name)) ** (1 / len(rows)) for name in sorted(names)}
        name = min(means, key=lambda each: means[each])
        if means[name] == 1:
            break
        found.append((name, means[name], min(over(name))))
        best = [us * ratio for us, ratio in zip(best, over(name), strict=True)]
        names.remove(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operator", choices=OPERATORS)
    parser.add_argument("shapes", nargs="+", metavar="SHAPE")
    parser.add_argument("--problems", required=True, type=Path)
    parser.add_argument("--json", required=True)
    parser.add_argument("--flush", choices=FLUSH_KINDS, default="write")
    given = parser.parse_args()
    keep_apart(given.json, card())
    problems, new, target = read_shapes(given.problems).values(), specs_of(given.operator, given.shapes), gpu()
    every = [*new.values(), *(spec for sizes in problems for spec in beside(given.operator, sizes, target.sms))]
    list(compile_texts([kernel_of(spec).text for spec in dict.fromkeys(every)], target.architecture))
    flush, rows = Flush(given.flush), list[Row]()
    for sizes in problems:
        rows.append(measured(given.operator, sizes, new, target.sms, flush))
        print(line(rows[-1]), flush=True)
        write(given.json, rows, what=WHAT, flush=given.flush)
    for name, mean, most in gains(rows):
        print(f"x{mean:.4f}, at best x{most:.3f}: {name}")


if __name__ == "__main__":
    main()
