"""Chains of GEMMs with few rows through rotating weights: launches back to back, as in the layers of a decoder.

    python benchmarks/chains.py --json benchmarks/results/chains_h100.json

64 launches are queued behind a sleeping kernel; weights rotate through more memory than L2 holds. With a programmatic
launch a kernel starts before the one ahead has ended and reads its weights meanwhile. cuBLAS FP8 is
``torch._scaled_mm`` with one scale a tensor. DeepGEMM's chains, launched without, are in the run where it is installed.
The output of the last launch of every kind of chain is checked.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import median
from typing import Any

import torch
from dense import ROUNDING, spec_of
from environment import card, keep_apart, write
from inputs import worst_tile
from problem import KINDS, Problem

import gemmgen
import gemmgen.ops as ops
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu

SIZES_NK = [(2112, 7168), (576, 7168), (4096, 7168), (7168, 2048), (24576, 1536), (7168, 16384)]
SIZES_M = [64, 128]
LAUNCHES = 64
WEIGHT_BYTES = 300 << 20
"""Six times the L2 of an H100."""
SLEEP = 3_000_000
"""Cycles in which the host queues a chain."""
Call = Callable[[int], object]
Weights = Sequence[tuple[torch.Tensor, torch.Tensor | None]]


def chain_us(calls: Sequence[Call], repeats: int) -> list[float]:
    """Median microseconds a launch of each chain; chains take turns, the first turn is not counted."""
    seen: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, times in zip(calls, seen, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(SLEEP)
            start.record()
            for launch in range(LAUNCHES):
                call(launch)
            end.record()
            torch.cuda.synchronize()
            if turn:
                times.append(start.elapsed_time(end) * 1e3 / LAUNCHES)
    return [median(times) for times in seen]


def specs(kind: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    """The kernel that the op picks, and the one that is taken for an early launch."""
    target = gpu()
    early = ops.spec_for(f"{kind}_gemm_nt", m, n, k, target.sms, card=target.card, programmatic_launch=True)
    return spec_of(kind, m, n, k), early


def deepgemm(kind: str, problem: Problem, weights: Weights, d: torch.Tensor) -> list[Call]:
    """DeepGEMM's op, where it is installed."""
    try:
        library = import_module("deep_gemm")
    except ImportError:
        return []

    def launch(index: int) -> object:
        b, sfb = weights[index % len(weights)]
        if kind == "bf16":
            return library.bf16_gemm_nt(problem.a, b, d)
        return library.fp8_gemm_nt((problem.a, problem.sfa), (b, sfb), d)

    return [launch]


def chains(kind: str, m: int, n: int, k: int, problem: Problem) -> tuple[list[Call], torch.Tensor]:
    """cuBLAS, the op's kernel, that launched early, and others, on weights by turns; and the output of all but one."""
    count = max(2, min(LAUNCHES, WEIGHT_BYTES // (n * k * problem.b.element_size())))
    weights = [(problem.b.clone(), None if problem.sfb is None else problem.sfb.clone()) for _ in range(count)]
    d, one = problem.output(), torch.ones((), device="cuda")

    def cublas(launch: int) -> object:
        b = weights[launch % count][0].t()
        if kind == "bf16":
            return torch.mm(problem.a, b)
        return torch._scaled_mm(problem.a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    def call(spec: Any) -> Call:
        op = gemmgen.op(spec)

        def launch(index: int) -> object:
            b, sfb = weights[index % count]
            scales = {} if sfb is None else {"sfa": problem.sfa, "sfb": sfb}
            return op(a=problem.a, b=b, d=d, **scales)

        return launch

    return [cublas, *map(call, specs(kind, m, n, k)), *deepgemm(kind, problem, weights, d)], d


def measure(kind: str, m: int, n: int, k: int, repeats: int) -> dict[str, Any]:
    """A row: microseconds a launch, and the worst tile of what the chains left."""
    problem = Problem.random(kind, m, n, k)
    calls, d = chains(kind, m, n, k, problem)
    errors = []
    for call in calls[1:]:
        d.fill_(math.nan)
        for launch in range(LAUNCHES):
            call(launch)
        errors.append(worst_tile(d, problem.expected))
    if not max(errors) < ROUNDING:
        raise SystemExit(f"{kind} m={m} n={n} k={k}: the result is wrong, worst tiles {errors}")
    cublas, plain, early, *others = chain_us(calls, repeats)
    tile, early_tile = (spec.name.split("_bf16_")[-1] for spec in specs(kind, m, n, k))
    row = {"kind": kind, "m": m, "n": n, "k": k, "tile": tile, "early_tile": early_tile, "worst_tile": max(errors)}
    row |= {"cublas_us": cublas, "us": plain, "programmatic_us": early}
    return row | {"deepgemm_us": others[0]} if others else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    keep_apart(given.json, card())
    problems = [(kind, m, n, k) for kind in KINDS for m in SIZES_M for n, k in SIZES_NK]
    every = dict.fromkeys(spec for problem in problems for spec in specs(*problem))
    list(compile_texts([kernel_of(spec).text for spec in every], gpu().architecture))
    rows = []
    for problem in problems:
        rows.append(row := measure(*problem, given.repeats))
        print(
            f"{row['kind']:4} {row['m']:4} {row['n']:5} {row['k']:5} cuBLAS {row['cublas_us']:6.1f}  "
            f"{row['tile']} {row['us']:6.1f}  {row['early_tile']} {row['programmatic_us']:6.1f} us  "
            f"DeepGEMM {row.get('deepgemm_us', math.nan):6.1f}  "
            f"err {row['worst_tile']:.1e}",
            flush=True,
        )
    write(given.json, rows, what=f"chains of {LAUNCHES} launches over rotating weights, medians in us a launch")


if __name__ == "__main__":
    main()
