"""Dequantisers are exact, and re-quantisation rounds each number once (P13)."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_tables import same, table

from gemmgen.ops import quantise
from gemmgen.ops.quantise.formats import encode_e4m3

E4M3 = [Fraction(text) for text in table("dtypes")["values"]["e4m3fn"] if text != "nan"]
E2M1 = [Fraction(text) for text in table("dtypes")["values"]["e2m1"]]
CODES = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8).view(torch.float8_e4m3fn)
SCALES = st.floats(2.0**-100, 2.0**100, width=32)


@given(scale=SCALES)
def test_every_fp8_product_is_exact_in_fp64(scale: float) -> None:
    got = quantise.cast_back_from_fp8(CODES[None], torch.tensor([[scale]]), 256, dtype=torch.float64)
    assert [Fraction(each) for each in got[0].tolist()] == [value * Fraction(scale) for value in E4M3]


@given(scale=SCALES, block=st.sampled_from(range(1, 127)))
def test_every_nvfp4_product_is_exact_in_fp64(scale: float, block: int) -> None:
    packed = quantise.pack_fp4(torch.arange(16, dtype=torch.uint8)[None])
    sf = torch.tensor([[block]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    got = quantise.cast_back_from_nvfp4(packed, sf, torch.tensor(scale), dtype=torch.float64)
    assert [Fraction(each) for each in got[0].tolist()] == [value * E4M3[block] * Fraction(scale) for value in E2M1]


def test_all_codes_of_fp4_at_the_ends_of_ue8m0() -> None:
    packed = quantise.pack_fp4(torch.arange(16, dtype=torch.uint8).expand(4, 16))
    sf = torch.tensor([[0], [1], [254], [255]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    back = quantise.cast_back_from_fp4(packed, sf, dtype=torch.float64)
    for row, exponent in enumerate((-127, -126, 127)):
        assert [Fraction(each) for each in back[row].tolist()] == [value * Fraction(2) ** exponent for value in E2M1]
    assert back[3].isnan().all()


def test_fp32_results_are_the_exact_ones_rounded_once() -> None:
    scales = torch.tensor([[0.1]])
    exact = quantise.cast_back_from_fp8(CODES[None], scales, 256, dtype=torch.float64)
    assert same(quantise.cast_back_from_fp8(CODES[None], scales, 256), exact.float())
    with pytest.raises(TypeError, match=r"^dtype: is torch.bfloat16; must be torch.float32 or torch.float64"):
        quantise.cast_back_from_fp8(CODES[None], scales, 256, dtype=torch.bfloat16)


def test_the_type_of_scales_says_how_they_are_read() -> None:
    x = torch.randn(9, 300, generator=torch.Generator().manual_seed(1))
    data, sf = quantise.per_token_cast_to_fp8(x, True, 32)
    want = quantise.cast_back_from_fp8(data, sf, 32)
    bytes_ = quantise.cast_to_mxfp8(x)[1]
    assert same(quantise.cast_back_from_fp8(data, bytes_, 32), want)
    assert same(quantise.cast_back_from_fp8(data, quantise.pack_ue8m0_to_int(sf), 32), want)
    laid = quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    assert same(quantise.cast_back_from_fp8(data, laid, 32), want)
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.uint8; .*never guessed"):
        quantise.cast_back_from_fp8(data, bytes_.view(torch.uint8), 32)


def test_data_and_scales_of_other_types_or_shapes_are_refused() -> None:
    data, sf = quantise.per_token_cast_to_fp8(torch.ones(4, 256), False)
    with pytest.raises(TypeError, match=r"^data: dtype is torch.float8_e5m2; must be torch.float8_e4m3fn$"):
        quantise.cast_back_from_fp8(data.view(torch.float8_e5m2), sf)
    with pytest.raises(TypeError, match=r"^packed: dtype is torch.uint8; .*pass packed.view\(torch.int8\)$"):
        quantise.cast_back_from_fp4(data.view(torch.uint8), sf)
    with pytest.raises(
        ValueError, match=r"^sf: shape is \(4, 2\) .*1 x 32 elements makes \(4, 8\); pass scales of that"
    ):
        quantise.cast_back_from_fp8(data, sf, 32)
    with pytest.raises(ValueError, match=r"^sf: shape is \(8, 2\) .*; pass sf\[:4, :2\]$"):
        quantise.cast_back_from_fp8(data, sf.repeat(2, 1))
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.float32; NVFP4 has UE4M3 scales"):
        quantise.cast_back_from_nvfp4(data.view(torch.int8), sf, torch.tensor(1.0))


@settings(max_examples=40)
@given(scale=SCALES)
def test_requantised_numbers_are_the_nearest_under_the_scale_rounded_up(scale: float) -> None:
    data, sf = quantise.requantise_to_ue8m0(CODES[None], torch.tensor([[scale]]), 256)
    new = Fraction(sf.item())
    assert Fraction(scale) <= new < 2 * Fraction(scale) and math.log2(new).is_integer()
    back = quantise.cast_back_from_fp8(data, sf, 256, dtype=torch.float64)[0].tolist()
    for value, got in zip(E4M3[::17], back[::17], strict=True):
        wanted = value * Fraction(scale) / new
        assert abs(Fraction(got) / new - wanted) == min(abs(wanted - each) for each in E4M3)


def test_powers_of_two_come_back_as_they_were() -> None:
    x = torch.randn(300, 200, generator=torch.Generator().manual_seed(2))
    for (data, sf), gran in (
        (quantise.per_token_cast_to_fp8(x, True, 32), (1, 32)),
        (quantise.per_block_cast_to_fp8(x, True), (128, 128)),
        (quantise.per_token_cast_to_fp4(x, True, 32), (1, 32)),
    ):
        again, scales = quantise.requantise_to_ue8m0(data, sf, gran[1], gran_mn=gran[0])
        assert same(again, data) and same(scales, sf)


def test_requantised_codes_lie_along_the_last_axis_however_the_old_ones_do() -> None:
    x = torch.randn(200, 256, generator=torch.Generator().manual_seed(4))
    for cast in (quantise.per_token_cast_to_fp8, quantise.per_token_cast_to_fp4):
        data, sf = cast(x, False)
        new, scales = quantise.requantise_to_ue8m0(data.T.contiguous().T, sf)
        wanted, wanted_scales = quantise.requantise_to_ue8m0(data, sf)
        assert new.is_contiguous() and same(new, wanted) and same(scales, wanted_scales)


@pytest.mark.parametrize("gran_mn", [1, 128])
def test_requantising_costs_at_most_half_a_step(gran_mn: int) -> None:
    x = torch.randn(200, 300, generator=torch.Generator().manual_seed(3))
    cast = quantise.per_token_cast_to_fp8 if gran_mn == 1 else quantise.per_block_cast_to_fp8
    data, sf = cast(x, False)
    assert not quantise.is_ue8m0(sf).any()
    new, scales = quantise.requantise_to_ue8m0(data, sf, gran_mn=gran_mn)
    quantise.check_ue8m0(scales)
    before = quantise.cast_back_from_fp8(data, sf, gran_mn=gran_mn, dtype=torch.float64)
    after = quantise.cast_back_from_fp8(new, scales, gran_mn=gran_mn, dtype=torch.float64)
    step = torch.maximum(
        before.abs() / 8, scales.repeat_interleave(128, 1)[:, :300].repeat_interleave(gran_mn, 0)[:200] * 2.0**-9
    )
    assert ((after - before).abs() <= step / 2).all()


def test_zero_and_nan_scales_keep_their_meaning() -> None:
    data = encode_e4m3(torch.full((3, 128), 8.0))
    new, sf = quantise.requantise_to_ue8m0(data, torch.tensor([[0.0], [math.nan], [-3.0]]))
    back = quantise.cast_back_from_fp8(new, sf)
    assert sf[0].item() == 2.0**-126 and back[0].eq(0).all() and back[1].isnan().all()
    assert back[2].eq(-24.0).all()
    with pytest.raises(TypeError, match=r"^sf: dtype is torch.int32; only torch.float32 scales can be other"):
        quantise.requantise_to_ue8m0(data, torch.zeros(3, 1, dtype=torch.int32))
