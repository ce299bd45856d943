"""Dense FP8 and BF16 GEMM through the public ops, beside cuBLAS and other libraries that are there, in the same run.

    python benchmarks/dense.py

Results go to the card's file in benchmarks/results/ unless ``--json`` names another, and replace no other card's.
cuBLAS FP8 is ``torch._scaled_mm`` with one scale a tensor and fast accumulation: it does less work than block scaling.
Inputs are normal, scales are those of the quantiser, A's scales already m-contiguous. Every kernel that is timed wrote
a poisoned output first, which was compared with an fp32 reference; a wrong one is no row's time.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from environment import card, keep_apart, results_of, write
from inputs import worst_tile
from peers import Peer, peers
from problem import KINDS, Problem

import gemmgen.ops as ops
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu
from gemmgen.runtime.timing import FLUSH_KINDS, Flush, times

SIZES_NK = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
SIZES_M = [64, 128, 4096, 8192]
ROUNDING = 6e-3
"""The worst tile's error that rounding to bf16 and sums of e4m3 products explain."""
WHAT = "dense GEMM, medians in us, L2 flushed by a 256 MiB write or read before each launch"
Problems = list[tuple[int, int, int]]


def spec_of(kind: str, m: int, n: int, k: int) -> Any:
    """The kernel that the op picks on the GPU here."""
    target = gpu()
    return ops.spec_for(f"{kind}_gemm_nt", m, n, k, target.sms, arch=target.family, card=target.card)


def compile_first(problems: Problems) -> None:
    """Every kernel of the suites, as many at a time as there are cores."""
    specs = dict.fromkeys(spec_of(kind, *problem) for kind in KINDS for problem in problems)
    list(compile_texts([kernel_of(spec).text for spec in specs], gpu().architecture))


def ours(problem: Problem) -> Peer:
    """The public op."""
    d = problem.output()
    if problem.kind == "bf16":
        return Peer("gemmgen", lambda: ops.bf16_gemm_nt(problem.a, problem.b, d), lambda: d)
    a, b = (problem.a, problem.sfa), (problem.b, problem.sfb)
    return Peer("gemmgen", lambda: ops.fp8_gemm_nt(a, b, d), lambda: d)


def checked(problem: Problem, every: Iterable[Peer]) -> dict[str, float]:
    """The worst tile's error of each after one launch, infinite where another library raises."""
    found = {}
    for each in every:
        try:
            each.call()
        except Exception as error:
            if each.name == "gemmgen":
                raise
            print(f"{each.name} raises: {error}", flush=True)
            found[each.name] = math.inf
            continue
        found[each.name] = worst_tile(each.output(), problem.expected if each.scaled else problem.raw)
    return found


def measure(kind: str, m: int, n: int, k: int, flushes: list[Flush], repeats: int, said: set[str]) -> dict[str, Any]:
    """A row: microseconds of each library after each flush, and its worst tile."""
    problem = Problem.random(kind, m, n, k)
    others, missing = peers(problem)
    for sentence in missing.values():
        if sentence not in said:
            said.add(sentence)
            print(sentence, flush=True)
    every = [ours(problem), *others]
    errors = checked(problem, every)
    wrong = [each.name for each in every if not errors[each.name] < ROUNDING]
    if "gemmgen" in wrong:
        raise SystemExit(f"{kind} m={m} n={n} k={k}: the result is wrong, worst tile {errors['gemmgen']:.1e}")
    if wrong:
        print(f"{kind} {m} {n} {k}: wrong, and not timed: {', '.join(wrong)}", flush=True)
    right = [each for each in every if each.name not in wrong]
    row: dict[str, Any] = {
        "kind": kind,
        "m": m,
        "n": n,
        "k": k,
        "tile": spec_of(kind, m, n, k).name.split("_bf16_")[-1],
    }
    row["worst_tile"] = errors["gemmgen"]
    for flush in flushes:
        found = times([each.call for each in right], flush, repeats)
        for each, us in zip(right, found, strict=True):
            row[f"us_{flush.kind}" if each.name == "gemmgen" else f"{each.name}_us_{flush.kind}"] = us
    return row


def line(row: dict[str, Any]) -> str:
    names = [key.removesuffix("_us_write") for key in row if key.endswith("_us_write")]
    ratios = "  ".join(f"x{row['us_write'] / row[f'{name}_us_write']:.3f} of {name}" for name in names)
    return (
        f"{row['kind']:4} {row['m']:5} {row['n']:5} {row['k']:5} {row['tile']:14} {row['us_write']:8.1f} us  {ratios}  "
        f"err {row['worst_tile']:.1e}"
    )


def suite(
    path: str | Path, repeats: int, problems: Problems, flushed: Iterable[str] = FLUSH_KINDS, what: str = WHAT
) -> None:
    """Both types, a line a problem, the file written after each. It may not be another card's."""
    keep_apart(path, card())
    torch.backends.cuda.matmul.allow_tf32 = False
    compile_first(problems)
    flushes = [Flush(each) for each in flushed]
    rows: list[dict[str, Any]] = []
    said: set[str] = set()
    for kind in KINDS:
        for m, n, k in problems:
            rows.append(measure(kind, m, n, k, flushes, repeats, said))
            print(line(rows[-1]), flush=True)
            write(path, rows, what=what, left_out=sorted(said))
        for m in (m for m, count in Counter(m for m, _, _ in problems).items() if count > 1):
            timed = (row for row in rows if (row["kind"], row["m"]) == (kind, m) and "cublas_us_write" in row)
            if ratios := [row["us_write"] / row["cublas_us_write"] for row in timed]:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"{kind} m={m}: geomean {mean:.3f} of cuBLAS's time", flush=True)


def arguments() -> argparse.ArgumentParser:
    """What this and the whole suite take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the file of results; by default that of the card for this suite")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--few", action="store_true", help="four problems of each kind, to see that all of it works")
    return parser


def main() -> None:
    given = arguments().parse_args()
    problems = [(m, n, k) for m in SIZES_M for n, k in SIZES_NK]
    suite(given.json or results_of("dense", card()), given.repeats, problems[::8] if given.few else problems)


if __name__ == "__main__":
    main()
