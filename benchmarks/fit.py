"""Fits the constants of the rule for sm90 to measured times of all candidates, and prints those that changed.

    gemmgen tune fp8_gemm_nt --shapes problems.txt -o /tmp/tuned.json --times times.jsonl
    python benchmarks/fit.py times.jsonl --seconds 200

Moves one constant after the other by random steps, within what the hardware can be, for the smallest loss: how much
time picks lose against the best candidate, by the mean and by the worst, and a little of how far predicted times are
from measured ones, so that terms keep their meaning. Candidates that cost nearly the same count as if either might be
picked, or the loss would move in jumps. What the rule is judged by are other problems (benchmarks/selection.py).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import same_card

from gemmgen import catalog
from gemmgen.catalog import Shape
from gemmgen.ops import choice
from gemmgen.ops.cost import Cost

SMS = 132
NEAR = 1.5
"""Candidates within this of the best count for how far times are off."""
ALIKE = 0.02
"""Candidates whose costs differ by less than this share are picked nearly as often as each other."""
WEIGHT, WORST = 0.1, 0.3
"""Of how far times are off, and of the worst picks, against the mean of time that picks lose."""
WITHIN = {
    "PRODUCT_ROWS": (27, 32),
    "L2_BYTES": (60, 110),
    "L2_ALL": (4500, 6800),
    "SHARED_BYTES": (105, 140),
    "PAST_LINE": (2, 6),
    "DEVICE_BYTES": (2000, 2800),
    "FEW_DEVICE_BYTES": (2200, 3600),
    "WRITTEN_BYTES": (20e6, 70e6),
    "EPILOGUE": (200, 2500),
    "SOLE_START": (300, 2000),
    "HALF_RING": (1, 2.2),
    "CUT_PART": (1.1, 1.6),
    "BETWEEN_ROUNDS": (30, 200),
    "FEW_TAIL": (1000, 3000),
    "FEW_SATURATE": (0.1, 0.9),
    "PUSH": (300, 3000),
    "MEETING": (2000, 12000),
    "MHZ": (1600, 1980),
    "LAUNCH_US": (4, 5.5),
}
"""What a constant may be; others may be anything above 0."""
FIXED = (
    "STAGED_COLUMNS",
    "STAGED_ALONE",
    "WARPGROUP_ROWS",
    "LEAST_COLUMNS",
    "RING_BYTES",
    "SMS",
    "CLUSTERS",
    "READ_ONCE_BYTES",
)
"""Numbers of the kernels."""
Place = tuple[str, Any]
SHAPES = {
    **{catalog.fp8_gemm_nt(shape).name: shape for shape in catalog.FP8_SHAPES},
    **{catalog.bf16_gemm("nt", shape).name: shape for shape in catalog.BF16_SHAPES},
}
"""Tiles of the operators whose times are fitted, by the kernel's name."""


@dataclass(frozen=True)
class Timed:
    """A problem, and the microseconds of the tiles that were right, in the order in which the rule lists them."""

    op: str
    m: int
    n: int
    k: int
    us: tuple[tuple[Shape, float], ...]

    @classmethod
    def of(cls, row: dict[str, Any]) -> Timed:
        """A row as it was written; kernels that ship no more are left out."""
        us = tuple((shape, row["us"][name]) for name, shape in SHAPES.items() if name in row["us"])
        return cls(row["op"], row["m"], row["n"], row["k"], us)

    def costs(self) -> list[tuple[Cost, float]]:
        """What the rule says of each tile, and what it took."""
        promoted = self.op == "fp8_gemm_nt"
        k_bytes = self.k if promoted else 2 * self.k
        return [(choice.cost(shape, self.m, self.n, k_bytes, SMS, promoted), us) for shape, us in self.us]


def constants() -> Iterator[Place]:
    """Every number of the rule: its name, and the key where it is one of a table."""
    for name, value in vars(choice).items():
        if not name.isupper() or name in FIXED:
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


def lost(known: Sequence[tuple[Cost, float]]) -> float:
    """The log of the pick's time over the best one's."""
    picked = min(known, key=lambda each: each[0].key)[1]
    return math.log(picked / min(us for _, us in known))


def expected(known: Sequence[tuple[Cost, float]]) -> float:
    """What is lost where candidates that cost alike are picked alike."""
    best, least = min(us for _, us in known), min(cost.total for cost, _ in known)
    weights = [(cost.total / least) ** (-1 / ALIKE) for cost, _ in known]
    every = (weight * math.log(us / best) for weight, (_, us) in zip(weights, known, strict=True))
    return sum(every) / sum(weights)


def loss(rows: Sequence[Timed]) -> float:
    every, off = [], []
    for row in rows:
        known = row.costs()
        best = min(us for _, us in known)
        every.append(expected(known))
        off += [math.log(choice.microseconds(cost.total) / us) for cost, us in known if us <= NEAR * best]
    worst = (sum(each**4 for each in every) / len(every)) ** 0.25
    spread = math.sqrt(sum(each * each for each in off) / len(off))
    return sum(every) / len(every) + WORST * worst + WEIGHT * spread


def search(rows: Sequence[Timed], seconds: float, seed: int) -> None:
    """Random steps from the constants as they are, each kept where it is for the better; steps adapt."""
    draw, end, best = random.Random(seed), time.monotonic() + seconds, loss(rows)
    places = list(constants())
    steps = dict.fromkeys(places, 0.15)
    while time.monotonic() < end:
        for place in draw.sample(places, len(places)):
            value, factor = get(place), math.exp(draw.gauss(0, steps[place]))
            least, most = WITHIN.get(place[0], (0, math.inf))
            for each in (value * factor, value / factor):
                put(place, each)
                if least <= each <= most and (now := loss(rows)) < best - 1e-7:
                    best, steps[place] = now, min(0.5, steps[place] * 1.5)
                    break
            else:
                put(place, value)
                steps[place] = max(0.02, steps[place] * 0.8)


def say(rows: Sequence[Timed], when: str) -> None:
    every = [lost(row.costs()) for row in rows]
    mean, worst = math.exp(sum(every) / len(every)), math.exp(max(every))
    print(f"{when}: picks take {mean:.3f} of the best's time, {worst:.3f} at worst; loss {loss(rows):.4f}")


def read(path: Path, to_fit: bool = False) -> list[Timed]:
    """Rows of ``gemmgen tune --times``, or of benchmarks/selection.py; ``to_fit`` constants to, of their card alone."""
    text = path.read_text()
    whole = json.loads(text) if path.suffix == ".json" else {"rows": [json.loads(line) for line in text.splitlines()]}
    rows = whole["rows"]
    cards = {whole.get("environment", {}).get("card"), *(row.get("card") for row in rows)} if to_fit else set()
    for name in sorted(cards - {None}):
        fix = "judge by them with --judge, or fit all constants anew and change FITTED_ON in gemmgen/ops/choice.py"
        same_card("times", path, name, choice.FITTED_ON, fix)
    return [timed for timed in map(Timed.of, rows) if timed.us]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--judge", type=Path, help="other times, which only judge the result")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = read(given.times, to_fit=True)
    before = {place: get(place) for place in constants()}
    say(rows, "before")
    if given.judge:
        say(read(given.judge), "others, before")
    search(rows, given.seconds, given.seed)
    say(rows, "after")
    if given.judge:
        say(read(given.judge), "others, after")
    for place in list(constants()):
        if get(place) != before.get(place):
            print(f"{place[0]}{'' if place[1] is None else f'[{place[1]}]'} = {get(place):.4g}")


if __name__ == "__main__":
    main()
