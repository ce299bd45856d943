"""UE8M0 scales are rounded up, exactly, before data is quantised; afterwards they are kept or NaN (P13, P17)."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scale_tables import floats_of_bits, same, table

from gemmgen.ops import quantise
from gemmgen.ops.quantise.ue8m0 import ue8m0_scale

POSITIVE = st.floats(0, width=32, allow_infinity=False)
LARGEST = pytest.mark.parametrize("largest", [448.0, 6.0])
EXAMPLES = {448.0: {1.0: -8, 448.0: 0, 450.0: 1, 256.0: 0, 224.0: -1}, 6.0: {1.0: -2, 6.0: 0, 7.0: 1, 3.0: -1, 4.0: 0}}
"""log2 of the scale by largest code and amax: where rounding to the nearest, down, or "floor of amax" would differ."""


@LARGEST
def test_which_rule_it_is(largest: float) -> None:
    for amax, exponent in EXAMPLES[largest].items():
        assert ue8m0_scale(torch.tensor([amax]), largest).item() == 127 + exponent, amax


@LARGEST
@given(amax=POSITIVE)
def test_the_scale_is_the_smallest_power_of_two_that_does_not_saturate(largest: float, amax: float) -> None:
    byte = ue8m0_scale(torch.tensor([amax]), largest).item()
    scale = Fraction(2) ** (byte - 127)
    assert 1 <= byte <= 254 and Fraction(amax) <= Fraction(largest) * scale
    assert byte == 1 or Fraction(amax) > Fraction(largest) * scale / 2


@LARGEST
def test_dividing_first_and_rounding_up_then_is_the_same(largest: float) -> None:
    """``ceil_to_ue8m0(amax / largest)`` in fp32 is how others put the rule: equal next to every edge."""
    edges = torch.tensor([largest * 2.0**e for e in range(-100, 110)])
    near = edges.view(torch.int32)[:, None] + torch.arange(-300, 301, dtype=torch.int32)
    amax = near.view(torch.float32).flatten()
    divided = quantise.ceil_to_ue8m0(amax / torch.full_like(amax, largest))
    assert same(quantise.decode_ue8m0(ue8m0_scale(amax, largest)), divided)


@LARGEST
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, -math.nan])
def test_the_scale_of_what_is_not_finite_is_nan(largest: float, bad: float) -> None:
    assert ue8m0_scale(torch.tensor([bad]), largest).item() == 0xFF


def test_rounding_a_scale_up_agrees_with_the_conversion_table() -> None:
    """Among scales that are powers of two from 2**-126 up: the table's conversion toward +Inf."""
    rows = table("dtypes")["ue8m0_convert"]["table"]
    values = floats_of_bits([row[0] for row in rows])
    codes = torch.tensor([int(row[2], 16) for row in rows], dtype=torch.uint8)
    inside = (values.abs() > 2.0**-126) & (values.abs() <= 2.0**127)
    assert inside.sum() > 150
    assert same(quantise.ceil_to_ue8m0(values[inside]), quantise.decode_ue8m0(codes[inside]))
    assert quantise.ceil_to_ue8m0(torch.tensor([0.0, 1e-45])).tolist() == [2.0**-126] * 2
    assert quantise.ceil_to_ue8m0(torch.tensor([2.0**127, 1.01 * 2.0**127])).isnan().tolist() == [False, True]


def test_four_bytes_a_word_the_first_lowest_and_zeros_behind() -> None:
    sf = torch.tensor([[2.0**e for e in (0, 1, 2, 3, -127, 127)]])
    packed = quantise.pack_ue8m0_to_int(sf)
    assert [f"{word & 0xFFFFFFFF:#010x}" for word in packed[0].tolist()] == ["0x8281807f", "0x0000fe00"]
    assert quantise.unpack_ue8m0_from_int(packed).shape == (1, 8)
    assert same(quantise.unpack_ue8m0_from_int(packed, 6), sf)


@given(shape=st.tuples(st.integers(0, 4), st.integers(0, 9)), seed=st.integers(0, 99), step=st.integers(1, 3))
def test_unpacking_undoes_packing_from_any_type_and_stride(shape: tuple[int, int], seed: int, step: int) -> None:
    rows, columns = shape
    bytes_ = torch.randint(
        0, 256, (rows, columns * step), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    codes = bytes_[:, ::step]
    values = quantise.decode_ue8m0(codes)
    packed = quantise.pack_ue8m0_to_int(codes.view(torch.float8_e8m0fnu))
    assert packed.shape == (rows, -(-columns // 4)) and packed.is_contiguous()
    assert same(quantise.unpack_ue8m0_from_int(packed, columns), values)
    assert same(quantise.unpack_ue8m0_from_int(packed.T.contiguous().T, columns), values)
    assert same(quantise.unpack_ue8m0_from_int(quantise.pack_ue8m0_to_int(values), columns), values)


@given(bits=st.integers(-(2**31), 2**31 - 1), whole=st.booleans())
def test_packing_keeps_a_scale_or_makes_it_nan(bits: int, whole: bool) -> None:
    """Never the next power of two, up or down: data that is quantised already would not follow."""
    sf = torch.tensor([[bits & -(1 << 23) if whole else bits]], dtype=torch.int32).view(torch.float32)
    value, packed = sf.item(), quantise.unpack_ue8m0_from_int(quantise.pack_ue8m0_to_int(sf), 1).item()
    if math.frexp(value)[0] == 0.5 and value >= 2.0**-127:
        assert packed == value
    elif bits & -(1 << 23 if whole else 1) == 0:
        assert packed == 2.0**-127
    else:
        assert math.isnan(packed)


@pytest.mark.parametrize(
    "sf", [0.0123, 3.0, 1.5, -1.0, -0.0, -(2.0**-127), math.inf, -math.inf, math.nan, 1e-40, 2.0**-128]
)
def test_what_ue8m0_cannot_hold_becomes_nan(sf: float) -> None:
    assert quantise.pack_ue8m0_to_int(torch.full((1, 4), sf)).item() == -1
    assert quantise.get_mn_major_tma_aligned_packed_ue8m0_tensor(torch.full((1, 4), sf)).item() == -1


def test_bytes_are_those_of_ml_dtypes() -> None:
    codes = np.arange(255, dtype=np.uint8)
    want = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(quantise.decode_ue8m0(torch.from_numpy(codes)).numpy(), want)


def test_the_check_passes_what_packing_keeps() -> None:
    kept = torch.tensor([2.0**-127, 2.0**-126, 0.5, 1.0, 2.0**127, math.nan, 0.0])
    quantise.check_ue8m0(kept)
    assert quantise.is_ue8m0(kept).all()
    quantise.check_ue8m0(torch.empty(0, 4))


@pytest.mark.parametrize("bad", [0.0123, 3.0, -1.0, -0.0, math.inf, -math.inf, 1e-40, math.nextafter(1, 0) - 1e-7])
def test_the_check_names_the_first_scale_that_packing_would_change(bad: float) -> None:
    sf = torch.ones(3, 4)
    sf[1, 2:] = bad
    assert (~quantise.is_ue8m0(sf)).nonzero().tolist() == [[1, 2], [1, 3]]
    with pytest.raises(
        ValueError, match=r"^sfa: scale \(1, 2\) is .*, one of 2 that are no power of two .*requantise_to"
    ):
        quantise.check_ue8m0(sf, "sfa")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bfloat16, torch.float64, torch.int64])
def test_bytes_of_another_type_are_not_guessed_at(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"^sf: dtype is .*never guessed at, so pass sf.view\(torch.float8_e8m0fnu\)"):
        quantise.pack_ue8m0_to_int(torch.ones(2, 4).to(dtype))
    with pytest.raises(TypeError, match=r"^packed: dtype is .*; packed UE8M0 scales are torch.int32$"):
        quantise.unpack_ue8m0_from_int(torch.ones(2, 4).to(dtype))
