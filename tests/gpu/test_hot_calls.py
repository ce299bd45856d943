"""Repeated calls on a GPU: the bits of the long way wherever tensors move, on any stream, in graphs and threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import bf16_problem, fp8_problem, random_fp8_problem, whole_numbers
from reference import mn_major

from gemmgen import ops
from gemmgen.ops import copies
from gemmgen.ops.dispatch import Dispatcher
from gemmgen.runtime import nvrtc
from gemmgen.runtime.errors import CaptureError

CUDA = "cuda"
BF16 = torch.bfloat16


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Calls that reach a dispatcher, which repeated ones do not."""
    seen: list[Any] = []
    call = Dispatcher.__call__

    def counted(self: Dispatcher, *arguments: Any) -> None:
        seen.append(self.names)
        call(self, *arguments)

    monkeypatch.setattr(Dispatcher, "__call__", counted)
    yield seen


def placed(generator: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in other memory: at another start, with another pitch, rows first as before."""
    step = 16 // tensor.element_size()
    rows, columns = tensor.shape
    pitch = -(-columns // step) * step + step * generator.choice([0, 0, 3])
    start = step * generator.choice([0, 0, 1, 2])
    buffer = torch.empty(rows * pitch + start, dtype=tensor.dtype, device=CUDA)
    view = buffer.as_strided((rows, columns), (pitch, 1), start)
    return view.copy_(tensor)


def drawn(generator: random.Random) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    m, n, k = generator.choice([1, 17, 130]), generator.choice([64, 136]), generator.choice([128, 320])
    if generator.random() < 0.5:
        a, b = (placed(generator, each) for each in bf16_problem(m, n, k, CUDA))
        layout = generator.choice(["nt", "nn"])
        named = {"bias": whole_numbers(1, n, BF16, CUDA)[0]} if layout == "nt" and generator.random() < 0.5 else {}
        return getattr(ops, f"bf16_gemm_{layout}"), (a, b.T.contiguous() if layout == "nn" else b), named
    p = fp8_problem(m, n, k, generator.choice([1, 128]), CUDA)
    sfa = mn_major(p.sfa) if generator.random() < 0.5 else placed(generator, p.sfa)
    named = {"c": whole_numbers(m, n, BF16, CUDA)} if generator.random() < 0.5 else {}
    return ops.fp8_gemm_nt, ((placed(generator, p.a), sfa), (placed(generator, p.b), p.sfb)), named


def test_bits_of_the_long_way_wherever_tensors_lie(long_ways: list[Any]) -> None:
    order, hot = random.Random(5), 0
    for _ in range(300):
        generator = random.Random(order.randrange(80))
        function, arguments, named = drawn(generator)
        expected = function.__wrapped__(*arguments, **named)
        if generator.random() < 0.5:
            named["d"] = placed(generator, torch.full_like(expected, torch.nan))
        long_ways.clear()
        found = function(*arguments, **named)
        hot += not long_ways
        assert torch.equal(found, expected), (function.__name__, named.keys())
    assert hot > 150


def test_nothing_but_the_output_is_allocated_and_nothing_waits(long_ways: list[Any]) -> None:
    p = fp8_problem(65, 576, 1152, device=CUDA)
    d = torch.empty(65, 576, dtype=BF16, device=CUDA)
    for _ in range(2):
        ops.fp8_gemm_nt(*p.pairs, d), ops.fp8_gemm_nt(*p.pairs)
    torch.cuda.synchronize()
    long_ways.clear()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(200_000_000)
    ops.fp8_gemm_nt(*p.pairs, d)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    other = ops.fp8_gemm_nt(*p.pairs)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + 1
    assert not torch.cuda.current_stream().query() and not long_ways
    torch.cuda.synchronize()
    assert torch.equal(other, d)


def test_a_captured_hot_call_replays_with_new_contents(long_ways: list[Any]) -> None:
    a, b = bf16_problem(65, 136, 128, CUDA)
    for _ in range(2):
        ops.bf16_gemm_nt(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    long_ways.clear()
    with torch.cuda.graph(graph):
        d = ops.bf16_gemm_nt(a, b)
    assert not long_ways
    for factor in (1.0, 2.0):
        a.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(d, ops.bf16_gemm_nt(a.clone(), b))


@pytest.mark.parametrize("columns", [128, 1])
def test_scales_that_are_turned_first(long_ways: list[Any], columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of scales that lie along m from the start, also when repeated, and in a graph with other scales."""
    turned, copy = list[torch.Size](), copies.turned
    monkeypatch.setattr(copies, "turned", lambda scales: (turned.append(scales.shape), copy(scales))[1])
    m, n, k = 4096, 1088, 4224
    p = random_fp8_problem(m, n, k, columns, CUDA)

    def along_m() -> torch.Tensor:
        sfb = mn_major(p.sfb) if columns == 1 else p.sfb
        return ops.fp8_gemm_nt((p.a, mn_major(p.sfa)), (p.b, sfb), out_dtype=torch.float32)

    def as_they_lie() -> torch.Tensor:
        return ops.fp8_gemm_nt(*p.pairs, out_dtype=torch.float32)

    for _ in range(2):
        p.sfa.mul_(1.5)
        assert torch.equal(as_they_lie(), along_m())
    long_ways.clear()
    turned.clear()
    assert torch.equal(as_they_lie(), along_m()) and not long_ways
    assert turned == [p.sfa.shape, p.sfb.shape][: 1 + (columns == 1)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = as_they_lie()
    for _ in range(2):
        p.sfa.mul_(0.75)
        graph.replay()
        assert torch.equal(d, along_m())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        results = [as_they_lie() for _ in range(20)]
    here = [as_they_lie() for _ in range(20)]
    torch.cuda.synchronize()
    assert all(torch.equal(each, d) for each in (*results, *here))


def test_a_first_call_may_be_captured_after_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = bf16_problem(33, 264, 192, CUDA)
    bias, cold, names = torch.zeros(264, device=CUDA), torch.float32, list[str]()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="warm this shape up first"), torch.cuda.graph(graph):
        ops.bf16_gemm_nt(a, b, out_dtype=cold, bias=bias, activation="gelu")
    shapes = [(33, 264, 192), (4096, 264, 192)]
    choices = {"out_dtype": cold, "bias": torch.float32, "activation": "gelu"}
    done = ops.warmup("bf16_gemm_nt", shapes, progress=lambda *said: names.append(said[2]), **choices)
    assert sorted(done) == sorted(names) and names
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = ops.bf16_gemm_nt(a, b, out_dtype=cold, bias=bias, activation="gelu")
    graph.replay()
    assert torch.equal(d, ops.bf16_gemm_nt(a, b, out_dtype=cold, bias=bias, activation="gelu"))


def test_the_stream_of_the_moment_is_used(long_ways: list[Any]) -> None:
    a, b = bf16_problem(65, 136, 128, CUDA)
    expected = ops.bf16_gemm_nt(a, b)
    d, late = torch.zeros_like(expected), torch.zeros_like(a)
    for _ in range(2):
        ops.bf16_gemm_nt(late, b, d)
    torch.cuda.synchronize()
    long_ways.clear()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for side in streams:
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            late.copy_(a)
            ops.bf16_gemm_nt(late, b, d)
        assert not side.query() and not long_ways
        side.synchronize()
        assert torch.equal(d, expected)
        d.zero_(), late.zero_()
        torch.cuda.synchronize()


def test_threads_with_streams_of_their_own() -> None:
    """Also threads that have no context of the driver before their first call."""
    b = bf16_problem(1, 136, 128, CUDA)[1]
    inputs = [bf16_problem(m, 136, 128, CUDA)[0] for m in (1, 17, 65, 65)]
    expected = [ops.bf16_gemm_nt(a, b) for a in inputs]
    outputs = [torch.zeros_like(each) for each in expected]
    for a, d in zip(inputs, outputs, strict=True):
        ops.bf16_gemm_nt(a, b, d)
    torch.cuda.synchronize()
    wrong: list[Any] = []

    def work(a: torch.Tensor, d: torch.Tensor, exact: torch.Tensor, stream: torch.cuda.Stream | None) -> None:
        try:
            with torch.cuda.stream(stream):
                for _ in range(300):
                    d.fill_(torch.nan) if stream else None
                    ops.bf16_gemm_nt(a, b, d)
                torch.cuda.current_stream().synchronize()
                if not torch.equal(d, exact):
                    wrong.append(a.shape)
        except Exception as error:
            wrong.append(error)

    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream(), None]
    threads = [
        threading.Thread(target=work, args=each) for each in zip(inputs, outputs, expected, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_runs_its_own_calls() -> None:
    a, b = bf16_problem(17, 136, 128)
    expected = None
    for turn in range(6):
        device = f"cuda:{turn % 2}"
        with torch.cuda.device(turn // 2 % 2):
            d = ops.bf16_gemm_nt(a.to(device), b.to(device))
        assert str(d.device) == device
        expected = d.cpu() if expected is None else expected
        assert torch.equal(d.cpu(), expected)


def test_scalars_and_several_outputs(long_ways: list[Any]) -> None:
    p = fp8_problem(17, 256, 384, device=CUDA)
    plain = ops.fp8_gemm_nt_fp8out.__wrapped__(*p.pairs)  # type: ignore[attr-defined]
    for turn in range(3):
        long_ways.clear()
        data, scales = ops.fp8_gemm_nt_fp8out(*p.pairs)
        assert torch.equal(data.float(), plain[0].float()) and torch.equal(scales, plain[1])
        assert bool(long_ways) == (turn == 0)
    heads = torch.full((17, 256 + 8 * 16), 7.0, dtype=BF16, device=CUDA)
    for turn in range(3):
        long_ways.clear()
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, heads, (16, 16, 16))
        assert bool(long_ways) == (turn == 0)
    expected = torch.full_like(heads, 7.0)
    ops.fp8_gemm_nt_skip_head_mid.__wrapped__(*p.pairs, expected, (16, 16, 16))  # type: ignore[attr-defined]
    assert torch.equal(heads, expected)
    a, b = torch.randn(17, 512, device=CUDA).to(BF16), torch.randn(24, 512, device=CUDA)
    outputs = [(torch.full((17, 24), torch.nan, device=CUDA), torch.full((17,), torch.nan, device=CUDA)) for _ in "xyz"]
    long_ways.clear()
    for d, squares in outputs:
        ops.tf32_hc_prenorm_gemm(a, b, d, squares)
    assert len(long_ways) == 1
    assert all(torch.equal(d, outputs[0][0]) and torch.equal(s, outputs[0][1]) for d, s in outputs)
