"""Row groups with torch's machinery: fakes, empty problems, opcheck, compilers, and calls that are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu, install
from grouped_problems import bf16_problem, counts_of, ends, fp8_problem, ids
from opchecks import opcheck

import gemmgen
from gemmgen import ops
from gemmgen.ops import hot_call
from gemmgen.ops.grouped_op import GROUPED_OPERATORS, MADE_GROUPED

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm90", sms=1):
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    yield install(monkeypatch)
    hot_call.forget()
    ops.set_mk_alignment_for_contiguous_layout(128)


def meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def meta_fp8(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    *groups, rows, k = shape
    return meta(E4M3, *shape), meta(torch.float32, *groups, rows, k // 128)


# ------------------------------------------------------------------------------------------------ meta and fake


def test_sizes_whose_product_passes_2_to_the_31() -> None:
    """P12."""
    weights = meta(E4M3, 8, 4096, 7168), meta(torch.float32, 8, 32, 56)
    layout = meta(torch.int32, 525056)
    d = ops.m_grouped_fp8_gemm_nt_contiguous(meta_fp8(525056, 7168), weights, None, layout)
    assert d.shape == (525056, 4096) and d.numel() > 2**31
    d = ops.m_grouped_fp8_gemm_nt_masked(meta_fp8(8, 2**20, 7168), weights, None, layout[:8], 64)
    assert d.shape == (8, 2**20, 4096) and d.stride() == (2**32, 4096, 1)
    with pytest.raises(ValueError, match=r"^a: m is 2147483647; must be at most 2147482624"):
        ops.m_grouped_bf16_gemm_nt_masked(meta(BF16, 8, 2**31 - 1, 64), meta(BF16, 8, 8, 64), None, layout[:8])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("groups", "m", "n"), [(2, 0, 16), (2, 8, 0), (0, 8, 16), (0, 0, 0)])
def test_empty_problems_launch_nothing(groups: int, m: int, n: int, device: str) -> None:
    """P11: outside any simulation, so a target that was asked for would be missed; also with meta tensors."""

    def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    b, counts = zeros(groups, n, 64), zeros(groups, dtype=torch.int32)
    d = torch.ones(m, n, dtype=BF16, device=device)
    assert ops.m_grouped_bf16_gemm_nt_contiguous(zeros(m, 64), b, d, counts, offsets=True) is d
    assert device == "meta" or bool((d == 1).all())
    assert ops.m_grouped_bf16_gemm_nt_masked(zeros(groups, m, 64), b, None, counts).shape == (groups, m, n)
    a = zeros(m, 128, dtype=E4M3), zeros(m, 1, dtype=torch.float32)
    weights = zeros(groups, n, 128, dtype=E4M3), zeros(groups, -(-n // 128), 1, dtype=torch.float32)
    d_fp8, d_sf = ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(a, weights, None, None, counts, offsets=True)
    assert d_fp8.shape == (m, n) and d_sf.shape == (m, -(-n // 32))


@pytest.mark.usefixtures("simulator")
def test_no_rows_at_all_and_no_k() -> None:
    problem = bf16_problem(counts_of((0, 0), 8))
    d = problem.output()
    ops.m_grouped_bf16_gemm_nt_masked(problem.a, problem.b, d, problem.layout.given, 0)
    assert bool((d == 776).all())
    ops.m_grouped_bf16_gemm_nt_masked(problem.a[..., :0], problem.b[..., :0], d, torch.tensor([3, 0]).int())
    assert bool((d[0, :3] == 0).all()) and bool((d[0, 3:] == 776).all()) and bool((d[1] == 776).all())


def test_fake_outputs_are_like_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    problem = fp8_problem(counts_of((3, 1), 6), n=128, sfa="m")
    with FakeTensorMode() as mode:
        a, b = (tuple(mode.from_tensor(each) for each in pair) for pair in (problem.a, problem.b))
        layout = mode.from_tensor(problem.layout.given)
        d = ops.m_grouped_fp8_gemm_nt_masked(a, b, None, layout, 4, out_dtype=torch.float32)
        assert (d.shape, d.stride(), d.dtype) == ((2, 6, 128), (768, 128, 1), torch.float32)
        flat = tuple(each[0] for each in a)
        d_fp8, d_sf = ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(flat, b, None, None, layout, offsets=True)
        assert (d_fp8.dtype, d_sf.dtype, d_sf.shape) == (E4M3, torch.float8_e8m0fnu, (6, 4))


# ------------------------------------------------------------------------------------------------ compilers


@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("form", ["masked", "contiguous"])
def test_compiled_calls_have_one_graph(form: str) -> None:
    problem = bf16_problem(counts_of((1, 2), 8) if form == "masked" else ends((3, 5)), n=16, k=64)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def call(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
        if form == "masked":
            return ops.m_grouped_bf16_gemm_nt_masked(a, b, d, layout, 8, activation="relu") + 0
        return ops.m_grouped_bf16_gemm_nt_contiguous(a, b, None, layout, offsets=True) + 0

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    d = problem.output()
    result = compiled(problem.a, problem.b, d, problem.layout.given)
    wanted = problem.product.relu() if form == "masked" else problem.product
    assert torch.equal(result, wanted.to(BF16)) and len(graphs) == 1
    assert any("m_grouped_bf16_gemm_nt_" in str(node.target) for node in graphs[0].graph.nodes)


def test_a_compiled_call_follows_the_alignment() -> None:
    """The process's alignment is part of what a graph was made for."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(node.args for node in graph.graph.nodes if "m_grouped" in str(node.target))
        return lambda *arguments: [torch.empty(0)]

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *given: ops.m_grouped_bf16_gemm_nt_contiguous(*given), backend=backend, fullgraph=True
    )
    problem = bf16_problem(ids((3, 5), 128), n=16, k=64)
    try:
        for alignment in (128, 64, 64):
            ops.set_mk_alignment_for_contiguous_layout(alignment)
            compiled(problem.a, problem.b, None, problem.layout.given)
    finally:
        ops.set_mk_alignment_for_contiguous_layout(128)
    assert [next(each for each in given if type(each) is int) for given in seen] == [128, 64]


@pytest.mark.usefixtures("simulator")
def test_opcheck() -> None:
    flat = bf16_problem(ends((2, 1)), n=16, k=64)
    form = MADE_GROUPED["m_grouped_bf16_gemm_nt_contiguous"]
    opcheck(form._returning, flat.a, flat.b, flat.layout.given, "ends", 1, False, 0)
    own = fp8_problem(counts_of((2, 1), 2), n=16, k=128)
    form, d = MADE_GROUPED["m_grouped_fp8_gemm_nt_masked_f32"], torch.zeros(2, 2, 16)
    opcheck(form._writing, *own.a, *own.b, own.layout.given, [], [], "counts", 1, False, 16, d)


def test_only_outputs_are_mutated() -> None:
    for name in GROUPED_OPERATORS:
        for form, written in ((MADE_GROUPED[name]._returning, []), (MADE_GROUPED[name]._writing, ["d"])):
            arguments = form._schema.arguments
            assert [each.name for each in arguments if each.alias_info and each.alias_info.is_write] == written


# ------------------------------------------------------------------------------------------------ repeated calls


def test_a_second_call_is_repeated_and_a_hint_or_alignment_is_another(gpu: FakeGpu) -> None:
    flat, own = bf16_problem(ids((3, 5), 128)), fp8_problem(counts_of((2, 1), 256), n=2048, sfa="m")

    def masked(expected: int) -> None:
        ops.m_grouped_fp8_gemm_nt_masked(own.a, own.b, None, own.layout.given, expected)

    def contiguous() -> None:
        ops.m_grouped_bf16_gemm_nt_contiguous(flat.a, flat.b, None, flat.layout.given)

    masked(2), masked(3), masked(4000)
    assert [launch.hot for launch in gpu.launches] == [False, True, False]
    assert gpu.launches[0].entry == gpu.launches[1].entry != gpu.launches[2].entry
    gpu.launches.clear()
    contiguous(), contiguous()
    ops.set_mk_alignment_for_contiguous_layout(16)
    contiguous()
    ops.set_mk_alignment_for_contiguous_layout(128)
    contiguous()
    assert [launch.hot for launch in gpu.launches] == [False, True, False, True]
    assert gpu.launches[2].entry != gpu.launches[1].entry


def test_calls_whose_layout_is_looked_at_are_not_repeated(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CHECK_GROUPS", "1")
    problem = bf16_problem(counts_of((2, 1), 8))
    for _ in range(3):
        ops.m_grouped_bf16_gemm_nt_masked(problem.a, problem.b, None, problem.layout.given)
    assert [launch.hot for launch in gpu.launches] == [False] * 3
    with pytest.raises(ValueError, match=r"^masked_m: group 0 has 9 rows"):
        ops.m_grouped_bf16_gemm_nt_masked(problem.a, problem.b, None, torch.tensor([9, 0]).int())


def test_fused_operators_are_repeated(gpu: FakeGpu) -> None:
    problem = fp8_problem(ends((2, 1)), n=128, sfa="m")
    d_fp8, d_sf = (None, None)
    for _ in range(2):
        ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(
            problem.a, problem.b, d_fp8, d_sf, problem.layout.given, offsets=True
        )
    made = gemmgen.fuse("m_grouped_fp8_gemm_nt_contiguous", gemmgen.catalog.fp8_output("m"))
    for _ in range(2):
        made(problem.a, problem.b, problem.layout.given, offsets=True)
    assert [launch.hot for launch in gpu.launches] == [False, True, False, True]
