"""``tf32_hc_prenorm_gemm`` on a GPU: sums to the bit, repeats, streams and graphs (P11, P20, P21)."""

from __future__ import annotations

import pytest
import torch
from prenorm_problems import allowed, exact, expected, framed, normal

from gemmgen import ops

CUDA = "cuda"
SIZES = [(13, 24, 28672), (137, 24, 28672), (4096, 24, 7168), (8192, 24, 28672)]
RAGGED = [(1, 8, 64), (63, 16, 128), (65, 24, 64 * 17), (129, 32, 64 * 131), (2111, 8, 64 * 9), (4097, 32, 576)]


def outputs(m: int, n: int, splits: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (m, n) if splits is None else (splits, m, n)
    d = torch.full(shape, torch.nan, device=CUDA)
    return d, torch.full(shape[:-1], torch.nan, device=CUDA)


def call(a: torch.Tensor, b: torch.Tensor, splits: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    d, sqr_sum = outputs(a.shape[0], b.shape[0], splits)
    ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, splits)
    return d, sqr_sum


@pytest.mark.parametrize("splits", [None, 1, 2, 3, 16])
@pytest.mark.parametrize(("m", "n", "k"), SIZES + RAGGED)
def test_whole_numbers_are_summed_exactly(m: int, n: int, k: int, splits: int | None) -> None:
    a, b = exact(m, n, k, CUDA)
    shape = (m, n) if splits is None else (splits, m, n)
    d, sqr_sum = framed(*shape, pad=16, device=CUDA), framed(*shape[:-1], device=CUDA)
    ops.tf32_hc_prenorm_gemm(a, b, d.view, sqr_sum.view, splits)
    products, squares = expected(a, b, splits or 1)
    assert torch.equal(d.view.double(), products.view(shape))
    assert torch.equal(sqr_sum.view.double(), squares.view(shape[:-1]))
    assert d.intact() and sqr_sum.intact()


@pytest.mark.parametrize(("m", "n", "k"), [(13, 24, 28672), (137, 24, 7168), (4096, 24, 7168)])
def test_normal_numbers_are_summed_to_rounding(m: int, n: int, k: int) -> None:
    a, b = normal(m, n, k, CUDA)
    d, sqr_sum = call(a, b, None)
    (products, squares), (of_products, of_squares) = expected(a, b), allowed(a, b)
    assert bool(((d.double() - products[0]).abs() <= of_products).all())
    assert bool(((sqr_sum.double() - squares[0]).abs() <= of_squares).all())


def test_no_rows_launch_nothing() -> None:
    """P11."""
    a, b = exact(0, 24, 640, CUDA)
    assert call(a, b, None)[0].shape == (0, 24)
    assert call(a, b, 4)[0].shape == (4, 0, 24)


@pytest.mark.parametrize("splits", [None, 1, 16])
@pytest.mark.parametrize(("m", "k"), [(13, 28672), (137, 7168), (4096, 7168)])
def test_hundred_repeats_on_a_side_stream_are_bitwise_equal(m: int, k: int, splits: int | None) -> None:
    """P20: beside another stream's traffic, which moves CTAs in time."""
    a, b = normal(m, 24, k, CUDA)
    first = call(a, b, splits)
    noise = torch.randn(4096, 4096, device=CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for repeat in range(100):
        if repeat % 10 == 0:
            noise.mul_(1.0)
        with torch.cuda.stream(side):
            again = call(a, b, splits)
        side.synchronize()
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


@pytest.mark.parametrize("splits", [None, 1, 16])
def test_capture_after_warm_up(splits: int | None) -> None:
    """P21: replays see new contents."""
    a, b = exact(137, 24, 7168, CUDA)
    d, sqr_sum = outputs(137, 24, splits)
    ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, splits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum, splits)
    for factor in (1.0, 2.0, -0.5):
        a.mul_(factor)
        d.fill_(torch.nan), sqr_sum.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        products, squares = expected(a, b, splits or 1)
        assert torch.equal(d.double(), products.view(d.shape))
        assert torch.equal(sqr_sum.double(), squares.view(sqr_sum.shape))


def test_compiled_in_one_graph() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        d, sqr_sum = a.new_empty(a.shape[0], 24, dtype=torch.float32), a.new_empty(a.shape[0], dtype=torch.float32)
        ops.tf32_hc_prenorm_gemm(a, b, d, sqr_sum)
        return d * torch.rsqrt(sqr_sum)[:, None]

    a, b = exact(137, 24, 7168, CUDA)
    products, squares = expected(a, b)
    found = torch.compile(function, fullgraph=True)(a, b)
    torch.testing.assert_close(found.double(), products[0] * squares[0].rsqrt()[:, None], rtol=1e-5, atol=1e-5)
