"""How near the rule's pick is to the best candidate, on problems drawn at random that nobody fitted it to.

    python benchmarks/selection.py --json benchmarks/results/selection_h100.json
    python benchmarks/selection.py --json benchmarks/results/selection_h100.json --listed times.jsonl
    python benchmarks/selection.py --json benchmarks/results/selection_h100.json --judge

Every candidate is checked against a float64 reference and timed (``gemmgen.commands.measuring``, as ``gemmgen tune``
does); entries of tuned files count for nothing here. ``--listed`` takes the times that ``gemmgen tune --times`` wrote
instead, of problems that somebody listed, beside those drawn at random. ``--judge`` times nothing: it asks the rule as
it is now about the times that the file has, which is what a refitted rule is to be judged by.

A problem with m * n * k of more than 2^38, or a matrix of more than 2^29 elements, is drawn again (`bounds.py`), so few
have many rows: of the 40 problems 6 have m >= 1024, and 2 of these m >= 4096. Large products are judged by
``benchmarks/dense.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from bounds import GRAIN, MOST_COLUMNS, MOST_ELEMENTS, MOST_PRODUCTS, MOST_ROWS
from environment import card, environment, keep_apart, same_card

from gemmgen.commands.measuring import measure
from gemmgen.commands.targets import Sizes
from gemmgen.ops.family import Selection
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.selection import Choices, select
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu
from gemmgen.runtime.timing import Flush

SEED, PROBLEMS = 20261203, 40
OPERATORS = ("fp8_gemm_nt", "bf16_gemm_nt")


def held_back(count: int = PROBLEMS, seed: int = SEED) -> list[Sizes]:
    """m log-uniform from 1, n and k multiples of 64, drawn again where a problem is too large."""
    generator = random.Random(seed)
    found: list[Sizes] = []
    while len(found) < count:
        m = round(math.exp(generator.uniform(0, math.log(MOST_ROWS))))
        n, k = (GRAIN * generator.randint(1, MOST_COLUMNS // GRAIN) for _ in range(2))
        if m * n * k <= MOST_PRODUCTS and max(m * n, m * k, n * k) <= MOST_ELEMENTS:
            found.append(Sizes(m, n, k))
    return found


def rule(operator: str, sizes: Sizes, sms: int) -> Selection:
    """The candidates and the rule's pick, whatever was measured."""
    return Selection.of(select(operator, sizes.m, sizes.n, sizes.k, sms, Choices()).candidates)


def measured(problems: list[tuple[str, Sizes]], sms: int) -> list[dict[str, Any]]:
    """A row a problem: microseconds of every candidate by name, none of a wrong one."""
    specs = dict.fromkeys(each.spec for problem in problems for each in rule(*problem, sms).candidates)
    list(compile_texts([kernel_of(spec).text for spec in specs], gpu().architecture))
    flush, rows = Flush(), []
    for operator, sizes in problems:
        ruled = rule(operator, sizes, sms)
        found = measure([each.spec for each in ruled.candidates], sizes, 0, flush, compared=ruled.index)
        for each in found:
            if not each.right:
                print(f"WRONG {each.spec.name} {sizes}: {each.error:.2e}", flush=True)
        row = {"set": "random", "op": operator, "m": sizes.m, "n": sizes.n, "k": sizes.k}
        rows.append({**row, "us": {each.spec.name: round(each.us, 2) for each in found if each.right}})
        print(line(judged(rows[-1], sms)), flush=True)
    return rows


def judged(row: dict[str, Any], sms: int) -> dict[str, Any]:
    """The row with the rule's pick among what was timed, the best, and the time of the one over the other."""
    every = rule(row["op"], Sizes(row["m"], row["n"], row["k"]), sms).candidates
    found = Selection.of(tuple(each for each in every if each.spec.name in row["us"]))
    picked, best = found.picked.spec.name, min(row["us"], key=lambda name: row["us"][name])
    ratio = row["us"][picked] / row["us"][best]
    return {
        **{key: row[key] for key in ("set", "op", "m", "n", "k", "us")},
        "picked": picked,
        "best": best,
        "ratio": ratio,
    }


def line(row: dict[str, Any]) -> str:
    short = [row[name].partition("_bf16_")[2] for name in ("picked", "best")]
    return (
        f"{row['op']:12} {row['m']:6} {row['n']:6} {row['k']:6}  {short[0]:16} {row['us'][row['picked']]:8.1f}  best "
        f"{short[1]:16} {row['us'][row['best']]:8.1f}  x{row['ratio']:.3f}"
    )


def listed(path: Path, name: str) -> list[dict[str, Any]]:
    """Rows of what ``gemmgen tune --times`` wrote, on the card of this name."""
    rows = [{"set": "listed", **json.loads(line)} for line in path.read_text().splitlines()]
    for row in rows:
        same_card("--listed", path, row.get("card"), name, "name the results of that card with --json")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--listed", type=Path)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    given = parser.parse_args()
    kept = json.loads(given.json.read_text()) if given.json.exists() else {"rows": []}
    if given.judge or given.listed:
        sms = int(kept["environment"]["sms"])
        new = listed(given.listed, kept["environment"]["card"]) if given.listed else kept["rows"]
    else:
        keep_apart(given.json, card())
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        new = measured([(operator, sizes) for operator in OPERATORS for sizes in held_back(given.problems)], sms)
        kept = {"environment": environment(), **kept}
    others = [row for row in kept["rows"] if row["set"] not in {row["set"] for row in new}]
    rows = [judged(row, sms) for row in (*others, *new)]
    what = "every candidate, medians in us, L2 flushed by a 256 MiB write"
    contents = {"environment": kept["environment"], "what": what, "seed": SEED, "rows": rows}
    lines = ",\n".join(json.dumps(row) for row in contents.pop("rows"))
    given.json.write_text(f'{json.dumps(contents)[:-1]}, "rows": [\n{lines}\n]}}\n')
    for group in dict.fromkeys((row["set"], row["op"]) for row in rows):
        ratios = [row["ratio"] for row in rows if (row["set"], row["op"]) == group]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{' '.join(group)}: the pick takes {mean:.3f} of the best's time, geomean; {max(ratios):.3f} at worst")


if __name__ == "__main__":
    main()
