"""The reference itself: its decoder against torch, its sums against a loop written out."""

from __future__ import annotations

import math

import ml_dtypes
import pytest
import torch
from problems import fp8_problem, random_fp8_problem
from reference import check, decode, decode_operand, evaluate, exact_result, mn_major

from gemmgen import catalog
from gemmgen.catalog.dense_sm100 import Factor, PairShape, scaled_gemm_nt
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
    with pytest.raises(TypeError, match=r"^no meaning is written down for torch.int64"):
        decode(torch.zeros(1, dtype=torch.int64))


def test_every_e5m2_code() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2)
    ours, torchs = decode(codes), codes.double()
    assert torch.equal(ours.isnan(), torchs.isnan()) and int(ours.isnan().sum()) == 6
    assert torch.equal(ours.nan_to_num(0), torchs.nan_to_num(0))


def test_every_4_bit_pair() -> None:
    codes = torch.arange(256, dtype=torch.uint8)[:, None]
    for major, box in (("k", ("m", "k")), ("m", ("k", "m"))):
        ours = decode_operand(codes, Operand(name="a", dtype=DType.E2M1, box=box, major=major))
        low = torch.from_numpy((codes.numpy() & 15).view(ml_dtypes.float4_e2m1fn).astype("f8"))
        high = torch.from_numpy((codes.numpy() >> 4).view(ml_dtypes.float4_e2m1fn).astype("f8"))
        assert torch.equal(ours, torch.cat((low, high), dim=1))


def test_scale_words_low_byte_first() -> None:
    word = torch.tensor([[0x7F_01_80_FE]], dtype=torch.int64).to(torch.int32)
    powers = decode_operand(word, Operand(name="s", dtype=DType.UE8M0X4, box=("m", "k/128"), major="m"))
    assert powers.tolist() == [[2.0**127, 2.0, 2.0**-126, 1.0]]
    narrow = decode_operand(word, Operand(name="s", dtype=DType.UE4M3X4, box=("m", "k/64"), major="m"))
    assert narrow[0, 1:3].tolist() == [0, 2.0**-9] and narrow[0, 3].isnan()
    beyond = torch.tensor([[-1]], dtype=torch.int32)
    assert decode_operand(beyond, Operand(name="s", dtype=DType.UE8M0X4, box=("m", "k/128"))).isnan().all()


def test_scaled_4_bit_factors_against_a_loop() -> None:
    """Each operand with its own granularity; the last block is cut by k."""
    spec = scaled_gemm_nt(Factor(DType.E2M1, 32), Factor(DType.E5M2, 128), PairShape(32), DType.F32)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "a": torch.randint(0, 256, (3, 80), generator=generator).to(torch.uint8),
        "sfa": torch.randint(0, 2**31, (3, 2), generator=generator).to(torch.int32) & 0x03030303 | 0x7C7C7C7C,
        "b": torch.randn(2, 160, generator=generator).to(torch.float8_e5m2),
        "sfb": torch.randint(0, 2**31, (2, 1), generator=generator).to(torch.int32) & 0x03030303 | 0x7C7C7C7C,
    }
    product = evaluate(spec, tensors)
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    for m, n in ((0, 0), (2, 1), (1, 1)):
        total = 0.0
        for k in range(160):
            code = int(tensors["a"][m, k // 2]) >> 4 * (k % 2) & 15
            exponents = [
                int(tensors["sfa"][m, k // 128]) >> 8 * (k // 32 % 4) & 255,
                int(tensors["sfb"][n, k // 512]) >> 8 * (k // 128 % 4) & 255,
            ]
            a = values[code & 7] * (-1 if code & 8 else 1)
            total += a * tensors["b"][n, k].double().item() * 2.0 ** (sum(exponents) - 254)
        assert product[m, n].item() == pytest.approx(total, rel=1e-12)


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
