"""Times of every tile near the cheapest, for groups of rows drawn at random; each result is compared with a product.

    python benchmarks/group_draws.py --problems 200

2 to 64 groups of 1 to 4096 rows, alike to most uneven, n of 512 to 7680 and k of 512 to 7168, FP8 and BF16, given by
row ids, by ends or by counts; with ``--alike`` all groups of a problem have as many rows. Every kernel that is timed
wrote an output full of NaN first, every group of which was compared with an fp32 product of what the factors stand for.
``benchmarks/group_picks.py`` judges the rule by the file.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from environment import card, keep_apart, results_of, write
from group_picks import ALIGNMENT, TYPES, cost_of
from grouped_problem import ALIGNMENT as PADDED
from grouped_problem import CAPACITY, Case, Problem
from inputs import worst_tile

import gemmgen
from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt
from gemmgen.catalog.grouped import grouped_shapes, in_row_groups
from gemmgen.ir import KernelSpec
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu
from gemmgen.runtime.timing import Flush, times

FIRST_SEED = 1_000_000
"""Seeds below were drawn for the rule's fit and for its judgement."""
NEAR = 1.4
"""A tile is timed if the rule has it cost at most so much of the cheapest."""
TOLERANCE = 5e-3
"""Of the worst tile's relative error; rounding to bf16 explains 3e-3."""
MOST_ROWS = 40_000
ROWS_ALIKE = (16, 32, 48, 64, 80, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 640, 768, 1024, 2048)
MOST_BYTES = 20e9
"""Of factors, so that copies of them fit a card."""
WHAT = (
    "groups of rows: medians of {repeats} in us of tiles near the cheapest, L2 flushed by a 256 MiB write before each "
    "launch, every result right; form, kind, groups, rows, n, k, tiles"
)


@dataclass(frozen=True)
class Drawn(Case):
    """A case with rows of its own for each group."""

    own: tuple[int, ...] = ()

    def counts(self) -> list[int]:
        return list(self.own)


def drawn(seed: int) -> tuple[str, Drawn]:
    """What groups are given by, and the problem."""
    draw = random.Random(seed)
    form, kind = draw.choice(("ends", "counts", "ids")), draw.choice(("fp8", "fp8", "bf16"))
    groups = draw.choice((2, 3, 4, 6, 8, 8, 16, 32, 64))
    n, k = 128 * draw.randint(4, 60), 128 * draw.choice((4, 6, 8, 12, 16, 24, 32, 56))
    most = min(1800, MOST_ROWS // groups) if form == "counts" else MOST_ROWS // groups
    mean = min(most, 2 ** draw.uniform(5 if form == "ids" else 2, 12.5))
    alike = draw.choice((0.7, 3, 30, 30))
    sizes = [mean * draw.gammavariate(alike, 1 / alike) for _ in range(groups)]
    own = tuple(max(1, min(CAPACITY, round(size))) for size in sizes)
    return form, Drawn("masked" if form == "counts" else "contiguous", kind, groups, sum(own), n, k, 0, own)


def drawn_alike(seed: int) -> tuple[str, Drawn]:
    """The same for groups of as many rows each, of numbers that benchmarks like."""
    draw = random.Random(seed)
    form, kind = draw.choice(("ends", "counts", "ids")), draw.choice(("fp8", "fp8", "bf16"))
    groups = draw.choice((4, 6, 8, 8, 16, 32, 64))
    n, k = 128 * draw.choice((8, 12, 16, 24, 32, 48, 56)), 128 * draw.choice((8, 12, 16, 24, 32, 56))
    rows = draw.choice(ROWS_ALIKE)
    if form == "ids":
        rows = -(-rows // PADDED) * PADDED
    rows = min(rows, MOST_ROWS // groups, 1800 if form == "counts" else MOST_ROWS)
    own = (rows,) * groups
    return form, Drawn("masked" if form == "counts" else "contiguous", kind, groups, sum(own), n, k, 0, own)


def fits(case: Case) -> bool:
    """Whether its factors leave room for what is computed from them."""
    rows = case.groups * CAPACITY if case.form == "masked" else case.rows
    return (rows + case.groups * case.n) * case.k * TYPES[case.kind].bytes < MOST_BYTES


def near(form: str, case: Case, rows: int) -> list[Shape]:
    """Tiles that the rule has cost little more than the cheapest."""
    shapes = grouped_shapes(TYPES[case.kind], form)
    costs = [cost_of(shape, form, case.kind, case.groups, rows, case.n, case.k).total for shape in shapes]
    return [shape for shape, each in zip(shapes, costs, strict=True) if each < NEAR * min(costs)]


def spec_of(shape: Shape, form: str, kind: str) -> KernelSpec:
    """The kernel of a tile."""
    dense = fp8_gemm_nt(shape) if kind == "fp8" else bf16_gemm("nt", shape)
    return in_row_groups(dense, form, ALIGNMENT[form])


def rows_known(form: str, case: Case) -> int:
    """What a caller knows of all rows: by ids with padding."""
    return sum(-(-each // PADDED) * PADDED for each in case.counts()) if form == "ids" else case.rows


def compile_all(cases: list[tuple[str, Drawn]]) -> None:
    """Into the cache on disk, in parallel."""
    specs = {
        spec.name: spec
        for form, case in cases
        for shape in near(form, case, rows_known(form, case))
        for spec in [spec_of(shape, form, case.kind)]
    }
    texts = [kernel_of(spec).text for spec in specs.values()]
    for _ in compile_texts(texts, gpu().architecture):
        pass


def measure(form: str, case: Case, repeats: int, flush: Flush) -> list[Any]:
    """A row of the file. Ends with a sentence where a result is wrong."""
    problem, rows = Problem.random(case, padded=form == "ids"), rows_known(form, case)
    named = {"a": problem.a, "b": problem.b, "layout": problem.layout}
    if problem.sfa is not None:
        named |= {"sfa": problem.sfa, "sfb": problem.sfb}
    calls: dict[str, Callable[[], Any]] = {}
    expected = list(problem.expected())
    for shape in near(form, case, rows):
        spec, d = spec_of(shape, form, case.kind), problem.output()
        launch = gemmgen.op(spec)
        launch(**named, d=d)
        worst = max(worst_tile(problem.rows(d, group), each) for group, each in enumerate(expected))
        if not worst < TOLERANCE:
            raise SystemExit(f"{spec.name}: {case}: a tile is off by {worst:.1e}")
        calls[shape.label] = partial(launch, **named, d=d)
    del expected
    found = times(list(calls.values()), flush, repeats)
    return [form, case.kind, case.groups, rows, case.n, case.k, dict(zip(calls, found, strict=True))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the file of results; by default that of the card")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--alike", action="store_true", help="groups of as many rows each")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first problem")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    draw, file = (drawn_alike, "group_alike") if given.alike else (drawn, "group_draws")
    path = given.json or results_of(file, card())
    keep_apart(path, card())
    cases = [each for each in map(draw, range(given.seed, given.seed + given.problems)) if fits(each[1])]
    compile_all(cases)
    flush, rows = Flush("write"), []
    for form, case in cases:
        rows.append(measure(form, case, given.repeats, flush))
        torch.cuda.empty_cache()
        write(path, rows, what=WHAT.format(repeats=given.repeats), seed=given.seed)
    print(f"{len(rows)} problems, every result right: {path}")


if __name__ == "__main__":
    main()
