"""``tf32_hc_prenorm_gemm`` through the public op, beside torch and DeepGEMM.

    python benchmarks/prenorm.py --json benchmarks/results/prenorm_h100.json [--forms]

torch: a product of fp32 matrices with tf32 allowed, and squares summed, of an A that is fp32 already. DeepGEMM is timed
in the same run where it is installed; else its times are those of the table below, which are an H100's.
``--forms`` times other tiles and numbers of splits of the same problem, to see whether the choice is the best one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from environment import card, keep_apart, write

import gemmgen
from gemmgen import ops
from gemmgen.catalog import PrenormShape, prenorm_forms, tf32_hc_prenorm_gemm
from gemmgen.ir import Arch
from gemmgen.ops import dispatch
from gemmgen.runtime.timing import Flush, times

DEEPGEMM = {
    (13, 24, 28672): (107.2, 12.0),
    (13, 24, 7168): (30.7, 6.8),
    (137, 24, 28672): (107.5, 12.8),
    (137, 24, 7168): (30.8, 7.6),
    (4096, 24, 28672): (114.5, 99.5),
    (4096, 24, 7168): (34.8, 39.3),
    (8192, 24, 28672): (178.8, 355.0),
    (8192, 24, 7168): (77.2, 66.3),
}
"""DeepGEMM's microseconds of (m, n, k) without splits and with 16: main, commit 54e2261, an H100 80GB HBM3, CUDA
events, L2 flushed by a write."""
SHIPPED = prenorm_forms(Arch.SM90, 24)
SHAPES = [
    SHIPPED.sole,
    SHIPPED.paired,
    SHIPPED.tall,
    PrenormShape(64, 24),
    PrenormShape(64, 24, ctas_per_sm=2),
    PrenormShape(64, 24, ctas_per_sm=3),
    PrenormShape(64, 24, groups=2, ctas_per_sm=2, share_k=True),
    PrenormShape(128, 24, groups=2),
    PrenormShape(64, 24, k=128),
    PrenormShape(128, 24, groups=2, k=128, ahead=False),
    PrenormShape(256, 24, groups=4, ahead=False),
]
SPLITS = [1, 2, 3, 4, 6, 8, 11, 16, 22, 33, 44, 66, 88, 132]

Call = Callable[[], object]


def problem(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    return a, torch.randn(n, k, device="cuda")


def outputs(m: int, n: int, splits: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (m, n) if splits is None else (splits, m, n)
    return torch.full(shape, torch.nan, device="cuda"), torch.full(shape[:-1], torch.nan, device="cuda")


def ours(a: torch.Tensor, b: torch.Tensor, splits: int | None) -> tuple[Call, float]:
    """The call, and the largest error of its products relative to their size."""
    d, sqr_sum = outputs(a.shape[0], b.shape[0], splits)
    ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, splits)
    found, exact = (d if splits is None else d.sum(0)).double(), a.double() @ b.double().T
    squares = (sqr_sum if splits is None else sqr_sum.sum(0)).double()
    error = max(
        ((found - exact).norm() / exact.norm()).item(),
        (squares / a.double().square().sum(1) - 1).abs().max().item(),
    )
    return lambda: ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, splits), error


def deepgemms(a: torch.Tensor, b: torch.Tensor, splits: int | None) -> Call | None:
    """DeepGEMM's op on the same factors, where it is installed."""
    try:
        library = import_module("deep_gemm")
    except ImportError:
        return None
    d, sqr_sum = outputs(a.shape[0], b.shape[0], splits)
    return lambda: library.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, num_splits=splits)


def torchs(a: torch.Tensor, b: torch.Tensor) -> Call:
    wide = a.float()
    return lambda: (wide @ b.T, wide.square().sum(-1))


@contextmanager
def splits_of(count: int) -> Iterator[None]:
    """Launches inside use so many splits of k."""
    with patch.object(dispatch, "with_splits", lambda plan, sizes, sms: {**sizes, "s": count}):
        yield


def form(a: torch.Tensor, b: torch.Tensor, shape: PrenormShape, splits: int) -> Call:
    """One tile with one number of splits that meet; its launch is prepared here and then remembered."""
    spec = tf32_hc_prenorm_gemm(shape)
    op = gemmgen.op(spec.replace(name=f"{spec.name}_s{splits}"))
    d, sqr_sum = outputs(a.shape[0], b.shape[0], None)
    with splits_of(splits):
        op(a=a, b=b, d=d, sqr_sum=sqr_sum)
    return lambda: op(a=a, b=b, d=d, sqr_sum=sqr_sum)


def sliced(a: torch.Tensor, b: torch.Tensor, shape: PrenormShape, splits: int) -> Call:
    """One tile with a slice for each split."""
    op = gemmgen.op(tf32_hc_prenorm_gemm(shape, True))
    d, sqr_sum = outputs(a.shape[0], b.shape[0], splits)
    return lambda: op(a=a, b=b, d=d, sqr_sum=sqr_sum)


def compare_forms(sizes: tuple[int, int, int], repeats: int) -> list[dict[str, Any]]:
    """Every tile: with as many splits as make up to four waves of it, and sliced by 16."""
    m, n, k = sizes
    a, b = problem(m, n, k)
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        tiles, slots = -(-m // shape.m), 132 * shape.ctas_per_sm
        most = min(4 * slots // tiles, k // shape.k)
        counts = [count for count in SPLITS if count <= max(1, most)]
        calls = [form(a, b, shape, count) for count in counts]
        found = times([*calls, sliced(a, b, shape, 16)], Flush("write"), repeats)
        best = min(zip(found, counts, strict=False))
        row = {"m": m, "n": n, "k": k, "tile": shape.label, "us": dict(zip(map(str, counts), found, strict=False))}
        row["sliced_16_us"] = found[-1]
        rows.append(row)
        every = "  ".join(f"{count}:{us:.1f}" for count, us in zip(counts, found, strict=False))
        print(
            f"  {shape.label:14} best {best[0]:6.1f} us at {best[1]} splits; 16 slices {found[-1]:.1f} us; {every}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--forms", action="store_true")
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    torch.backends.cuda.matmul.allow_tf32 = True
    flush = Flush("write")
    rows: list[dict[str, Any]] = []
    forms: list[dict[str, Any]] = []
    for (m, n, k), published in DEEPGEMM.items():
        a, b = problem(m, n, k)
        plain = torchs(a, b)
        for splits, theirs in zip((None, 16), published, strict=True):
            call, error = ours(a, b, splits)
            peer = deepgemms(a, b, splits)
            us, torch_us, *beside = times([call, plain, *([peer] if peer else [])], flush, arguments.repeats)
            theirs = beside[0] if beside else theirs
            bytes_ = 2 * m * k + 4 * n * k + 4 * (splits or 1) * m * (n + 1)
            rows.append(
                {"m": m, "n": n, "k": k, "splits": splits, "us": us, "torch_us": torch_us, "deepgemm_us": theirs}
                | {"gb_s": bytes_ / us / 1e3, "error": error, "same_run": bool(beside)}
            )
            print(
                f"{m:5} {n} {k:6} splits {splits or '-':>2}: {us:7.1f} us  {bytes_ / us / 1e3:5.0f} GB/s  "
                f"x{us / theirs:.3f} of DeepGEMM's {theirs:.1f}  x{us / torch_us:.3f} of torch's  err {error:.1e}",
                flush=True,
            )
        if arguments.forms:
            forms += compare_forms((m, n, k), arguments.repeats)
        what = "prenorm GEMM, medians in us, L2 flushed by a 256 MiB write before each launch"
        write(arguments.json, rows, what=what, forms=forms)


if __name__ == "__main__":
    main()
