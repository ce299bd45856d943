"""Calls that are repeated in front of an operator: always the launch that the long way would make, or the long way."""

from __future__ import annotations

import itertools
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from fake_gpu import FakeGpu, install
from hot_problems import drawn_bf16, drawn_fp8
from problems import bf16_problem, fp8_problem

import gemmgen
from gemmgen import ops
from gemmgen.ir import DType, Epilogue, Operand, Reduce, Store
from gemmgen.ops import dense_block_scaled, hot_call, library, workspace

BF16 = torch.bfloat16


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    yield install(monkeypatch)
    hot_call.forget()


def long_way(function: Any, *arguments: Any, **named: Any) -> Any:
    """The same call past what is in front."""
    return function.__wrapped__(*arguments, **named)


def given_outputs(function: Any, named: dict[str, Any], arguments: tuple[Any, ...], result: Any) -> dict[str, Any]:
    """The arguments by name that make the long way write where this call wrote."""
    parameters = list(function.__wrapped__.__annotations__)
    named = {**dict(zip(parameters, arguments, strict=False)), **named}
    if "d_fp8" in parameters:
        return {**named, "d_fp8": result[0], "d_sf": result[1]}
    return {**named, "d": result} | ({"out_dtype": None} if "out_dtype" in parameters else {})


@pytest.mark.parametrize("draw", [drawn_bf16, drawn_fp8])
def test_every_launch_is_the_one_of_the_long_way(gpu: FakeGpu, draw: Callable[[random.Random], Any]) -> None:
    """Shapes, pitches, starts, outputs and options change from call to call and come back in other memory."""
    order = random.Random(3)
    hot = refused = 0
    for _ in range(240):
        function, arguments, named = draw(random.Random(order.randrange(60)))
        gpu.launches.clear()
        try:
            result = function(*arguments, **named)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)) as expected:
                long_way(function, *arguments, **named)
            assert str(error) == str(expected.value)
            refused += 1
            continue
        (launch,) = gpu.launches
        if launch.hot:
            hot += 1
            long_way(function, **given_outputs(function, named, arguments, result))
            assert gpu.launches[1] == launch and not gpu.launches[1].hot
    assert hot > 100 and 0 < refused < 100


def test_the_second_call_is_hot_and_others_are_not(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=BF16)
    for call in (lambda: ops.bf16_gemm_nt(a, b), lambda: ops.bf16_gemm_nt(a, b, d)):
        call(), call()
        assert [launch.hot for launch in gpu.launches] == [False, True]
        gpu.launches.clear()
    ops.bf16_gemm_nt(a.clone(), b.clone(), d.clone())
    ops.bf16_gemm_nt(a[:7], b, d[:7])
    ops.bf16_gemm_nt(a, b, activation="relu")
    assert [launch.hot for launch in gpu.launches] == [True, False, False]
    assert ops.bf16_gemm_nt(a, b, d) is d


def test_tensors_whose_ids_come_back(gpu: FakeGpu) -> None:
    """Nothing is keyed by an object: dead tensors are replaced by others at the same place."""
    _, b = bf16_problem(8, 16, 64)
    for turn in range(40):
        a = torch.zeros(1 + turn % 3, 64, dtype=BF16)
        result = ops.bf16_gemm_nt(a, b)
        long_way(ops.bf16_gemm_nt, a, b, result)
        assert gpu.launches[-1] == gpu.launches[-2]
        del a, result
    assert sum(launch.hot for launch in gpu.launches) == 37


def test_refusals_are_the_same_after_a_hot_call(gpu: FakeGpu) -> None:
    p = fp8_problem(8, 16, 256)
    d, c = torch.zeros(8, 16, dtype=BF16), torch.zeros(8, 16, dtype=BF16)
    for _ in range(3):
        ops.fp8_gemm_nt(*p.pairs, d, c)
        ops.fp8_gemm_nt(*p.pairs, d)
        ops.fp8_gemm_nt(*p.pairs)
    launches = len(gpu.launches)
    inside = torch.zeros(4096, dtype=torch.uint8)
    odd = torch.zeros(4097, dtype=torch.float8_e4m3fn)[1:].view(16, 256)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((*p.pairs, p.a.view(torch.uint8).view(-1)[:256].view(BF16).view(8, 16)), {}),
        (((p.a, p.sfa), (odd, p.sfb), d), {}),
        (((p.a, p.sfa[:7]), (p.b, p.sfb), d), {}),
        (((p.a, p.sfa), (p.b, p.sfb.double()), d), {}),
        (((p.a, None), (p.b, p.sfb), d), {}),
        (((p.a, p.sfa, p.sfa), (p.b, p.sfb), d), {}),
        ((p.a, (p.b, p.sfb), d), {}),
        ((None, (p.b, p.sfb), d), {}),
        ((*p.pairs, d, c[:7]), {}),
        ((*p.pairs, d), {"out_dtype": torch.float32}),
        ((*p.pairs, d), {"compiled_dims": "xyz"}),
        ((*p.pairs, d), {"recipe": [1, 1, 128]}),
        ((*p.pairs, d), {"recipe": [2, 2]}),
        ((*p.pairs, d), {"bias": 3.0}),
        ((*p.pairs, inside[:256].view(BF16).view(8, 16), inside[64:320].view(BF16).view(8, 16)), {}),
        (((p.a, p.sfa.clone().requires_grad_()), (p.b, p.sfb), d), {}),
    ]
    for arguments, named in calls:
        with pytest.raises((TypeError, ValueError, RuntimeError)) as found:
            ops.fp8_gemm_nt(*arguments, **named)
        with pytest.raises(found.type) as expected:
            long_way(ops.fp8_gemm_nt, *arguments, **named)
        assert str(found.value) == str(expected.value) and found.value.__context__ is None
    assert len(gpu.launches) == launches


def test_a_parameter_is_served_without_gradients_only(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    weight = torch.nn.Parameter(b)
    with torch.no_grad():
        for _ in range(2):
            ops.bf16_gemm_nt(a, weight)
    assert [launch.hot for launch in gpu.launches] == [False, True]
    with pytest.raises(RuntimeError, match="b: requires_grad is True, but this operator has no backward"):
        ops.bf16_gemm_nt(a, weight)
    with torch.inference_mode():
        ops.bf16_gemm_nt(a, weight)
        ops.bf16_gemm_nt(a, weight)
    assert [launch.hot for launch in gpu.launches[2:]] == [False, True]


def test_autograd_notices_that_a_given_output_changed(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=BF16)
    for turn in range(1, 4):
        ops.bf16_gemm_nt(a, b, d)
        assert d._version == turn
    assert gpu.launches[-1].hot and ops.bf16_gemm_nt(a, b)._version == 0
    with torch.inference_mode():
        d = torch.zeros(8, 16, dtype=BF16)
        for _ in range(2):
            ops.bf16_gemm_nt(a, b, d)
    assert gpu.launches[-1].hot


def test_whoever_intercepts_calls_still_does(gpu: FakeGpu) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    a, b = bf16_problem(8, 16, 64)
    for _ in range(2):
        ops.bf16_gemm_nt(a, b)
    with Mode():
        for _ in range(2):
            ops.bf16_gemm_nt(a, b)
    assert seen.count(library.bf16_gemm_nt) == 2
    launches = len(gpu.launches)
    with FakeTensorMode() as mode:
        assert ops.bf16_gemm_nt(mode.from_tensor(a), mode.from_tensor(b)).shape == (8, 16)
    assert len(gpu.launches) == launches
    assert torch.vmap(ops.bf16_gemm_nt, (0, None))(a.expand(3, 8, 64).contiguous(), b).shape == (3, 8, 16)
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.vmap(ops.bf16_gemm_nt, (0, None, 0))(
            a.expand(3, 8, 64).contiguous(), b, torch.zeros(3, 8, 16, dtype=BF16)
        )
    assert [launch.hot for launch in gpu.launches[launches:]] == [False, False, False]
    ops.bf16_gemm_nt(a, b)
    assert gpu.launches[-1].hot


def test_negated_views_are_negated(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    for _ in range(2):
        ops.bf16_gemm_nt(a, b)
    ops.bf16_gemm_nt(a, torch._neg_view(b))
    assert not gpu.launches[-1].hot


def test_rows_that_are_read_past_their_ends_are_looked_at_in_every_call(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tensors with the same strides only one has room behind its last row."""
    gpu.family = "sm100"
    monkeypatch.setattr(dense_block_scaled, "current_target", lambda device: gpu)
    a, d = torch.zeros(16, 160, dtype=torch.float8_e4m3fn), torch.empty(16, 8, dtype=BF16)
    sfa, sfb = (torch.full((2, rows), 0x7F7F7F7F, dtype=torch.int32).T for rows in (16, 8))
    roomy, tight = (
        torch.zeros(7 * 160 + behind, dtype=torch.int8).as_strided((8, 80), (160, 1)) for behind in (128, 80)
    )
    for _ in range(2):
        ops.fp8_fp4_gemm_nt((a, sfa), (roomy, sfb), d, recipe=(1, 1, 32))
        with pytest.raises(ValueError, match=r"^b: k is 160; beside an 8-bit factor, TMA reads 4-bit numbers 128 at"):
            ops.fp8_fp4_gemm_nt((a, sfa), (tight, sfb), d, recipe=(1, 1, 32))
    assert [launch.hot for launch in gpu.launches] == [False, False]


def test_a_launch_that_fails_takes_the_long_way(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=BF16)
    for _ in range(2):
        ops.bf16_gemm_nt(a, b, d)
    gpu.statuses = [201]
    ops.bf16_gemm_nt(a, b, d)
    ops.bf16_gemm_nt(a, b, d)
    assert [launch.hot for launch in gpu.launches] == [False, True, False, True] and d._version == 4


def test_another_current_device_takes_the_long_way(gpu: FakeGpu) -> None:
    a, b = bf16_problem(8, 16, 64)
    for _ in range(2):
        ops.bf16_gemm_nt(a, b)
    gpu.current = 1
    for _ in range(3):
        ops.bf16_gemm_nt(a, b)
    assert [launch.hot for launch in gpu.launches] == [False, True, False, False, False]
    assert gpu.asked == [a.device] * 4, "of the tensors, whichever is current"


def test_threads_at_the_same_time_have_frames_of_their_own(gpu: FakeGpu) -> None:
    """Every launch is read while others are being written."""
    gpu.before_launch = lambda: time.sleep(0.0005)
    b = torch.zeros(16, 64, dtype=BF16)
    ops.bf16_gemm_nt(torch.zeros(8, 64, dtype=BF16), b, torch.zeros(8, 16, dtype=BF16))
    made: list[tuple[int, int]] = []

    def work() -> None:
        a, d = torch.zeros(8, 64, dtype=BF16), torch.zeros(8, 16, dtype=BF16)
        for _ in range(50):
            ops.bf16_gemm_nt(a, b, d)
        made.append((a.data_ptr(), d.data_ptr()))
        time.sleep(0.05)  # keeps the memory

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hot = [launch for launch in gpu.launches if launch.hot]
    words = [{int.from_bytes(each.params[at : at + 8], "little") for at in range(0, 512, 8)} for each in hot]
    assert len(hot) == 200 and 1 < gpu.frames <= 5
    for addresses in made:
        assert sum(set(addresses) <= found for found in words) == 50


def test_options_of_other_types_are_other_calls(gpu: FakeGpu) -> None:
    a, b = torch.zeros(8, 256, dtype=BF16), torch.zeros(24, 256)
    d, s = torch.zeros(1, 8, 24), torch.zeros(1, 8)
    for _ in range(2):
        ops.tf32_hc_prenorm_gemm(a, b, d, s, 1)
    assert gpu.launches[-1].hot and ops.tf32_hc_prenorm_gemm(a, b, d, s, 1) is None
    with pytest.raises(TypeError, match="num_splits: is True"):
        ops.tf32_hc_prenorm_gemm(a, b, d, s, True)


def test_options_that_cannot_be_looked_up_take_the_long_way(gpu: FakeGpu) -> None:
    p = fp8_problem(8, 16, 256)
    for recipe in ([1, 128, 128], numpy.array([1, 128, 128])):
        for _ in range(2):
            ops.fp8_gemm_nt(*p.pairs, recipe=recipe)
    assert not any(launch.hot for launch in gpu.launches)


SUMMED = Epilogue(
    name="summed",
    operands=(Operand(name="d", dtype=DType.F32, box=("m", "n")), Operand(name="sums", dtype=DType.F32, box=("m",))),
    steps=(Reduce(function="sum", along="n", to="sums"), Store(to="d")),
)


def test_counters_stand_where_extents_say_how_many_come(gpu: FakeGpu) -> None:
    """Launches of a dense kernel share the stream's zeros, whichever way they come; those of groups have their own."""
    gpu.zeros = 0x123456780000
    standing = struct.pack("<Q", gpu.zeros)
    a, b = torch.zeros(8, 64, dtype=BF16), torch.zeros(3, 16, 64, dtype=BF16)
    d, s, ends = torch.zeros(8, 16), torch.zeros(8), torch.tensor([8, 8, 8], dtype=torch.int32)
    dense = gemmgen.fuse("bf16_gemm_nt", SUMMED)
    grouped = gemmgen.fuse("m_grouped_bf16_gemm_nt_contiguous", SUMMED)
    for _ in range(3):
        dense(a, b[0], d=d, sums=s)
    assert [standing in launch.params for launch in gpu.launches] == [True] * 3
    for _ in range(3):
        grouped(a, b, ends, offsets=True, d=d, sums=s)
    assert [standing in launch.params for launch in gpu.launches[3:]] == [False] * 3


def test_workspaces_are_new_for_every_launch(gpu: FakeGpu) -> None:
    """Counters are zero and nothing is shared, whichever way a launch comes."""
    a, b = torch.zeros(8, 28672, dtype=BF16), torch.zeros(24, 28672)
    d, s = torch.zeros(8, 24), torch.zeros(8)
    sizes = {"partials": 1000, "arrivals": 12, "more": 8, "arrivals_of_arrivals": 4}

    def empty(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(tuple(shape), 255, dtype=dtype)

    allocate = workspace.allocator(sizes, empty)
    kept = [allocate(), allocate()]
    spans = sorted(
        (start, start + size) for _, parts in kept for start, size in zip(parts, sizes.values(), strict=True)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for memory, parts in kept:
        zeros, rest = memory
        assert not zeros.any() and rest.all() and zeros.numel() == 512
        inside = [zeros.data_ptr() <= at < zeros.data_ptr() + zeros.numel() for at in parts]
        assert inside == [False, True, False, True]
    for _ in range(3):
        ops.tf32_hc_prenorm_gemm(a, b, d, s)
    blocks = [launch.params for launch in gpu.launches]
    assert [launch.hot for launch in gpu.launches] == [False, True, True]
    differ = [
        {at for at in range(0, len(x), 8) if x[at : at + 8] != y[at : at + 8]} for x, y in itertools.pairwise(blocks)
    ]
    assert all(len(each) <= 2 for each in differ)


def test_the_same_tensor_twice(gpu: FakeGpu) -> None:
    a, _ = bf16_problem(16, 16, 64)
    d = torch.zeros(16, 16, dtype=BF16)
    for arguments in ((a, a), (a, a, d, d), (a, a.clone(), d, d)):
        gpu.launches.clear()
        for _ in range(2):
            ops.bf16_gemm_nt(*arguments)
        assert [launch.hot for launch in gpu.launches] == [False, True]
        long_way(ops.bf16_gemm_nt, *arguments[:2], torch.zeros(16, 16, dtype=BF16), *arguments[3:])
    gpu.launches.clear()
    ops.bf16_gemm_nt(a, a.clone(), d, d.clone())
    assert not gpu.launches[0].hot


def test_authors_epilogues_and_specs_are_hot_too(gpu: FakeGpu) -> None:
    from gemmgen.ir import Cast, DType, Epilogue, Operand, Scale, Store

    operands = (Operand(name="alpha", dtype=DType.F32, box=()), Operand(name="d", dtype=DType.BF16, box=("m", "n")))
    steps = (Scale(by="alpha"), Cast(to=DType.BF16), Store(to="d"))
    fused = gemmgen.fuse("bf16_gemm_nt", Epilogue(name="scaled", operands=operands, steps=steps))
    spec = gemmgen.op(gemmgen.catalog.bf16_gemm("nt", gemmgen.catalog.Shape(64, 16, groups=1)))
    a, b = bf16_problem(8, 16, 64)
    d = torch.zeros(8, 16, dtype=BF16)
    for alpha in (2.0, 3.0, 2):
        fused(a, b, alpha=alpha, d=d)
        fused.apply(a, b, alpha=alpha, d=d)
        assert gpu.launches[-1] == gpu.launches[-2]
    assert [launch.hot for launch in gpu.launches[::2]] == [False, True, False]
    with pytest.raises(TypeError, match="alpha: missing; bf16_gemm_nt_scaled takes"):
        fused(a, b, d=d)
    with pytest.raises(TypeError, match="beta: unknown argument"):
        fused(a, b, alpha=2.0, beta=1.0)
    with pytest.raises(OverflowError):
        fused(a, b, alpha=1e300, d=d)
    gpu.launches.clear()
    for _ in range(2):
        spec(a=a, b=b, d=d)
    assert [launch.hot for launch in gpu.launches] == [False, True] and gpu.launches[0] == gpu.launches[1]


def test_memory_of_calls_is_bounded(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_call, "CALLS_LIMIT", 5)
    monkeypatch.setattr(hot_call, "ALIKE_LIMIT", 2)
    a, b = bf16_problem(8, 64, 64)
    for n in (16, 32, 48):
        ops.bf16_gemm_nt(a, b[:n])
    for n in (48, 32, 16):
        ops.bf16_gemm_nt(a, b[:n])
    assert [launch.hot for launch in gpu.launches] == [False, False, False, True, True, False]
    for m in range(1, 8):
        ops.bf16_gemm_nt(a[:m], b)
    for m in range(1, 8):
        ops.bf16_gemm_nt(a[:m], b)
    assert sum(launch.hot for launch in gpu.launches[6:]) < 7
