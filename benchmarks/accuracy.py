"""Accuracy on a GPU over the sizes that serve today: worst tile error and calc_diff, with and without C.

    python benchmarks/accuracy.py --json benchmarks/results/accuracy_h100.json

Each output is poisoned with NaN and surrounded by sentinel rows; errors are against an fp32 product of the dequantised
inputs, and for FP8 also against the product of the inputs before quantisation.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from environment import card, keep_apart, write
from inputs import calc_diff, mn_major, quantise_blocks, quantise_rows, worst_tile

import gemmgen.ops as ops

SIZES_M = [1, 7, 64, 65, 128, 129, 4096]
SIZES_NK = [
    (2112, 7168),
    (576, 7168),
    (24576, 1536),
    (32768, 512),
    (7168, 16384),
    (4096, 7168),
    (7168, 2048),
    (256, 576),
    (8, 128),
]


def one(kind: str, m: int, n: int, k: int, with_c: bool) -> dict[str, Any]:
    x, y = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    c = torch.randn(m, n, device="cuda").bfloat16() * math.sqrt(k) if with_c else None
    frame = torch.full((m + 2, n), math.nan, device="cuda", dtype=torch.bfloat16)
    d = frame[1 : m + 1]
    added = 0.0 if c is None else c.float()
    row: dict[str, Any] = {"kind": kind, "m": m, "n": n, "k": k, "c": with_c}
    if kind == "fp8":
        (a, sfa), a_value = quantise_rows(x)
        (b, sfb), b_value = quantise_blocks(y)
        ops.fp8_gemm_nt((a, mn_major(sfa) if m % 2 else sfa), (b, sfb), d, c)
        row["calc_diff_unquantised"] = calc_diff(d, x @ y.t() + added)
        reference = a_value @ b_value.t() + added
    else:
        a, b = x.bfloat16(), y.bfloat16()
        ops.bf16_gemm_nt(a, b, d, c)
        reference = a.float() @ b.float().t() + added
    untouched = bool(frame[0].isnan().all() and frame[-1].isnan().all())
    return row | {
        "worst_tile": worst_tile(d, reference),
        "calc_diff": calc_diff(d, reference),
        "sentinels_intact": untouched,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = [
        one(kind, m, n, k, with_c)
        for kind in ("fp8", "bf16")
        for with_c in (False, True)
        for n, k in SIZES_NK
        for m in SIZES_M
    ]
    write(arguments.json, rows, what="bf16 outputs; errors against fp32 products of the dequantised inputs")
    for kind in ("fp8", "bf16"):
        some = [row for row in rows if row["kind"] == kind]
        worst = max(some, key=lambda row: row["worst_tile"])
        print(kind, len(some), "cases, worst tile", f"{worst['worst_tile']:.2e}", worst, flush=True)
        print(kind, "largest calc_diff", f"{max(row['calc_diff'] for row in some):.2e}", flush=True)
        if kind == "fp8":
            unquantised = max(row["calc_diff_unquantised"] for row in some)
            print(kind, "largest calc_diff against the unquantised product", f"{unquantised:.2e}", flush=True)
    bad = [row for row in rows if not row["worst_tile"] < 4e-3 or not row["sentinels_intact"]]
    print("bad:", len(bad), bad[:5])
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
