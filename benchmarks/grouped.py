"""Grouped FP8 and BF16 products through the public ops, beside DeepGEMM where it can be imported, in the same run.

    python benchmarks/grouped.py --json benchmarks/results/grouped_h100.json

cuBLAS is one dense product of as many rows (or of all k), with one scale a tensor for FP8: other work of the same
size, for orientation. Offsets: the same real rows with no padding between groups. MXFP8 out: the same product,
quantised in its epilogue. Every kernel that is timed wrote an output full of NaN first, every group of which was
compared with an fp32 product of what the factors stand for. Where DeepGEMM is not there, its times measured earlier on
the same kind of card stand in the rows, and the ratio to them is printed.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from environment import card, keep_apart, results_of, write
from grouped_problem import CAPACITY, Case, KProblem, Problem
from inputs import worst_tile

import gemmgen.ops as ops
from gemmgen.ir import DType
from gemmgen.ops.groups import contiguous, masked, problem_of
from gemmgen.ops.k_selection import KSplit, bf16_spec, fp8_apart
from gemmgen.runtime.targets import gpu
from gemmgen.runtime.timing import Flush, times

CONTIGUOUS = [
    Case("contiguous", "fp8", 4, 34304, 6144, 7168, 2116),
    Case("contiguous", "fp8", 4, 33024, 7168, 3072, 1053),
    Case("contiguous", "fp8", 4, 35456, 4096, 4096, 857),
    Case("contiguous", "fp8", 4, 32512, 4096, 2048, 418),
    Case("contiguous", "fp8", 8, 38656, 6144, 7168, 2414),
    Case("contiguous", "fp8", 8, 35328, 7168, 3072, 1129),
    Case("contiguous", "fp8", 8, 33920, 4096, 4096, 829),
    Case("contiguous", "fp8", 8, 32384, 4096, 2048, 421),
    Case("contiguous", "bf16", 4, 34304, 6144, 7168, 3963),
    Case("contiguous", "bf16", 4, 33024, 7168, 3072, 1829),
    Case("contiguous", "bf16", 4, 35456, 4096, 4096, 1487),
    Case("contiguous", "bf16", 8, 36864, 6144, 7168, 4104),
    Case("contiguous", "bf16", 8, 33920, 7168, 3072, 1906),
    Case("contiguous", "bf16", 8, 35200, 4096, 4096, 1497),
]
MASKED = [
    Case("masked", "fp8", 32, 6312, 6144, 7168, 611),
    Case("masked", "fp8", 32, 6480, 7168, 3072, 336),
    Case("masked", "fp8", 32, 5834, 4096, 4096, 253),
    Case("masked", "fp8", 6, 6274, 6144, 7168, 417),
    Case("masked", "fp8", 6, 6487, 7168, 3072, 235),
    Case("masked", "fp8", 6, 5739, 4096, 4096, 158),
    Case("masked", "fp8", 32, 608, 6144, 7168, 499),
    Case("masked", "fp8", 32, 627, 7168, 3072, 269),
    Case("masked", "fp8", 32, 631, 4096, 4096, 204),
    Case("masked", "fp8", 6, 126, 6144, 7168, 106),
    Case("masked", "fp8", 6, 107, 7168, 3072, 61),
    Case("masked", "fp8", 6, 115, 4096, 4096, 52),
]
GRADIENTS = [
    Case("k", "fp8", 4, 36096, 4096, 7168, 2096),
    Case("k", "bf16", 4, 36096, 4096, 7168, 2954),
    Case("k", "fp8", 4, 31104, 7168, 2048, 942),
    Case("k", "bf16", 4, 31104, 7168, 2048, 1331),
    Case("k", "fp8", 8, 34176, 4096, 7168, 2093),
    Case("k", "bf16", 8, 34176, 4096, 7168, 3149),
    Case("k", "fp8", 16, 34560, 7168, 2048, 1194),
    Case("k", "bf16", 16, 34560, 7168, 2048, 1885),
]
ROUNDING = 6e-3
"""The worst tile's error that rounding to bf16 and sums of e4m3 products explain."""
QUANTISED = 6e-2
"""That of a tile in MXFP8: three bits of mantissa."""
WHAT = "grouped GEMM, medians in us, L2 flushed by a 256 MiB write before each launch"

Call = Callable[[], object]


def ours(problem: Problem, d: torch.Tensor, padded: bool = True) -> Call:
    """The public op."""
    form, kind = problem.case.form, problem.case.kind
    op = getattr(ops, f"m_grouped_{kind}_gemm_nt_{form}")
    rows = problem.case.rows // problem.case.groups
    hint: dict[str, Any] = {"expected_m": rows} if form == "masked" else {"offsets": not padded}
    factors = (problem.a, problem.b)
    if problem.sfa is not None:
        factors = ((problem.a, problem.sfa), (problem.b, problem.sfb))
    return lambda: op(*factors, d, problem.layout, **hint)


def deepgemm(problem: Problem, d: torch.Tensor) -> Call | None:
    """DeepGEMM's op on the same tensors, where it is installed."""
    try:
        library = import_module("deep_gemm")
    except ImportError:
        return None
    case = problem.case
    name = f"m_grouped_{case.kind}_gemm_nt_{case.form}"
    if case.kind == "bf16":
        return lambda: getattr(library, name)(problem.a, problem.b, d, problem.layout)
    a, b = (problem.a, problem.sfa), (problem.b, problem.sfb)
    hint = (case.rows // case.groups,) if case.form == "masked" else ()
    return lambda: getattr(library, name)(a, b, d, problem.layout, *hint)


def cublas(kind: str, m: int, n: int, k: int) -> Call:
    """One dense product of that size, into bf16."""
    if kind == "bf16":
        a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        return lambda: a @ b.t()
    a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m - m % 16, n))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def tile_of(case: Case) -> str:
    """The tile that the op picks on the GPU here."""
    target, m = gpu(), case.rows
    if case.form == "k":
        sizes, gradients = {"m": case.n, "n": case.k, "k": case.rows, "g": case.groups}, (DType.F32, False, False, True)
        if case.kind == "bf16":
            spec = bf16_spec(target, sizes, KSplit("counts"), *gradients)
        else:
            spec = fp8_apart(target, sizes, KSplit("counts", 128, True), "m", *gradients).spec
    else:
        own = case.form == "masked"
        groups = masked(case.rows // case.groups) if own else contiguous(False, False, False, None)
        sizes = {"m": CAPACITY if own else m, "n": case.n, "k": case.k, "g": case.groups}
        choices = {"arch": target.family, "card": target.card, **problem_of(groups, sizes)}
        spec = ops.spec_for(f"{case.kind}_gemm_nt", sms=target.sms, **choices)
    return re.sub(r".*_(?=\d+x\d+)|_by_.*", "", spec.name)


def check(what: str, error: float, allowed: float = ROUNDING) -> float:
    """The error, or the end of the run."""
    if not error < allowed:
        raise SystemExit(f"{what}: the result is wrong, worst tile {error:.1e}, {allowed:.1e} are allowed")
    return error


def rows_of_groups(case: Case, flush: Flush, repeats: int) -> dict[str, Any]:
    """A row of the suite: this form, and with padded FP8 rows offsets and MXFP8 outputs of the same ones."""
    problem = Problem.random(case)
    d = problem.output()
    calls: dict[str, Call] = {"": ours(problem, d)}
    row: dict[str, Any] = {**vars(case), "tile": tile_of(case)}
    calls[""]()
    row["worst_tile"] = check(str(case), problem.worst(d))
    if (peer := deepgemm(problem, other := problem.output())) is not None:
        peer()
        check(f"deepgemm {case}", problem.worst(other))
        calls["deepgemm_"] = peer
    if case.form == "contiguous":
        close = Problem.random(case, padded=False)
        out = close.output()
        calls["offsets_"] = ours(close, out, padded=False)
        calls["offsets_"]()
        check(f"offsets {case}", close.worst(out))
        if case.kind == "fp8":
            calls["mxfp8_"] = quantised(problem)
    calls["cublas_"] = cublas(case.kind, case.rows, case.n, case.k)
    return timed(row, calls, flush, repeats)


def quantised(problem: Problem) -> Call:
    """The op into MXFP8, its result checked."""
    a, b, groups = (problem.a, problem.sfa), (problem.b, problem.sfb), range(problem.case.groups)
    data, sf = ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(a, b, None, None, problem.layout)
    wide = data.float() * sf.float().repeat_interleave(32, 1)[:, : problem.case.n]
    worst = max(
        worst_tile(problem.rows(wide, group), each) for group, each in zip(groups, problem.expected(), strict=True)
    )
    check(f"mxfp8 out {problem.case}", worst, QUANTISED)
    return lambda: ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(a, b, data, sf, problem.layout)


def groups_of_k(case: Case, flush: Flush, repeats: int) -> dict[str, Any]:
    """A row of weight gradients, which add to fp32 sums in place."""
    problem = KProblem.random(case)
    name = "k_grouped_fp8_gemm_nt_contiguous" if case.kind == "fp8" else "k_grouped_bf16_gemm_tn_contiguous"

    def call(op: Any, d: torch.Tensor) -> Call:
        return lambda: op(problem.a, problem.b, d, problem.counts, problem.layout, d)

    before = problem.sums()
    d = before.clone()
    calls = {"": call(getattr(ops, name), d)}
    row: dict[str, Any] = {**vars(case), "tile": tile_of(case)}
    calls[""]()
    row["worst_tile"] = check(str(case), problem.worst(d, before))
    try:
        peer = call(getattr(import_module("deep_gemm"), name), other := before.clone())
        peer()
        check(f"deepgemm {case}", problem.worst(other, before))
        calls["deepgemm_"] = peer
    except ImportError:
        pass
    except RuntimeError as error:
        print(f"deepgemm raises for {case}: {str(error).strip().splitlines()[0]}", flush=True)
    calls["cublas_"] = cublas(case.kind, case.n, case.k, case.rows)
    return timed(row, calls, flush, repeats)


def timed(row: dict[str, Any], calls: dict[str, Call], flush: Flush, repeats: int) -> dict[str, Any]:
    """The row with microseconds of each call."""
    found = times(list(calls.values()), flush, repeats)
    return row | {f"{name}us": us for name, us in zip(calls, found, strict=True)}


def bytes_of(row: dict[str, Any]) -> float:
    """What a product of groups of rows has to move: factors once, bf16 outputs once."""
    each = 1 if row["kind"] == "fp8" else 2
    return each * row["k"] * (row["groups"] * row["n"] + row["rows"]) + 2.0 * row["rows"] * row["n"]


def copy_rate(flush: Flush, repeats: int) -> float:
    """GB/s of a copy on the device, bytes read and written."""
    a = torch.randn(1 << 28, device="cuda")
    b = torch.empty_like(a)
    (us,) = times([lambda: b.copy_(a)], flush, repeats)
    return 2 * a.numel() * 4 / us / 1e3


def described() -> dict[str, str]:
    """Which DeepGEMM was in the run, if one was."""
    try:
        return {"deepgemm": str(import_module("deep_gemm").__version__)}
    except ImportError:
        return {}


def line(row: dict[str, Any]) -> str:
    peer = row.get("deepgemm_us", row["published_us"])
    others = "".join(
        f"  {name} x{row[f'{name}_us'] / row['us']:.3f}"
        for name in ("offsets", "mxfp8", "cublas")
        if f"{name}_us" in row
    )
    rate = 2 * row["rows"] * row["n"] * row["k"] / row["us"] / 1e6
    case = (
        f"{row['tile']:14} {row['form']:10} {row['kind']:4} {row['groups']:3} {row['rows']:6} {row['n']:5} {row['k']:5}"
    )
    return (
        f"{case} {row['us']:8.1f} us "
        f"{rate:5.0f} TFLOP/s {bytes_of(row) / row['us'] / 1e3:5.0f} GB/s  x{peer / row['us']:.3f} of DeepGEMM's speed"
        f"{'' if 'deepgemm_us' in row else ' (earlier)'}{others}  err {row['worst_tile']:.1e}"
    )


def families(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of DeepGEMM's time over ours, by what bars are set for."""
    found: dict[str, list[float]] = {}
    for row in rows:
        few = row["form"] == "masked" and row["rows"] < 32 * row["groups"]
        name = f"{row['kind']} {row['form']}{', few rows' if few else ''}"
        found.setdefault(name, []).append(row.get("deepgemm_us", row["published_us"]) / row["us"])
    return {name: math.exp(sum(map(math.log, some)) / len(some)) for name, some in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the file of results; by default that of the card")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--form", choices=["contiguous", "masked", "k"], help="this form alone")
    given = parser.parse_args()
    path = given.json or results_of("grouped", card())
    keep_apart(path, card())
    torch.backends.cuda.matmul.allow_tf32 = False
    flush, rows = Flush("write"), list[dict[str, Any]]()
    rate = copy_rate(flush, given.repeats)
    print(f"copy on the device: {rate:.0f} GB/s", flush=True)
    for case in (*CONTIGUOUS, *MASKED, *GRADIENTS):
        if given.form in (None, case.form):
            measure = groups_of_k if case.form == "k" else rows_of_groups
            rows.append(measure(case, flush, given.repeats))
            print(line(rows[-1]), flush=True)
            write(path, rows, what=WHAT, copy_gb_s=rate, **described())
    for name, mean in families(rows).items():
        print(f"{name}: geomean x{mean:.3f} of DeepGEMM's speed", flush=True)


if __name__ == "__main__":
    main()
