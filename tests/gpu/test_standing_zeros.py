"""Counters that launches of a stream share on the GPU: products whose CTAs meet, in turn with reductions.

Each result is compared bit for bit with the first one, on one stream, on several at once, and in graphs that are
replayed beside calls on the stream they were captured on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gemmgen
from gemmgen import ops
from gemmgen.catalog import Shape, bf16_gemm
from gemmgen.ir import Cast, DType, Epilogue, Operand, Reduce, Store
from gemmgen.runtime.targets import gpu

COUNT = 300
Call = Callable[[], tuple[torch.Tensor, ...]]


def shared() -> Call:
    """Several CTAs a tile."""
    op = gemmgen.op(bf16_gemm("nt", Shape(64, 96, groups=1, unroll=1, share=True)))
    a, b = (torch.randn(rows, 4096, device="cuda").bfloat16() for rows in (130, 504))
    return lambda: (op(a=a, b=b),)


def reduced() -> Call:
    operands = (
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
        Operand(name="rows", dtype=DType.F32, box=("m",)),
        Operand(name="largest", dtype=DType.F32, box=(), on_device=True),
    )
    steps = (
        Reduce(function="sum", along="n", to="rows"),
        Reduce(function="amax", along="mn", to="largest"),
        Cast(to=DType.BF16),
        Store(to="d"),
    )
    call = gemmgen.fuse("bf16_gemm_nt", Epilogue(name="reduced", operands=operands, steps=steps))
    a, b = (torch.randn(rows, 512, device="cuda").bfloat16() for rows in (700, 904))
    return lambda: tuple(call(a, b))


def prenorm() -> Call:
    a, b = torch.randn(200, 7168, device="cuda").bfloat16(), torch.randn(24, 7168, device="cuda")

    def run() -> tuple[torch.Tensor, ...]:
        d, s = torch.empty(200, 24, device="cuda"), torch.empty(200, device="cuda")
        ops.tf32_hc_prenorm_gemm(a, b, d, s)
        return d, s

    return run


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    made = [shared(), reduced(), prenorm()]
    for call in made:
        call(), call()
    return made


def same(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


def test_launches_behind_one_another(calls: list[Call]) -> None:
    wanted = [call() for call in calls]
    for _ in range(COUNT):
        assert all(same(call(), right) for call, right in zip(calls, wanted, strict=True))


def test_launches_of_several_streams(calls: list[Call]) -> None:
    wanted, streams = [call() for call in calls], [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    found = []
    for step in range(COUNT):
        for place, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append(((place + step) % len(calls), calls[(place + step) % len(calls)]()))
        if step % 50 == 49:
            torch.cuda.synchronize()
            assert all(same(each, wanted[place]) for place, each in found)
            found.clear()
    zeros = set()
    for stream in streams:
        with torch.cuda.stream(stream):
            zeros.add(gpu().standing_zeros(1024))
    assert 0 not in zeros and len(zeros) == len(streams)


def test_a_captured_graph_has_its_own(calls: list[Call]) -> None:
    wanted, stream, graph = [call() for call in calls], torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        own = {gpu().standing_zeros(1024) for _ in range(3)}
        captured = [call() for call in calls]
    with torch.cuda.stream(stream):
        assert len(own) == 3 and not own & {0, gpu().standing_zeros(1024)}
    other = torch.cuda.Stream()
    for _ in range(COUNT // 10):
        with torch.cuda.stream(other):
            graph.replay()
        with torch.cuda.stream(stream):
            eager = [call() for call in calls]
        torch.cuda.synchronize()
        assert all(map(same, captured, wanted)) and all(map(same, eager, wanted))
