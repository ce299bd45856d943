"""What reductions in the epilogue cost beside the product alone.

python benchmarks/reductions.py --json benchmarks/results/reductions_h100.json
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from environment import card, keep_apart, write

import gemmgen
from gemmgen.ir import Cast, DType, Epilogue, Operand, Reduce, Store
from gemmgen.runtime.timing import Flush, times

SHAPES = tuple((m, n, k) for n, k in ((4096, 7168), (7168, 2048), (24576, 1536)) for m in (128, 1024, 4096, 8192))
SIDES = {"rows": ("sum_of_squares", "n"), "whole": ("amax", "mn"), "columns": ("sum", "m")}


def reducing(function: Any, along: Any) -> Epilogue:
    step = Reduce(function=function, along=along, to="reduced")
    box = step.box("n")
    operands = (
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
        Operand(name="reduced", dtype=DType.F32, box=box, on_device=not box),
    )
    return Epilogue(name=f"{function}_{along}", operands=operands, steps=(step, Cast(to=DType.BF16), Store(to="d")))


def measure(m: int, n: int, k: int, flush: Flush, repeats: int) -> dict[str, Any]:
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    extents = {"n": (m,), "mn": (), "m": (n,)}
    calls = [lambda: gemmgen.ops.bf16_gemm_nt(a, b, d)]
    for function, along in SIDES.values():
        call, reduced = gemmgen.fuse("bf16_gemm_nt", reducing(function, along)), torch.empty(
            extents[along], device="cuda"
        )
        calls.append(lambda call=call, reduced=reduced: call(a, b, d=d, reduced=reduced))
    found = dict(zip(("plain", *SIDES), times(calls, flush, repeats), strict=True))
    ratios = "  ".join(f"{name} x{found[name] / found['plain']:.3f}" for name in SIDES)
    print(f"{m:5} {n:6} {k:5}: plain {found['plain']:7.1f} us; {ratios}", flush=True)
    return {"m": m, "n": n, "k": k, **{f"{name}_us": us for name, us in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    flush = Flush("write")
    rows = [measure(*shape, flush, arguments.repeats) for shape in SHAPES]
    write(arguments.json, rows, what="bf16_gemm_nt with a reduction, medians in us, L2 flushed by a 256 MiB write")


if __name__ == "__main__":
    main()
