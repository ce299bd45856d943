"""Codes of e4m3, e2m1, UE8M0 and UE4M3 against the tables of the formats and ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scale_tables import floats_of_bits, table

from gemmgen.ops.quantise import formats

CONVERT = table("dtypes")["convert"]
DECODERS = {"e4m3fn": formats.decode_e4m3, "e2m1": formats.decode_e2m1, "ue8m0": formats.decode_ue8m0}


@pytest.mark.parametrize("name", DECODERS)
def test_every_code_has_the_value_of_the_table(name: str) -> None:
    values = [float(text) for text in table("dtypes")["values"][name]]
    decoded = DECODERS[name](torch.arange(len(values), dtype=torch.uint8))
    assert decoded.dtype == torch.float32
    for code, (want, got) in enumerate(zip(values, decoded.tolist(), strict=True)):
        assert (math.isnan(want) and math.isnan(got)) or (
            want == got and math.copysign(1, want) == math.copysign(1, got)
        ), code


def test_ue4m3_is_e4m3_without_a_sign() -> None:
    values = [float(text) for text in table("dtypes")["values"]["ue4m3"][:128]]
    decoded = formats.decode_e4m3(torch.arange(128, dtype=torch.uint8)).tolist()
    assert decoded[:127] == values[:127] and math.isnan(decoded[127]) and math.isnan(values[127])


def test_float32_converts_to_e4m3_as_the_table_says() -> None:
    codes = formats.encode_e4m3(floats_of_bits([row[0] for row in CONVERT])).view(torch.uint8).tolist()
    assert [f"{code:#04x}" for code in codes] == [row[3] for row in CONVERT]


def test_float32_converts_to_e2m1_as_the_table_says() -> None:
    codes = formats.encode_e2m1(floats_of_bits([row[0] for row in CONVERT])).tolist()
    assert [f"{code:#04x}" for code in codes] == [row[5] for row in CONVERT]


@pytest.mark.parametrize("encode", [formats.encode_e4m3, formats.encode_e2m1])
def test_float64_converts_like_float32_where_both_hold_the_number(encode) -> None:  # type: ignore[no-untyped-def]
    values = floats_of_bits([row[0] for row in CONVERT])
    assert torch.equal(encode(values.double()).view(torch.uint8), encode(values).view(torch.uint8))


@pytest.mark.parametrize(
    ("encode", "decode", "form"),
    [
        (formats.encode_e4m3, formats.decode_e4m3, "e4m3fn"),
        (formats.encode_e2m1, formats.decode_e2m1, "e2m1"),
    ],
)
@given(value=st.floats(-500, 500, width=64))
def test_float64_is_rounded_once_to_the_nearest(encode, decode, form: str, value: float) -> None:  # type: ignore[no-untyped-def]
    finite = sorted({Fraction(text) for text in table("dtypes")["values"][form] if text not in ("nan", "-0.0")})
    code = encode(torch.tensor([value], dtype=torch.float64))
    got = Fraction(decode(code).item())
    nearest = min(abs(Fraction(value) - each) for each in finite)
    assert abs(Fraction(value) - got) == nearest
    ties = [each for each in finite if abs(Fraction(value) - each) == nearest]
    assert len(ties) == 1 or code.view(torch.uint8).item() % 2 == 0


def test_a_number_just_above_a_tie_is_not_lost_on_the_way_through_float32() -> None:
    above = 1.0625 + 2.0**-40
    assert float(np.float32(above)) == 1.0625
    codes = formats.encode_e4m3(torch.tensor([1.0625, above], dtype=torch.float64))
    assert formats.decode_e4m3(codes).tolist() == [1.0, 1.125]


def test_fp4_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert formats.decode_e2m1(formats.encode_e2m1(ties)).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_codes_of_random_bits_are_those_of_ml_dtypes() -> None:
    bits = torch.randint(0, 256, (1 << 16, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    values = bits.view(torch.float32).flatten()
    values = values[values.isfinite() & (values.abs() <= 448)]
    want = values.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(formats.encode_e4m3(values).view(torch.uint8).numpy(), want)
    small = values.clamp(-6, 6)
    want = small.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    assert np.array_equal(formats.encode_e2m1(small).numpy(), want)


def test_ue4m3_scales_stay_between_2_to_the_minus_9_and_448() -> None:
    values = torch.tensor([0.0, 1e-9, 2.0**-9, 1.0, 1.06, 448.0, 1e9, float("nan")])
    scales = formats.decode_e4m3(formats.encode_ue4m3(values)).tolist()
    assert scales[:-1] == [2.0**-9, 2.0**-9, 2.0**-9, 1.0, 1.0, 448.0, 448.0] and math.isnan(scales[-1])


def test_the_even_element_is_in_the_low_nibble() -> None:
    packed = formats.pack_fp4(torch.tensor([[1, 2, 15, 8]], dtype=torch.uint8))
    assert packed.dtype == torch.int8 and packed.view(torch.uint8).tolist() == [[0x21, 0x8F]]


@given(rows=st.integers(0, 5), pairs=st.integers(0, 9), seed=st.integers(0, 99))
def test_unpacking_undoes_packing(rows: int, pairs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, 2 * pairs), dtype=torch.uint8, generator=generator)
    assert torch.equal(formats.unpack_fp4(formats.pack_fp4(codes)), codes)


def test_transposing_packed_fp4_transposes_numbers_not_bytes() -> None:
    codes = torch.arange(6 * 8, dtype=torch.uint8).view(6, 8) % 16
    packed = formats.pack_fp4(codes)
    turned = formats.transpose_packed_fp4(packed)
    assert torch.equal(formats.unpack_fp4(turned), codes.T)
    assert torch.equal(formats.transpose_packed_fp4(turned), packed)
    stack = formats.transpose_packed_fp4(packed.expand(3, -1, -1))
    assert all(torch.equal(each, turned) for each in stack)


def test_odd_numbers_of_fp4_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^codes: the last dimension is 3; .* must be even; pad with a zero$"):
        formats.pack_fp4(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"^packed: has 5 rows; .* so pad to 6$"):
        formats.transpose_packed_fp4(torch.zeros(5, 4, dtype=torch.int8))
