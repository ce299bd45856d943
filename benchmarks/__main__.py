"""Everything that pages of measurements open with, in one command: `python benchmarks`, or `make bench`.

The FP8 and BF16 suites beside cuBLAS and what else can be imported, into the card's file of results, then the pages and
their pictures anew.
"""

from __future__ import annotations

import dense
import pictures
import report
from environment import card, results_of


def main() -> None:
    given = dense.arguments().parse_args()
    problems = [(m, n, k) for m in dense.SIZES_M for n, k in dense.SIZES_NK]
    path = given.json or results_of("dense", card())
    dense.suite(path, given.repeats, problems[::8] if given.few else problems)
    if not given.few:
        report.write()
        pictures.draw()


if __name__ == "__main__":
    main()
