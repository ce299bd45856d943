"""Fits the constants of the rule for sm90 to measured times of all candidates, and prints those that changed.

    gemmgen tune fp8_gemm_nt --shapes benchmarks/shapes_tuned.txt -o /tmp/tuned.json --times times.jsonl
    python benchmarks/fit.py times.jsonl

Searches one constant after the other, by factors, for the smallest loss: how much time picks lose against the best
candidate, and a little of how far predicted times are from measured ones, so that terms keep their meaning. What the
rule is judged by are other problems (benchmarks/selection.py).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmgen.commands.targets import Sizes
from gemmgen.ops import choice
from gemmgen.ops.family import Candidate
from gemmgen.ops.selection import Choices, select

SMS = 132
FACTORS = (0.6, 0.8, 0.9, 0.96, 1.04, 1.1, 1.25, 1.6)
"""Steps that a constant may take, in turn."""
NEAR = 1.5
"""Candidates within this of the best count for how far times are off."""
WEIGHT = 0.05
"""Of that, against time that picks lose."""
Row = dict[str, Any]
Place = tuple[str, Any]


def constants() -> Iterator[Place]:
    """Every number of the rule: its name, and the key where it is one of a table."""
    for name, value in vars(choice).items():
        if not name.isupper():
            continue
        if isinstance(value, int | float):
            yield name, None
        elif isinstance(value, dict):
            yield from ((name, key) for key in value)


def get(place: Place) -> float:
    value = getattr(choice, place[0])
    return float(value if place[1] is None else value[place[1]])


def put(place: Place, value: float) -> None:
    if place[1] is None:
        setattr(choice, place[0], value)
    else:
        getattr(choice, place[0])[place[1]] = value


def candidates(row: Row) -> list[tuple[Candidate, float]]:
    """Candidates that were right, and their microseconds."""
    sizes = Sizes(row["m"], row["n"], row["k"])
    found = select(row["op"], sizes.m, sizes.n, sizes.k, SMS, Choices()).candidates
    return [(each, row["us"][each.spec.name]) for each in found if each.spec.name in row["us"]]


def lost(known: list[tuple[Candidate, float]]) -> float:
    """The log of the pick's time over the best one's."""
    picked = min(known, key=lambda each: each[0].cost.key)[1]
    return math.log(picked / min(us for _, us in known))


def loss(rows: list[Row]) -> float:
    every, off = [], []
    for row in rows:
        known = candidates(row)
        best = min(us for _, us in known)
        every.append(lost(known))
        off += [math.log(choice.microseconds(each.cost.total) / us) for each, us in known if us <= NEAR * best]
    spread = math.sqrt(sum(each * each for each in off) / len(off))
    return sum(every) / len(every) + 0.02 * max(every) + WEIGHT * spread


def search(rows: list[Row], rounds: int) -> float:
    """Coordinate descent from the constants as they are."""
    best = loss(rows)
    for _ in range(rounds):
        before = best
        for place in list(constants()):
            for factor in FACTORS:
                value = get(place)
                put(place, value * factor)
                if (now := loss(rows)) < best - 1e-6:
                    best = now
                else:
                    put(place, value)
        if before - best < 1e-4:
            break
    return best


def say(rows: list[Row], when: str) -> None:
    every = [lost(candidates(row)) for row in rows]
    mean, worst = math.exp(sum(every) / len(every)), math.exp(max(every))
    print(f"{when}: picks take {mean:.3f} of the best's time, {worst:.3f} at worst; loss {loss(rows):.4f}")


def read(path: Path) -> list[Row]:
    """Rows of ``gemmgen tune --times``, or of benchmarks/selection.py."""
    text = path.read_text()
    return json.loads(text)["rows"] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--judge", type=Path, help="other times, which only judge the result")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    rows = read(given.times)
    before = {place: get(place) for place in constants()}
    say(rows, "before")
    if given.judge:
        say(read(given.judge), "others, before")
    search(rows, given.rounds)
    say(rows, "after")
    if given.judge:
        say(read(given.judge), "others, after")
    for place in list(constants()):
        if get(place) != before.get(place):
            print(f"{place[0]}{'' if place[1] is None else f'[{place[1]}]'} = {get(place):.4g}")


if __name__ == "__main__":
    main()
