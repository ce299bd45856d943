"""Weight gradients, fp32 sums with a scale for each row of either factor, beside the product that inference has.

    python benchmarks/gradients.py --json benchmarks/results/gradients_h100.json

``fp8_gemm_nt`` with scales of 1x128 for both factors, added to fp32 sums where they lie, over the same op of the same
size with 128x128 scales of B, into bf16. Results are compared with fp32 products first.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from environment import card, keep_apart, results_of, write
from inputs import mn_major, quantise_blocks, quantise_rows, worst_tile

import gemmgen.ops as ops
from gemmgen.runtime.timing import Flush, times

SIZES = [
    (7168, 2048, 8192),
    (2048, 7168, 8192),
    (4096, 7168, 8192),
    (7168, 4096, 4096),
    (2112, 7168, 8192),
    (24576, 1536, 4096),
]
"""m and n of the weights, k tokens."""
ROUNDING = 6e-3
WHAT = "weight gradients over products with 128x128 scales, medians in us, L2 flushed by a 256 MiB write"


def measure(m: int, n: int, k: int, flush: Flush, repeats: int) -> dict[str, Any]:
    """One row: both products of a size."""
    (a, sfa), a_value = quantise_rows(torch.randn(m, k, device="cuda"))
    wide = torch.randn(n, k, device="cuda")
    (b, sfb), b_value = quantise_rows(wide)
    (c, sfc), c_value = quantise_blocks(wide)
    before = torch.randn(m, n, device="cuda")
    d, e = before.clone(), torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
    calls = [
        lambda: ops.fp8_gemm_nt((a, mn_sfa), (b, mn_sfb), d, c=d),
        lambda: ops.fp8_gemm_nt((a, mn_sfa), (c, sfc), e),
    ]
    mn_sfa, mn_sfb = mn_major(sfa), mn_major(sfb)
    for call in calls:
        call()
    error = max(worst_tile(d, before + a_value @ b_value.t()), worst_tile(e, a_value @ c_value.t()))
    if not error < ROUNDING:
        raise SystemExit(f"m={m} n={n} k={k}: the result is wrong, worst tile {error:.1e}")
    gradient, plain = times(calls, flush, repeats)
    return {"m": m, "n": n, "k": k, "us": gradient, "plain_us": plain, "worst_tile": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="the file of results; by default that of the card")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    path = given.json or results_of("gradients", card())
    keep_apart(path, card())
    torch.backends.cuda.matmul.allow_tf32 = False
    flush, rows = Flush("write"), list[dict[str, Any]]()
    for size in SIZES:
        rows.append(measure(*size, flush, given.repeats))
        row = rows[-1]
        print(f"{size} {row['us']:8.1f} us, x{row['us'] / row['plain_us']:.3f} of the plain product's time", flush=True)
        write(path, rows, what=WHAT)


if __name__ == "__main__":
    main()
