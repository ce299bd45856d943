"""Number formats against the fact tables, ml_dtypes and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_tables import layout_table

from gemmgen.sim import formats

TABLES = layout_table("dtypes")
NARROW = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
ML_DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}
F32_BITS = st.integers(0, (1 << 32) - 1)


def f32(bits: list[int] | np.ndarray) -> np.ndarray:
    return np.array(bits, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("fmt", [*NARROW, "ue8m0", "ue4m3"])
def test_values_of_all_codes(fmt: str) -> None:
    expected = np.array([float(v) for v in TABLES["values"]["e4m3fn" if fmt == "e4m3" else fmt]], dtype=np.float32)
    table = formats.decode_table(fmt)
    expected = expected[: table.size]  # ue4m3 ends at 0x7f
    np.testing.assert_array_equal(
        table.view(np.uint32)[~np.isnan(expected)], expected.view(np.uint32)[~np.isnan(expected)]
    )
    np.testing.assert_array_equal(np.isnan(table), np.isnan(expected))


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_values_of_16_bit_codes(fmt: str) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    expected = codes.view(ML_DTYPES[fmt]).astype(np.float32)
    np.testing.assert_array_equal(formats.decode(codes, fmt), expected)


def test_decode_of_32_bit_codes() -> None:
    codes = np.array([0x3F801FFF, 0x3F802000, 0xBF800001], dtype=np.uint32)
    np.testing.assert_array_equal(formats.decode(codes, "f32"), codes.view(np.float32))
    np.testing.assert_array_equal(formats.decode(codes, "tf32"), f32([0x3F800000, 0x3F802000, 0xBF800000]))


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format is 'e9m9'"):
        formats.decode(np.zeros(1, np.uint8), "e9m9")


@pytest.mark.parametrize("fmt", NARROW)
def test_conversion_table(fmt: str) -> None:
    column = 3 + NARROW.index(fmt)
    values = f32([int(row[0], 16) for row in TABLES["convert"]])
    expected = [int(row[column], 16) for row in TABLES["convert"]]
    assert formats.encode_rn_satfinite(values, fmt).tolist() == expected


@pytest.mark.parametrize("fmt", NARROW)
def test_narrow_rounding_of_random_values(fmt: str) -> None:
    """Random bits against ml_dtypes: in range they agree; out of range satfinite clamps."""
    rng = np.random.default_rng(1)
    largest = float(ml_dtypes.finfo(ML_DTYPES[fmt]).max)
    values = np.concatenate([rng.standard_normal(20000), rng.uniform(-largest, largest, 20000)]).astype(np.float32)
    values = np.clip(values, -largest, largest)
    expected = values.astype(ML_DTYPES[fmt]).view(np.uint8)
    np.testing.assert_array_equal(formats.encode_rn_satfinite(values, fmt), expected)


@given(bits=F32_BITS, fmt=st.sampled_from(NARROW))
def test_narrow_rounding_is_nearest(bits: int, fmt: str) -> None:
    value = f32([bits])
    code = formats.encode_rn_satfinite(value, fmt)
    if np.isnan(value[0]):
        assert code[0] == int(TABLES["convert_rule"]["nan_code"][fmt], 16)
        return
    finite = formats.decode_table(fmt)[np.isfinite(formats.decode_table(fmt))].astype(np.float64)
    clamped = float(np.clip(value[0], finite.min(), finite.max()))
    assert abs(float(formats.decode(code, fmt)[0]) - clamped) == np.abs(finite - clamped).min()


def test_ue8m0_table() -> None:
    rows = TABLES["ue8m0_convert"]["table"]
    values = f32([int(row[0], 16) for row in rows])
    for column, (rounding, satfinite) in enumerate([("rz", True), ("rp", True), ("rz", False), ("rp", False)], start=1):
        codes = formats.encode_ue8m0(values, rounding, satfinite)
        assert codes.tolist() == [int(row[column], 16) for row in rows], (rounding, satfinite)
    with pytest.raises(ValueError, match="rounding is 'rn'"):
        formats.encode_ue8m0(values, "rn")


@given(bits=F32_BITS)
def test_ue8m0_brackets_the_magnitude(bits: int) -> None:
    magnitude = np.abs(f32([bits])).astype(np.float64)
    if np.isfinite(magnitude[0]) and 2.0**-127 <= magnitude[0] <= 2.0**127:
        down, up = (float(formats.decode(formats.encode_ue8m0(f32([bits]), r), "ue8m0")[0]) for r in ("rz", "rp"))
        assert down <= magnitude[0] <= up <= 2 * down


@pytest.mark.parametrize(("fmt", "encode"), [("bf16", formats.encode_bf16), ("f16", formats.encode_f16)])
def test_16_bit_nearest(fmt: str, encode) -> None:
    rng = np.random.default_rng(2)
    values = f32(rng.integers(0, 1 << 32, 50000, dtype=np.uint64).astype(np.uint32))
    with np.errstate(all="ignore"):
        expected = values.astype(ML_DTYPES[fmt]).view(np.uint16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values)[number], expected[number])
    assert set(encode(values)[~number].tolist()) == {0x7FFF}


@given(bits=F32_BITS)
def test_16_bit_towards_zero(bits: int) -> None:
    value = f32([bits])
    for fmt, encode in (("bf16", formats.encode_bf16), ("f16", formats.encode_f16)):
        code = int(encode(value, "rz")[0])
        if np.isnan(value[0]):
            assert code == 0x7FFF
        elif np.isinf(value[0]):
            assert np.isinf(formats.decode(np.array([code], np.uint16), fmt)[0])
        else:
            below, above = formats.decode(np.array([code, code + 1], np.uint16), fmt)
            assert abs(Fraction(float(below))) <= abs(Fraction(float(value[0])))
            assert np.isinf(above) or abs(Fraction(float(value[0]))) < abs(Fraction(float(above)))


def test_16_bit_satfinite() -> None:
    values = np.array([np.inf, -np.inf, 70000.0, np.nan, 1.0], dtype=np.float32)
    assert [hex(c) for c in formats.encode_f16(values, satfinite=True)] == [
        "0x7bff",
        "0xfbff",
        "0x7bff",
        "0x7fff",
        "0x3c00",
    ]
    assert [hex(c) for c in formats.encode_bf16(values, satfinite=True)][:2] == ["0x7f7f", "0xff7f"]


def test_tf32_ties() -> None:
    """Halfway between two tf32 values: away from zero (rna), to even (rn), cut (rz)."""
    values = f32([0x3F801000, 0x3F803000, 0xBF801000, 0x3F800FFF])
    assert [hex(c) for c in formats.encode_tf32(values, "rna")] == [
        "0x3f802000",
        "0x3f804000",
        "0xbf802000",
        "0x3f800000",
    ]
    assert [hex(c) for c in formats.encode_tf32(values, "rn")] == [
        "0x3f800000",
        "0x3f804000",
        "0xbf800000",
        "0x3f800000",
    ]
    assert [hex(c) for c in formats.encode_tf32(values, "rz")] == [
        "0x3f800000",
        "0x3f802000",
        "0xbf800000",
        "0x3f800000",
    ]


def test_tf32_of_nan() -> None:
    values = f32([0x7FC00000, 0xFFAF4D11, 0x7F800001, 0xFF800000])
    cut = ["0x7fc00000", "0xffaf4000", "0x7f800000", "0xff800000"]
    assert [hex(c) for c in formats.encode_tf32(values, "rna")] == cut
    for rounding in ("rn", "rz"):
        assert [hex(c) for c in formats.encode_tf32(values, rounding)] == ["0x7fffe000"] * 3 + ["0xff800000"]


@given(bits=F32_BITS)
def test_tf32_rounding_is_nearest(bits: int) -> None:
    value = f32([bits])
    if np.isfinite(value[0]) and abs(value[0]) < 3e38:
        for rounding in ("rna", "rn"):
            code = formats.encode_tf32(value, rounding)
            assert code[0] & 0x1FFF == 0
            step = Fraction(float(f32([int(code[0]) & 0x7FFFFFFF | 0])[0]))
            above = Fraction(float(f32([(int(code[0]) & 0x7FFFFFFF) + 0x2000])[0]))
            assert abs(abs(Fraction(float(value[0]))) - step) * 2 <= above - step


def test_relu_and_flush() -> None:
    values = f32([0x80000000, 0xBF800000, 0x3F800000, 0x7FC00000])
    assert [hex(b) for b in formats.relu(values).view(np.uint32)] == ["0x0", "0x0", "0x3f800000", "0x7fc00000"]
    subnormal = np.array([0x00000001, 0x807FFFFF, 0x00800000, 0x7F800001], dtype=np.uint32)
    assert [hex(b) for b in formats.flush_subnormals(subnormal)] == ["0x0", "0x80000000", "0x800000", "0x7f800001"]


def test_pairs_put_the_first_operand_high() -> None:
    high, low = np.array([0x1234], np.uint16), np.array([0xABCD], np.uint16)
    assert formats.pack_pair(high, low, 16).tolist() == [0x1234ABCD]
    assert formats.pack_pair(high.astype(np.uint8), low.astype(np.uint8), 8).tolist() == [0x34CD]
