"""Dense FP8 and BF16 GEMM of problems drawn at random, beside cuBLAS and other libraries: where is another one faster?

    python benchmarks/drawn.py

m, n and k are drawn as those are that picks are judged by, with another seed: most m are no multiples of a tile's rows,
and no entry of a tuned file serves them. Everything else is as in ``benchmarks/dense.py``.
"""

from __future__ import annotations

import argparse

from dense import Problems, suite
from environment import card, results_of
from selection import held_back

SEED, PROBLEMS = 43, 40
WHAT = "dense GEMM of problems drawn at random, medians in us, L2 flushed by a 256 MiB write before each launch"


def problems(count: int = PROBLEMS) -> Problems:
    """m, n and k, by m."""
    return sorted((each.m, each.n, each.k) for each in held_back(count, SEED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the file of results; by default that of the card for these problems")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    given = parser.parse_args()
    suite(given.json or results_of("drawn", card()), given.repeats, problems(given.problems), ["write"], WHAT)


if __name__ == "__main__":
    main()
