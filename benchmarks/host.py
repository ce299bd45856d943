"""Host time of a call, from Python to the driver's return: ours, torch's, and an empty launch as the floor.

    python benchmarks/host.py --json benchmarks/results/host_h100.json

Problems are so small that the GPU is never what limits, which is checked: *device* is the time of the same calls queued
behind a long kernel. 2000 calls back to back between two looks at the clock, all of them in turn, medians of the
rounds. One thread on one core.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gemmgen_ops
import torch
from environment import card, keep_apart, write

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ir import Activation, Bias, Cast, DType, Epilogue, Operand, Store
from gemmgen.ops import hot_call
from gemmgen.ops.tuned.file import CardEntries, Entry, TunedFile
from gemmgen.runtime import targets
from gemmgen.runtime.kernel_text import KernelText
from gemmgen.runtime.launch_frame import LaunchFrame

CALLS = 2000
M, N, K = 8, 64, 128
SHARED_K = 256
"""Of the product whose tiles CTAs share."""
CUDA, BF16 = "cuda", torch.bfloat16
EMPTY = """\
struct alignas(64) Params { unsigned long long words[BYTES / 8]; };
extern "C" __global__ void __launch_bounds__(128) empty(const __grid_constant__ Params p) {}
"""
Call = Callable[[], object]


def floor(param_bytes: int) -> Call:
    """The driver's launch of an empty kernel with a parameter block of this size, and nothing else."""
    target = targets.gpu()
    text = KernelText(EMPTY.replace("BYTES", str(param_bytes)), "empty", target.family, threads=128, shared_bytes=0)
    frame = target.load(text).frame(programmatic=False)
    frame.fill((1, 1, 1), bytes(param_bytes))
    return checked(frame)


def own_floor(name: str) -> Call:
    """The driver's launch of the kernel that a function repeated last, and nothing else.

    It writes where the first call of its kind wrote: to the d that was given.
    """
    (calls,) = [each for each in hot_call.remembering() if each.name == name]
    assert calls.newest is not None
    return checked(calls.newest.new_frame())


def checked(frame: LaunchFrame) -> Call:
    """The frame's launch, which a first one has shown to work."""
    (status,) = frame.launch()
    assert not status, status
    return lambda: frame.launch()  # keeps the frame


def fused() -> Any:
    """relu(a . b^T + bias) as an author writes it."""
    operands = (Operand(name="bias", dtype=DType.F32, box=("n",)), Operand(name="d", dtype=DType.BF16, box=("m", "n")))
    steps = (Bias(vector="bias"), Activation(function="relu"), Cast(to=DType.BF16), Store(to="d"))
    return gemmgen.fuse("bf16_gemm_nt", Epilogue(name="relu", operands=operands, steps=steps))


def take_shared_tiles() -> None:
    """Let products of SHARED_K take tiles whose CTAs share K blocks: a call allocates where their sums meet."""
    target = targets.gpu()
    kernel = f"sm90_fp8_gemm_nt_bf16_{next(each.label for each in catalog.FP8_SHAPES if each.share)}"
    entry = Entry(op="fp8_gemm_nt", m=M, n=N, k=SHARED_K, kernel=kernel, us=1, rule=kernel, rule_us=1)
    card = CardEntries(card=target.card, sms=target.sms, arch=target.family, entries=(entry,))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shared_tiles.json"
        file.write_text(TunedFile().with_entries(card).text())
        gemmgen.use_tuned(file)
    taken = ops.spec_for("fp8_gemm_nt", M, N, SHARED_K, target.sms, card=target.card).name
    assert taken == kernel, taken


def calls() -> dict[str, Call]:
    """Every call by what it is called in the table."""
    take_shared_tiles()
    a, b = torch.randn(M, K, device=CUDA).to(BF16), torch.randn(N, K, device=CUDA).to(BF16)
    d, bias, one = torch.empty(M, N, device=CUDA, dtype=BF16), torch.randn(N, device=CUDA), torch.ones((), device=CUDA)
    x, w = ops.per_token_cast_to_fp8(a.float(), use_ue8m0=False), ops.per_block_cast_to_fp8(b.float(), use_ue8m0=False)
    x16, gap = torch.cat([x[0], x[0]]), torch.empty(M, 2 * N, device=CUDA, dtype=BF16)
    d8, sf = torch.empty(M, N, device=CUDA, dtype=torch.float8_e4m3fn), torch.empty(M, 1, device=CUDA)
    long, thin = torch.randn(M, 512, device=CUDA).to(BF16), torch.randn(24, 512, device=CUDA)
    sums, squares, relu = torch.empty(M, 24, device=CUDA), torch.empty(M, device=CUDA), fused()
    bt, wt = b.t(), w[0].t()
    deep, deep_w = torch.randn(M, SHARED_K, device=CUDA), torch.randn(N, SHARED_K, device=CUDA)
    (deep8, scales), y = ops.per_token_cast_to_fp8(deep, use_ue8m0=False), ops.per_block_cast_to_fp8(deep_w, False)
    deep_a = deep8, ops.get_mn_major_tma_aligned_tensor(scales)
    finish = {"bias": bias, "activation": "relu"}
    return {
        "torch.mm": partial(torch.mm, a, bt),
        "torch.mm, out given": partial(torch.mm, a, bt, out=d),
        "torch._scaled_mm": partial(torch._scaled_mm, x16, wt, one, one, out_dtype=BF16),
        "ops.bf16_gemm_nt, d given": partial(ops.bf16_gemm_nt, a, b, d),
        "ops.bf16_gemm_nt": partial(ops.bf16_gemm_nt, a, b),
        "ops.bf16_gemm_nn, d given": partial(ops.bf16_gemm_nn, a, bt, d),
        "ops.fp8_gemm_nt, tiles that CTAs share, d given": partial(ops.fp8_gemm_nt, deep_a, y, d),
        "ops.fp8_gemm_nt, d given": partial(ops.fp8_gemm_nt, x, w, d),
        "ops.fp8_gemm_nt": partial(ops.fp8_gemm_nt, x, w),
        "gemmgen_ops.bf16_gemm_nt, d given": partial(gemmgen_ops.bf16_gemm_nt, a, b, d),
        "gemmgen_ops.fp8_gemm_nt, d given": partial(gemmgen_ops.fp8_gemm_nt, x, w, d),
        "ops.bf16_gemm_nt, bias and relu, d given": partial(ops.bf16_gemm_nt, a, b, d, **finish),
        "ops.fp8_gemm_nt_fp8out, outputs given": partial(ops.fp8_gemm_nt_fp8out, x, w, d8, sf),
        "ops.fp8_gemm_nt_skip_head_mid": partial(ops.fp8_gemm_nt_skip_head_mid, x, w, gap, (16, 32, 16)),
        "ops.tf32_hc_prenorm_gemm": partial(ops.tf32_hc_prenorm_gemm, long, thin, sums, squares),
        "gemmgen.fuse(...), d given": partial(relu, a, b, bias=bias, d=d),
    }


def host_us(call: Call, count: int) -> float:
    """Microseconds of one of so many calls back to back, the queue empty before."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / count * 1e6


def device_us(call: Call, count: int = 400) -> float:
    """Microseconds of one call on the GPU, which starts when all are queued."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(40_000_000)
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end) * 1e3 / count)


def measure(table: dict[str, Call], rounds: int) -> list[dict[str, Any]]:
    for call in table.values():
        for _ in range(20):
            call()
    found: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(rounds):
        for name, call in table.items():
            found[name].append(host_us(call, CALLS))
    rows = []
    for name, call in table.items():
        row = {"call": name, "us": median(found[name]), "least_us": min(found[name]), "device_us": device_us(call)}
        limited = "  THE GPU LIMITS" if row["device_us"] > 0.9 * row["us"] else ""
        print(f"{row['us']:6.2f} us (least {row['least_us']:.2f}), device {row['device_us']:.2f}  {name}{limited}")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = calls()
    for call in table.values():
        call(), call()
    floors = {"launch of an empty kernel": floor(576)}
    for name in ("bf16_gemm_nt", "fp8_gemm_nt"):
        floors[f"launch of the kernel of {name}"] = own_floor(name)
    rows = measure({**floors, **table}, arguments.rounds)
    what = f"host time of a call in us, {CALLS} back to back, medians of {arguments.rounds} rounds, m, n, k {M, N, K}"
    write(arguments.json, rows, what=what)


if __name__ == "__main__":
    main()
