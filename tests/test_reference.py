"""The reference itself: its decoder against torch, its sums against a loop written out."""

from __future__ import annotations

import math

import pytest
import torch
from problems import fp8_problem, random_fp8_problem
from reference import check, decode, evaluate, exact_result, mn_major

from gemmgen import catalog
from gemmgen.ir import Bias, DType, Operand, Residual, Scale

SPEC = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), DType.F32)


def test_every_e4m3_code() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    ours, torchs = decode(codes), codes.double()
    assert torch.equal(ours.isnan(), torchs.isnan()) and int(ours.isnan().sum()) == 2
    assert torch.equal(ours.nan_to_num(0), torchs.nan_to_num(0))
    assert ours[0x7E] == 448 and ours[0x01] == 2.0**-9 and math.copysign(1, ours[0x80].item()) == -1


def test_bf16_is_the_upper_half_of_fp32() -> None:
    values = torch.randn(64).to(torch.bfloat16)
    assert torch.equal(decode(values), values.double())
    with pytest.raises(TypeError, match=r"^no meaning is written down for torch.float16"):
        decode(torch.zeros(1, dtype=torch.float16))


@pytest.mark.parametrize("columns", [128, 1])
def test_block_scales_against_a_loop(columns: int) -> None:
    problem = random_fp8_problem(3, 130, 200, columns)
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), DType.F32, sfb_columns=columns)
    product = evaluate(spec, problem.tensors)
    a, b = problem.a.double(), problem.b.double()
    for m, n in ((0, 0), (2, 127), (1, 128), (2, 129)):
        total = 0.0
        for k in range(200):
            scale = problem.sfa[m, k // 128].double() * problem.sfb[n // columns, k // 128].double()
            total += float(a[m, k] * b[n, k] * scale)
        assert product[m, n].item() == pytest.approx(total, rel=1e-12)


def test_epilogue_steps_in_order() -> None:
    operands = (
        Operand(name="alpha", dtype=DType.F32, box=()),
        Operand(name="bias", dtype=DType.F32, box=("m",)),
        Operand(name="c", dtype=DType.F32, box=("m", "n")),
        Operand(name="beta", dtype=DType.F32, box=()),
    )
    steps = (Scale(by="alpha"), Bias(vector="bias"), Residual(matrix="c", beta="beta"))
    spec = SPEC.replace(operands=(*SPEC.operands, *operands), epilogue=(*steps, *SPEC.epilogue))
    problem = fp8_problem(2, 16, 128)
    extra = {"bias": torch.tensor([1.0, 10.0]), "c": torch.ones(2, 16)}
    result = evaluate(spec, {**problem.tensors, **extra}, {"alpha": 2.0, "beta": -3.0})
    product = evaluate(SPEC, problem.tensors)
    assert torch.equal(result[1], product[1] * 2 + 10 - 3)


def test_a_wrong_element_is_found_and_named() -> None:
    problem = random_fp8_problem(4, 16, 256)
    d = evaluate(SPEC, problem.tensors).float()
    check(d, SPEC, problem.tensors)
    d[2, 7] *= 1.01
    with pytest.raises(AssertionError, match=r"element \(2, 7\) is .*; 1 of 64 elements are wrong"):
        check(d, SPEC, problem.tensors)
    d[2, 7] = torch.nan
    with pytest.raises(AssertionError, match=r"element \(2, 7\) is nan"):
        check(d, SPEC, problem.tensors)


def test_exact_results_insist_on_exact_inputs() -> None:
    with pytest.raises(AssertionError, match="not exact in fp32"):
        exact_result(SPEC, random_fp8_problem(4, 16, 256).tensors)


def test_mn_major_scales_are_the_same_numbers() -> None:
    scales = torch.rand(7, 3)
    assert torch.equal(mn_major(scales), scales) and mn_major(scales).stride() == (1, 8)
