"""4-bit factors under the names that say FP8, as callers pass them: the same products where tensor cores scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from grouped_problems import SENTINEL, Problem, counts_of, fp8_problem, ids
from sm100_problems import FP4_VALUES, Factor, fp4, fp8, product

import gemmgen
from gemmgen import ops
from gemmgen.runtime.errors import UnsupportedArchitecture

SCALING = ("sm100", "sm120")
WEIGHTS: dict[str, Any] = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
ACTIVATIONS_TOO: dict[str, Any] = {"recipe_a": (1, 32), "recipe_b": (1, 32)}


def as_torch_has_it(factor: Factor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes in torch's type of two 4-bit numbers."""
    return factor.data.view(torch.float4_e2m1fn_x2), factor.fp32[1]


@pytest.mark.parametrize("arch", SCALING)
def test_dense_products(arch: str) -> None:
    a, b = fp8(9, 256, seed=1), fp4(24, 256, seed=2)
    expected = product(a, b)
    turned_a, turned_b = (a.data.mT, a.fp32[1].mT), (b.data.mT, b.fp32[1].mT)
    with gemmgen.simulate(arch, sms=2):
        for pair in (b.fp32, b.words, as_torch_has_it(b)):
            assert torch.equal(ops.fp8_gemm_nt(a.fp32, pair, **WEIGHTS), expected)
        assert torch.equal(ops.fp8_gemm_nn(a.fp32, turned_b, **WEIGHTS), expected)
        assert torch.equal(ops.fp8_gemm_tn(turned_a, turned_b, **WEIGHTS), expected)
        assert torch.equal(ops.fp8_gemm_tt(turned_a, b.fp32, **WEIGHTS), expected)
        assert torch.equal(ops.fp8_gemm_nt(b.fp32, b.fp32, **ACTIVATIONS_TOO), product(b, b))


@pytest.mark.parametrize("arch", SCALING)
def test_dense_products_that_are_finished(arch: str) -> None:
    a, b = fp8(9, 256, seed=1), fp4(24, 256, seed=2)
    bias = torch.arange(24).float()
    with gemmgen.simulate(arch, sms=2):
        d = ops.fp8_gemm_nt(a.fp32, b.fp32, bias=bias, activation="relu", out_dtype=torch.float32, **WEIGHTS)
    assert torch.equal(d, (product(a, b, torch.float32) + bias).relu())


def in_4_bits(groups: int, n: int, k: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """B of every group in 4 bits, a power of two for 32 of k, and its meaning."""
    factors = [fp4(n, k, seed=group) for group in range(groups)]
    data, scales = (torch.stack([each.fp32[part] for each in factors]) for part in (0, 1))
    return (data, scales), torch.stack([each.wide for each in factors])


def check_groups(problem: Problem, d: torch.Tensor, numbers: torch.Tensor) -> None:
    """Every group's rows are its A times its numbers."""
    for group, b in enumerate(numbers):
        data, scales = (problem.layout.rows_of(each, group).double() for each in problem.a)
        assert torch.equal(problem.layout.rows_of(d, group).double(), data * scales.repeat_interleave(128, -1) @ b.mT)


@pytest.mark.parametrize("arch", SCALING)
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_groups_whose_rows_are_one_matrix(arch: str, layout: str) -> None:
    """A group's id for every row, as callers that never pass ends have it."""
    problem = fp8_problem(ids((3, 0, 9), 128), n=64, k=256)
    b, numbers = in_4_bits(3, 64, 256)
    d = problem.output(torch.float32)
    with gemmgen.simulate(arch, sms=2):
        if layout == "nt":
            ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, b, d, problem.layout.given, **WEIGHTS)
        else:
            turned = ops.transpose_packed_fp4(b[0]), b[1].mT
            ops.m_grouped_fp8_gemm_nn_contiguous(problem.a, turned, d, problem.layout.given, **WEIGHTS)
    check_groups(problem, d, numbers)


@pytest.mark.parametrize("arch", SCALING)
@pytest.mark.parametrize("name", ["fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_masked"])
def test_groups_that_have_a_matrix_each(arch: str, name: str) -> None:
    problem = fp8_problem(counts_of((3, 0, 6), 8), n=64, k=256)
    b, numbers = in_4_bits(3, 64, 256)
    d = problem.output(torch.float32)
    with gemmgen.simulate(arch, sms=2):
        getattr(ops, name)(problem.a, b, d, problem.layout.given, expected_m=4, **WEIGHTS)
    check_groups(problem, d, numbers)
    assert all(bool((d[group, count:] == SENTINEL).all()) for group, count in enumerate((3, 0, 6)))


def test_sm90_says_what_to_do_instead() -> None:
    """Of a grouped product, with the grouped operator."""
    a, b = fp8(8, 256, seed=1), fp4(24, 256, seed=2)
    grouped = b.data.expand(2, -1, -1).contiguous(), b.fp32[1].expand(2, -1, -1).contiguous()
    own = a.data.expand(2, -1, -1).contiguous(), a.fp32[1].expand(2, -1, -1).contiguous()
    ends, text = torch.tensor([3, 8], dtype=torch.int32), r"^b: 4-bit numbers .* this is sm90; .* give with {}$"
    with gemmgen.simulate("sm90"):
        with pytest.raises(UnsupportedArchitecture, match=text.format("bf16_gemm_nt")):
            ops.fp8_gemm_nt(a.fp32, b.fp32, **WEIGHTS, disable_ue8m0_cast=True)
        with pytest.raises(UnsupportedArchitecture, match=text.format("bf16_gemm_nt")):
            ops.fp8_gemm_nt(a.fp32, b.fp32, activation="relu", **WEIGHTS)
        with pytest.raises(UnsupportedArchitecture, match=text.format("m_grouped_bf16_gemm_nt_contiguous")):
            ops.m_grouped_fp8_gemm_nt_contiguous(a.fp32, grouped, None, ends, offsets=True, **WEIGHTS)
        with pytest.raises(UnsupportedArchitecture, match=text.format("m_grouped_bf16_gemm_nt_masked")):
            ops.fp8_m_grouped_gemm_nt_masked(own, grouped, None, ends, 4, **WEIGHTS)


def test_what_quantises_in_the_epilogue_names_the_operator_that_takes_4_bits() -> None:
    a, b = fp8(8, 256, seed=1), fp4(24, 256, seed=2)
    grouped = b.data.expand(2, -1, -1).contiguous(), b.fp32[1].expand(2, -1, -1).contiguous()
    ends = torch.tensor([3, 8], dtype=torch.int32)
    with gemmgen.simulate("sm100"):
        with pytest.raises(TypeError, match=r"^b: dtype is torch.int8; fp8_gemm_nt takes .*; fp8_fp4_gemm_nt takes"):
            ops.fp8_gemm_nt_mxfp8out(a.fp32, b.fp32, **WEIGHTS)
        text = r"^b: dtype is torch.int8; m_grouped_fp8_gemm_nt_contiguous takes .*; m_grouped_fp8_fp4_gemm_nt_contig"
        with pytest.raises(TypeError, match=text):
            ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(a.fp32, grouped, None, None, ends, offsets=True, **WEIGHTS)


def test_they_are_warmed_up_like_that() -> None:
    shapes = [(64, 256, 512)]
    assert ops.warmup("fp8_gemm_nt", shapes, arch="sm100", b=torch.int8, **WEIGHTS) == ops.warmup(
        "fp8_fp4_gemm_nt", shapes, arch="sm100", **WEIGHTS
    )


def test_all_codes_are_meant() -> None:
    """The problems above hold every 4-bit number, so that a wrong half or sign would show."""
    assert fp4(24, 256, seed=2).values.unique().tolist() == sorted({*FP4_VALUES, *(-value for value in FP4_VALUES)})
