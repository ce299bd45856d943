"""Dense FP8 and BF16 GEMM through the public ops, beside cuBLAS in the same run.

    python benchmarks/dense.py --json benchmarks/results/dense_h100.json

cuBLAS FP8 is ``torch._scaled_mm`` with one scale a tensor and fast accumulation: it does less work than block scaling.
Inputs are normal, scales are those of the quantiser, A's scales already m-contiguous, outputs poisoned and checked.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from environment import write
from inputs import mn_major, quantise_blocks, quantise_rows, worst_tile

import gemmgen.ops as ops
from gemmgen.runtime.timing import Flush, times

SIZES_NK = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
SIZES_M = [64, 128, 4096, 8192]


def tile_of(operator: str, m: int, n: int, k: int) -> str:
    """The tile in the name of the kernel that the op picks."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    return ops.spec_for(operator, m, n, k, sms).name.split("_bf16_")[-1]


def host_us(call: Callable[[], object], calls: int = 200) -> float:
    """Microseconds from Python to launch, queue never full."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / calls * 1e6


def fp8(m: int, n: int, k: int) -> tuple[Callable[[], object], Callable[[], object], float, str]:
    (a, sfa), a_value = quantise_rows(torch.randn(m, k, device="cuda"))
    (b, sfb), b_value = quantise_blocks(torch.randn(n, k, device="cuda"))
    sfa, one = mn_major(sfa), torch.ones((), device="cuda")
    d = torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16)
    ops.fp8_gemm_nt((a, sfa), (b, sfb), d)
    error = worst_tile(d, a_value @ b_value.t())
    label = tile_of("fp8_gemm_nt", m, n, k)
    return (
        lambda: ops.fp8_gemm_nt((a, sfa), (b, sfb), d),
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
        error,
        label,
    )


def bf16(m: int, n: int, k: int) -> tuple[Callable[[], object], Callable[[], object], float, str]:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    d = torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16)
    ops.bf16_gemm_nt(a, b, d)
    error = worst_tile(d, a.float() @ b.float().t())
    label = tile_of("bf16_gemm_nt", m, n, k)
    return lambda: ops.bf16_gemm_nt(a, b, d), lambda: torch.mm(a, b.t()), error, label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    flushes = [Flush("write"), Flush("read")]
    rows: list[dict[str, Any]] = []
    for kind, make in (("fp8", fp8), ("bf16", bf16)):
        for m in SIZES_M:
            for n, k in SIZES_NK:
                ours, cublas, error, label = make(m, n, k)
                row: dict[str, Any] = {"kind": kind, "m": m, "n": n, "k": k, "tile": label, "worst_tile": error}
                for flush in flushes:
                    repeats = arguments.repeats if m < 4096 else max(7, arguments.repeats // 2)
                    row[f"us_{flush.kind}"], row[f"cublas_us_{flush.kind}"] = times([ours, cublas], flush, repeats)
                if (m, n) == (64, 576):
                    row["host_us"] = host_us(ours)
                    print(f"{kind} host time of a call: {row['host_us']:.1f} us", flush=True)
                rows.append(row)
                ratio = row["us_write"] / row["cublas_us_write"]
                print(
                    f"{kind} {m:5} {n:5} {k:5} {label:12} {row['us_write']:8.1f} us  "
                    f"x{ratio:.3f} of cuBLAS  err {error:.1e}",
                    flush=True,
                )
                write(
                    arguments.json,
                    rows,
                    what="dense GEMM, medians in us, L2 flushed by a 256 MiB write or read before each launch",
                )
            ratios = [r["us_write"] / r["cublas_us_write"] for r in rows if r["kind"] == kind and r["m"] == m]
            print(
                f"{kind} m={m}: geomean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} of cuBLAS's time",
                flush=True,
            )


if __name__ == "__main__":
    main()
