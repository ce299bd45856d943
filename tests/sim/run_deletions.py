"""Run the deletion campaign and write its score table: python tests/sim/run_deletions.py [--check]

Takes a few minutes on one core; nothing but the table is written.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from planted.deletions import KINDS, Outcome, campaign  # noqa: E402
from planted.score import TITLES, page  # noqa: E402

TIMINGS = (("early", 0), ("late", 0), *((mode, seed) for seed in range(4) for mode in ("random", "starve")))
PAGE = Path(__file__).parents[2] / "docs" / "simulator_deletions.md"


def main() -> int:
    """Every kernel under every timing until a deletion is found; 1 if --check is asked and the page differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    check = parser.parse_args().check
    outcomes = {title: list(_told(name)) for name, title in TITLES.items()}
    text = page(outcomes, [name for name, _ in KINDS], TIMINGS)
    if check:
        return 0 if text == PAGE.read_text() else 1
    PAGE.write_text(text)
    return 0


def _told(name: str) -> list[Outcome]:
    began = time.perf_counter()
    outcomes = campaign(name, TIMINGS)
    for outcome in outcomes:
        if not outcome.found:
            sys.stdout.write(f"{name}: {outcome.deletion.kind} {outcome.deletion.where} not found\n")
    sys.stdout.write(f"{name}: {len(outcomes)} deletions in {time.perf_counter() - began:.0f} s\n")
    return outcomes


if __name__ == "__main__":
    raise SystemExit(main())
