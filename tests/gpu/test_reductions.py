"""What epilogues reduce, on a GPU: right, the same bits every time whatever else runs, and in graphs."""

from __future__ import annotations

import pytest
import torch

import gemmgen
from gemmgen.ir import Cast, DType, Epilogue, Operand, Reduce, Store

CUDA = "cuda"


def reducing(dtype: DType) -> Epilogue:
    """Rows, columns and everything reduced beside an output of that type."""
    reductions = (
        Reduce(function="amax", along="n", to="row_amax"),
        Reduce(function="sum", along="n", to="row_sum"),
        Reduce(function="sum_of_squares", along="mn", to="norm"),
        Reduce(function="sum", along="m", to="column_sum"),
    )
    boxes = (each.box("n") for each in reductions)
    outputs = [
        Operand(name=each.to, dtype=DType.F32, box=box, on_device=not box)
        for each, box in zip(reductions, boxes, strict=True)
    ]
    cast = () if dtype == DType.F32 else (Cast(to=dtype),)
    d = Operand(name="d", dtype=dtype, box=("m", "n"))
    return Epilogue(name="reducing", operands=(d, *outputs), steps=(*reductions, *cast, Store(to="d")))


def factors(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(CUDA).manual_seed(m + n + k)
    a, b = (torch.randn(rows, k, generator=generator, device=CUDA).bfloat16() for rows in (m, n))
    return a, b


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 64), (65, 7, 80), (333, 1000, 200), (4096, 4096, 512)])
def test_reductions_are_those_of_the_stored_numbers(m: int, n: int, k: int) -> None:
    d, row_amax, row_sum, norm, column_sum = gemmgen.fuse("bf16_gemm_nt", reducing(DType.F32))(*factors(m, n, k))
    wide = d.double()
    assert torch.equal(row_amax, d.abs().amax(1))
    for found, exact, size in (
        (row_sum, wide.sum(1), wide.abs().sum(1)),
        (norm, wide.square().sum(), wide.square().sum()),
        (column_sum, wide.sum(0), wide.abs().sum(0)),
    ):
        assert bool(((found.double() - exact).abs() <= size * 1e-5).all())


def test_bits_repeat_whatever_else_runs() -> None:
    """Beside copies on another stream, which change the order in which warps come."""
    call, (a, b) = gemmgen.fuse("bf16_gemm_nt", reducing(DType.BF16)), factors(2048, 3000, 256)
    wanted = call(a, b)
    noise, other = torch.empty(1 << 26, device=CUDA), torch.cuda.Stream()
    for repeat in range(50):
        with torch.cuda.stream(other):
            for _ in range(repeat % 5):
                noise.add_(1.0)
        assert all(map(torch.equal, call(a, b), wanted))


def test_a_graph_replays_them() -> None:
    call, (a, b) = gemmgen.fuse("bf16_gemm_nt", reducing(DType.BF16)), factors(300, 520, 128)
    wanted = call(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(a, b)
    for _ in range(3):
        for each in captured:
            each.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, captured, wanted))
