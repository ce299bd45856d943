"""Products with an epilogue behind them, beside the product alone and beside product and quantiser compiled by torch.

    python benchmarks/fused.py --json benchmarks/results/fused_h100.json

*mxfp8*: fp8_gemm_nt_mxfp8out against fp8_gemm_nt into bf16 of the same shape, L2 flushed. *chain*: against
``torch.compile(fullgraph=True)`` of fp8_gemm_nt and the MXFP8 quantiser in torch, both called from Python one after the
other without a flush, and both replayed as CUDA graphs. *bias + activation*, *swiglu*: against the product alone; a
bias is fp32 where it is not said to be bf16.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from environment import card, keep_apart, write

from gemmgen import ops
from gemmgen.runtime.timing import Flush, times

ROWS = (128, 1024, 4096, 8192)
COLUMNS = ((4096, 7168), (7168, 2048), (24576, 1536))
Call = Callable[[], object]


def mxfp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantiser as one writes it in torch: powers of two for 32 columns, from what the product gives."""
    blocks = x.float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1).clamp_min(1e-4)
    exponent = torch.ceil(torch.log2(amax / 448.0))
    data = (blocks * torch.exp2(-exponent).unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn)
    return data, (exponent + 127).to(torch.uint8)


def factors(m: int, n: int, k: int) -> tuple[Any, Any]:
    a = ops.per_token_cast_to_fp8(torch.randn(m, k, device="cuda"), use_ue8m0=False)
    b = ops.per_block_cast_to_fp8(torch.randn(n, k, device="cuda"), use_ue8m0=False)
    return (a[0], ops.get_mn_major_tma_aligned_tensor(a[1])), b


def replayed(call: Call) -> Call:
    """The call captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def throughput(calls: list[Call], repeats: int) -> list[float]:
    """Microseconds a call, ten in a row between two events, sides in turn; medians."""
    found: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for index, call in enumerate(calls):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(10):
                call()
            end.record()
            torch.cuda.synchronize()
            found[index].append(start.elapsed_time(end) * 100)
    return [sorted(each)[len(each) // 2] for each in found]


def measure(m: int, n: int, k: int, flush: Flush, repeats: int) -> dict[str, Any]:
    a, b = factors(m, n, k)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    d_fp8 = torch.empty(m, n, device="cuda", dtype=torch.float8_e4m3fn)
    d_sf = torch.empty(m, n // 32, device="cuda", dtype=torch.float8_e8m0fnu)
    bias = torch.randn(n, device="cuda")
    narrow, gated = bias.bfloat16(), torch.empty(m, n // 2, device="cuda", dtype=torch.bfloat16)

    def two(a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return mxfp8(ops.fp8_gemm_nt(a, b))

    torch.compiler.reset()
    compiled = torch.compile(two, fullgraph=True, dynamic=False)
    calls: dict[str, Call] = {
        "bf16": lambda: ops.fp8_gemm_nt(a, b, d),
        "mxfp8": lambda: ops.fp8_gemm_nt_mxfp8out(a, b, d_fp8, d_sf),
        "fp8": lambda: ops.fp8_gemm_nt_fp8out(a, b, d_fp8),
        "bias": lambda: ops.fp8_gemm_nt(a, b, d, bias=bias),
        "bias_relu": lambda: ops.fp8_gemm_nt(a, b, d, bias=bias, activation="relu"),
        "bf16_bias_relu": lambda: ops.fp8_gemm_nt(a, b, d, bias=narrow, activation="relu"),
        "bias_silu": lambda: ops.fp8_gemm_nt(a, b, d, bias=bias, activation="silu"),
        "bias_gelu": lambda: ops.fp8_gemm_nt(a, b, d, bias=bias, activation="gelu"),
        "swiglu": lambda: ops.fp8_gemm_nt(a, b, gated, gate="interleaved"),
    }
    row: dict[str, Any] = {"m": m, "n": n, "k": k}
    row |= {f"{name}_us": us for name, us in zip(calls, times(list(calls.values()), flush, repeats), strict=True)}
    pair: list[Call] = [calls["mxfp8"], lambda: compiled(a, b)]
    row["chain_us"], row["chain_compiled_us"] = throughput(pair, repeats)
    row["graph_us"], row["graph_compiled_us"] = throughput([replayed(call) for call in pair], repeats)
    print(
        f"{m:5} {n:6} {k:5}: bf16 {row['bf16_us']:7.1f} us; "
        + "  ".join(f"{name} x{row[f'{name}_us'] / row['bf16_us']:.3f}" for name in list(calls)[1:])
        + f"; compiled / fused {row['chain_compiled_us'] / row['chain_us']:.2f} called, "
        f"{row['graph_compiled_us'] / row['graph_us']:.2f} replayed",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    flush = Flush("write")
    rows = [measure(m, n, k, flush, arguments.repeats) for n, k in COLUMNS for m in ROWS]
    for over, under in (("chain_compiled_us", "chain_us"), ("graph_compiled_us", "graph_us"), ("mxfp8_us", "bf16_us")):
        mean = math.exp(sum(math.log(row[over] / row[under]) for row in rows) / len(rows))
        print(f"{over} / {under}: geometric mean {mean:.3f}")
    write(arguments.json, rows, what="fp8_gemm_nt with epilogues, medians in us, L2 flushed by a 256 MiB write")


if __name__ == "__main__":
    main()
