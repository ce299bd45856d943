"""Operators of datacenter Blackwell on the simulator, bit for bit: sums are exact, decoders are the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from problems import bf16_problem, whole_numbers
from sm100_problems import Factor, fp4, fp8, nvfp4, product

import gemmgen
from gemmgen import ops
from gemmgen.ops import scales

PAIRS = ((128, 128), (32, 32), (32, 128), (128, 32))


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm100", sms=2):
        yield


def same(d: torch.Tensor, expected: torch.Tensor) -> None:
    assert d.dtype == expected.dtype and torch.equal(d, expected)


# ------------------------------------------------------------------------------------------------ e4m3


@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 32), (17, 24, 160), (129, 40, 96), (130, 136, 512)])
def test_fp8_shapes(m: int, n: int, k: int) -> None:
    a, b = fp8(m, k, seed=1), fp8(n, k, (128, 128), seed=2)
    same(ops.fp8_gemm_nt(a.fp32, b.fp32), product(a, b))


def test_scales_that_are_no_powers_of_two_are_nan_where_they_count_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, where nobody looks at them (P13): never a number that is a little off."""
    monkeypatch.setattr(scales, "looks_at_content", lambda device: False)
    a, b = fp8(17, 256, seed=1), fp8(24, 256, seed=2)
    (data_a, sfa), (data_b, sfb) = a.fp32, b.fp32
    sfa, sfb = sfa.clone(), sfb.clone()
    sfa[3, 1], sfb[7, 0], sfb[20, 1] = 0.0123, -sfb[7, 0], 1.5 * sfb[20, 1]
    d, expected = ops.fp8_gemm_nt((data_a, sfa), (data_b, sfb)), product(a, b)
    bad = torch.zeros(17, 24, dtype=torch.bool)
    bad[3, :], bad[:, 7], bad[:, 20] = True, True, True
    assert torch.equal(d.isnan(), bad) and torch.equal(d[~bad], expected[~bad])


@pytest.mark.parametrize(("block_a", "block_b"), PAIRS)
def test_granularities_of_k_are_independent(block_a: int, block_b: int) -> None:
    """Trap 5 and 6: each factor has its own; words hold NaN beyond k, which must not leak (trap 50)."""
    a, b = fp8(17, 672, (1, block_a), seed=1), fp8(40, 672, (1, block_b), seed=2)
    d = ops.fp8_gemm_nt(a.words, b.words, recipe_a=(1, block_a), recipe_b=(1, block_b), out_dtype=torch.float32)
    same(d, product(a, b, torch.float32))


def test_every_form_of_scales_gives_the_same_bits() -> None:
    a, b = fp8(17, 160, (1, 32), seed=1), fp8(24, 160, (1, 32), seed=2)
    expected = product(a, b)
    blocked = [
        (each.data, ops.Blocked128x4(ops.to_blocked_128x4(each.codes.view(torch.float8_e8m0fnu)))) for each in (a, b)
    ]
    square = [(data, ops.Blocked128x4(scales.scales.view(-1, 32, 16))) for data, scales in blocked]
    row_major = [(each.data, each.words[1].contiguous()) for each in (a, b)]
    forms = ((a.words, b.words), (a.fp32, b.fp32), (a.e8m0, b.e8m0), blocked, square, row_major)
    for form_a, form_b in (*forms, (a.fp32, blocked[1]), (blocked[0], b.words)):
        same(ops.fp8_gemm_nt(form_a, form_b, recipe=(1, 1, 32)), expected)


def test_scales_of_128_rows_are_spread() -> None:
    a, b = fp8(5, 160, (128, 128), seed=1), fp8(136, 160, (128, 128), seed=2)
    expected = product(a, b)
    for form in ("fp32", "words", "e8m0"):
        pairs = getattr(a, form), getattr(b, form)
        same(ops.fp8_gemm_nt(*pairs, recipe_a=(128, 128), recipe_b=(128, 128)), expected)
    rows = Factor(b.data, b.values, b.codes.repeat_interleave(128, 0)[:136], b.scales, b.gran)
    same(ops.fp8_gemm_nt(a.words, rows.words, recipe_a=(128, 128), recipe_b=(1, 128)), expected)


def test_by_default_the_number_of_scales_of_b_decides() -> None:
    a, squares, rows = fp8(5, 256, seed=1), fp8(136, 256, (128, 128), seed=2), fp8(136, 256, seed=3)
    same(ops.fp8_gemm_nt(a.fp32, squares.fp32), product(a, squares))
    same(ops.fp8_gemm_nt(a.fp32, rows.fp32), product(a, rows))
    same(ops.fp8_gemm_nt(a.words, rows.words), product(a, rows))


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_transposed_factors_and_scales(layout: str) -> None:
    a, b = fp8(16, 160, (1, 32), seed=1), fp8(144, 160, (1, 32), seed=2)
    given_a = tuple(each.T.contiguous() for each in a.fp32) if layout[0] == "t" else a.fp32
    given_b = tuple(each.T.contiguous() for each in b.fp32) if layout[1] == "n" else b.fp32
    same(getattr(ops, f"fp8_gemm_{layout}")(given_a, given_b, recipe=(1, 1, 32)), product(a, b))


# ------------------------------------------------------------------------------------------------ 4-bit


@pytest.mark.parametrize(("block_a", "block_b"), [(128, 32), (32, 32)])
def test_fp8_by_fp4_and_back(block_a: int, block_b: int) -> None:
    a, b = fp8(17, 256, (1, block_a), seed=1), fp4(40, 256, (1, block_b), seed=2)
    recipe = {"recipe_a": (1, block_a), "recipe_b": (1, block_b)}
    same(ops.fp8_fp4_gemm_nt(a.words, b.words, **recipe), product(a, b))
    turned = {"recipe_a": (1, block_b), "recipe_b": (1, block_a)}
    same(ops.fp8_fp4_gemm_nt(b.fp32, a.fp32, **turned, out_dtype=torch.float32), product(b, a, torch.float32))


def test_fp4_by_fp4_at_any_granularity() -> None:
    a, b = fp4(17, 128, (1, 128), seed=1), fp4(24, 128, (1, 32), seed=2)
    same(ops.fp8_fp4_gemm_nt(a.fp32, b.fp32, recipe_a=(1, 128), recipe_b=(1, 32)), product(a, b))


def test_4_bit_data_is_paired_along_its_contiguous_axis_in_every_layout() -> None:
    """Trap 41: pairs along n are paired anew by a layout kernel, which no transpose of bytes does."""
    a, b = fp8(16, 256, (1, 32), seed=1), fp4(24, 256, seed=2)
    transposed = b.data.T, b.fp32[1].T
    same(ops.fp8_fp4_gemm_nn(a.fp32, transposed, recipe=(1, 1, 32)), product(a, b))
    paired_along_n = ops.transpose_packed_fp4(b.data)  # [k, n/2]
    again = ops.transpose_packed_fp4(paired_along_n)
    same(ops.fp8_fp4_gemm_nt(a.fp32, (again, b.fp32[1]), recipe=(1, 1, 32)), product(a, b))
    same(ops.fp8_fp4_gemm_nn(a.fp32, (paired_along_n, b.fp32[1].T), recipe=(1, 1, 32)), product(a, b))
    four = fp4(16, 256, seed=3)
    paired_along_m = ops.transpose_packed_fp4(four.data), four.fp32[1].T
    same(ops.fp8_fp4_gemm_tt(paired_along_m, b.fp32, recipe=(1, 1, 32)), product(four, b))


@pytest.mark.parametrize("k", [160, 192, 320])
@pytest.mark.parametrize("arch", ["sm100", "sm120"])
def test_4_bit_data_beside_8_bit_data_whose_k_is_no_multiple_of_128(k: int, arch: str) -> None:
    """TMA reads 128 at a time: what is turned has room, as has what was cut from wider rows, of any numbers."""
    a, b = fp8(17, k, (1, 32), seed=1), fp4(40, k, seed=2)
    paired_along_n = ops.transpose_packed_fp4(b.data), b.fp32[1].T
    wide = torch.randint(-128, 128, (40, 256), dtype=torch.int8)
    wide[:, : k // 2] = b.data
    with gemmgen.simulate(arch):
        same(ops.fp8_fp4_gemm_nn(a.fp32, paired_along_n, recipe=(1, 1, 32)), product(a, b))
        same(ops.fp8_fp4_gemm_nt(a.fp32, (wide[:, : k // 2], b.fp32[1]), recipe=(1, 1, 32)), product(a, b))
        last = wide[-1:, : k // 2], b.fp32[1][-1:]
        same(ops.fp8_fp4_gemm_nt(last, a.fp32, recipe=(1, 1, 32)), product(b, a)[-1:])


@pytest.mark.parametrize(("m", "n", "k"), [(17, 24, 96), (130, 40, 320)])
def test_mxfp4(m: int, n: int, k: int) -> None:
    a, b = fp4(m, k, seed=1), fp4(n, k, seed=2)
    same(ops.mxfp4_gemm_nt(a.words, b.e8m0), product(a, b))


def test_mxfp4_takes_torchs_own_type_and_is_what_fp8_fp4_runs() -> None:
    a, b = fp4(9, 96, seed=1), fp4(24, 96, seed=2)
    own = [(each.data.view(torch.float4_e2m1fn_x2), each.e8m0[1]) for each in (a, b)]
    same(ops.mxfp4_gemm_nt(*own), product(a, b))
    same(ops.fp8_fp4_gemm_nt(*own, recipe=(1, 1, 32)), product(a, b))


def nvfp4_forms(factor: Factor) -> list[tuple[object, ...]]:
    """UE4M3 scales as torch has them, in blocks, and in words."""
    sf = factor.codes.view(torch.float8_e4m3fn)
    return [(factor.data, sf), (factor.data, ops.Blocked128x4(ops.to_blocked_128x4(sf))), factor.words]


def test_nvfp4_in_every_form_with_every_factor() -> None:
    a, b = nvfp4(17, 224, seed=1), nvfp4(40, 224, seed=2)
    exact = product(a, b, torch.float32)
    c = whole_numbers(17, 40, torch.float32)
    forms = zip(nvfp4_forms(a), nvfp4_forms(b), strict=True)
    for form_a, form_b in forms:
        same(ops.nvfp4_gemm_nt(form_a, form_b, out_dtype=torch.float32), exact)
    scaled_a, scaled_b = (*nvfp4_forms(a)[0], torch.tensor(0.25)), (*nvfp4_forms(b)[0], 4.0)
    same(ops.nvfp4_gemm_nt(scaled_a, scaled_b, alpha=0.5, c=c), exact * 0.5 + c)


def test_what_the_quantisers_make_multiplies_to_what_was_quantised() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(16, 512, generator=generator), torch.randn(24, 512, generator=generator)
    exact = x.double() @ y.double().T
    for d, error in (
        (ops.mxfp4_gemm_nt(ops.cast_to_mxfp4(x), ops.cast_to_mxfp4(y)), 0.3),
        (ops.nvfp4_gemm_nt(ops.cast_to_nvfp4(x), ops.cast_to_nvfp4(y)), 0.2),
        (ops.fp8_gemm_nt(ops.cast_to_mxfp8(x), ops.cast_to_mxfp8(y), recipe=(1, 1, 32)), 0.06),
    ):
        assert (d.double() - exact).norm() < error * exact.norm()


# ------------------------------------------------------------------------------------------------ outputs, bf16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "width"), [(16, 40), (33, 47), (1, 1)])
def test_outputs_with_and_without_tma(n: int, width: int, dtype: torch.dtype) -> None:
    a, b = fp8(9, 128, seed=1), fp8(n, 128, seed=2)
    frame = torch.full((11, width), 99.0, dtype=dtype)
    view = frame[1:10, width - n :]
    assert ops.fp8_gemm_nt(a.words, b.words, view) is view
    same(view, product(a, b, dtype))
    view.fill_(99.0)
    assert bool((frame == 99.0).all())


def test_residual_in_place() -> None:
    a, b = fp8(9, 128, seed=1), fp8(24, 128, seed=2)
    c = whole_numbers(9, 24, torch.float32)
    expected = product(a, b, torch.float32) + c
    version = c._version
    same(ops.fp8_gemm_nt(a.fp32, b.fp32, c, c), expected)
    assert c._version > version


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_bf16_layouts(layout: str) -> None:
    a, b = bf16_problem(16, 72, 104)
    given = (a.T.contiguous() if layout[0] == "t" else a, b.T.contiguous() if layout[1] == "n" else b)
    c = whole_numbers(16, 72, torch.float32)
    same(getattr(ops, f"bf16_gemm_{layout}")(*given, c=c), (a.double() @ b.double().T + c).float())


def test_k_of_zero_gives_c_or_zeros_and_empty_outputs_launch_nothing() -> None:
    c = whole_numbers(5, 16, torch.bfloat16)
    for call, a, b in (
        (ops.fp8_gemm_nt, fp8(5, 0).fp32, fp8(16, 0).fp32),
        (ops.mxfp4_gemm_nt, fp4(5, 0).e8m0, fp4(16, 0).e8m0),
        (ops.fp8_fp4_gemm_nt, fp8(5, 0).fp32, fp4(16, 0, (1, 128)).fp32),
        (ops.nvfp4_gemm_nt, nvfp4(5, 0).words, nvfp4(16, 0).words),
        (ops.bf16_gemm_nt, *bf16_problem(5, 16, 0)),
    ):
        d = torch.full((5, 16), torch.nan, dtype=torch.bfloat16)
        assert not call(a, b, d).any()
        same(call(a, b, c=c), c)
    assert ops.fp8_gemm_nt(fp8(0, 128).fp32, fp8(16, 128).fp32).shape == (0, 16)
    assert ops.mxfp4_gemm_nt(fp4(8, 96).e8m0, fp4(0, 96).e8m0).shape == (8, 0)


@pytest.mark.parametrize("schedule", ["late", "random"])
def test_a_pair_of_ctas_under_every_schedule(schedule: str) -> None:
    """More rows than one CTA has on a device that its tiles fill."""
    a, b = fp8(200, 640, seed=1), fp8(232, 640, (128, 128), seed=2)
    assert ops.spec_for("fp8_gemm_nt", 200, 232, 640, 2, arch="sm100").cluster.m == 2
    with gemmgen.simulate("sm100", schedule, seed=3, sms=2):
        same(ops.fp8_gemm_nt(a.fp32, b.fp32), product(a, b))
