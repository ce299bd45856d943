"""Scales that any number of rows share, where tensor cores apply them: callers have squares of 32 and of 128."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from grouped_problems import counts_of, fp8_problem
from sm100_problems import Factor, fp8, product

import gemmgen
from gemmgen import ops


@pytest.fixture(params=("sm100", "sm120"), autouse=True)
def simulator(request: pytest.FixtureRequest) -> Iterator[None]:
    with gemmgen.simulate(request.param, sms=2):
        yield


@pytest.mark.parametrize("rows", [1, 16, 32, 100, 128, 256])
@pytest.mark.parametrize("block", [32, 128])
def test_rows_of_b_that_share_a_scale(rows: int, block: int) -> None:
    """N is no multiple of them; as fp32 numbers, bytes, and what the transform makes of them beforehand."""
    a, b = fp8(9, 160, (1, block), seed=1), fp8(136, 160, (rows, block), seed=2)
    expected = product(a, b)
    before = ops.transform_sf_into_required_layout(b.fp32[1], 136, 160, (1, rows, block), is_sfa=False)
    assert torch.equal(ops.fp8_gemm_nt(a.fp32, b.fp32, recipe=(1, rows, block)), expected)
    assert torch.equal(ops.fp8_gemm_nt(a.e8m0, b.e8m0, recipe=(1, rows, block)), expected)
    assert torch.equal(ops.fp8_gemm_nt(a.fp32, (b.data, before), recipe=(1, 1, block)), expected)


def test_rows_of_a_that_share_a_scale() -> None:
    a, b = fp8(70, 160, (32, 32), seed=1), fp8(40, 160, (64, 128), seed=2)
    d = ops.fp8_gemm_nt(a.fp32, b.fp32, recipe_a=(32, 32), recipe_b=(64, 128))
    assert torch.equal(d, product(a, b))


def test_what_the_quantisers_make() -> None:
    """Squares of 32, with their scales along either dimension."""
    x, w = torch.randn(9, 96), torch.randn(72, 96)
    a = ops.per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=32)
    b = ops.per_block_cast_to_fp8(w, use_ue8m0=True, gran_k=32)
    d = ops.fp8_gemm_nt(a, b, recipe=(1, 32, 32), out_dtype=torch.float32)
    wide = [ops.cast_back_from_fp8(*a, 32).double(), ops.cast_back_from_fp8(*b, 32, gran_mn=32).double()]
    assert torch.allclose(d.double(), wide[0] @ wide[1].T, rtol=1e-5, atol=1e-4)
    turned = b[0], b[1].mT.contiguous().mT
    assert torch.equal(ops.fp8_gemm_nt(a, turned, recipe=(1, 32, 32), out_dtype=torch.float32), d)


@pytest.mark.parametrize("n", [64, 72])
def test_groups(n: int) -> None:
    """Of rows that are whole granules, laid out in one launch, and of others."""
    problem = fp8_problem(counts_of((3, 0, 6), 8), n=n, k=160)
    factors = [fp8(n, 160, (32, 32), seed=group) for group in range(3)]
    b = torch.stack([each.data for each in factors]), torch.stack([each.fp32[1] for each in factors])
    a, d = problem.a, problem.output(torch.float32)
    ops.m_grouped_fp8_gemm_nt_masked(a, b, d, problem.layout.given, recipe_a=(1, 128), recipe_b=(32, 32))
    for group, count in enumerate((3, 0, 6)):
        left = a[0][group, :count].double() * a[1][group, :count].double().repeat_interleave(128, 1)[:, :160]
        assert torch.equal(d[group, :count].double(), left @ factors[group].wide.T)


def test_sm90_has_no_such_scales() -> None:
    factor: Factor = fp8(8, 256, (1, 32))
    with gemmgen.simulate("sm90"), pytest.raises(ValueError, match=r"^recipe: \(1, 32, 32\) is not supported on sm90"):
        ops.fp8_gemm_nt(factor.fp32, fp8(64, 256, (32, 32)).fp32, recipe=(1, 32, 32))
