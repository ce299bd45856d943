"""Bugs that this field has had with scales, as reported (P13 to P17): the input of each report, and what must hold."""

from __future__ import annotations

import math

import pytest
import torch
from scale_tables import same

from gemmgen.ops import quantise


def product(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], gran_mn: int) -> torch.Tensor:
    """What a GEMM of quantised matrices must give, in fp64."""
    left = quantise.cast_back_from_fp8(*a, dtype=torch.float64)
    return left @ quantise.cast_back_from_fp8(*b, gran_mn=gran_mn, dtype=torch.float64).T


def test_p13_fp32_scales_where_ue8m0_is_needed() -> None:
    """Rounding the scale alone is wrong by up to 2; the check refuses, re-quantising is right to half a step."""
    x, w = torch.randn(64, 256), torch.randn(128, 256)
    a, b = quantise.per_token_cast_to_fp8(x, False), quantise.per_block_cast_to_fp8(w, False)
    with pytest.raises(ValueError, match="requantise_to_ue8m0"):
        quantise.check_ue8m0(a[1], "sfa")
    want = product(a, b, 128)
    new = quantise.requantise_to_ue8m0(*a), quantise.requantise_to_ue8m0(*b, gran_mn=128)
    for _, sf in new:
        quantise.check_ue8m0(sf)
    assert (product(*new, 128) - want).norm() < 0.05 * want.norm()
    careless = (a[0], new[0][1]), (b[0], new[1][1])
    assert (product(*careless, 128) - want).norm() > 0.3 * want.norm()


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
def test_p13_no_layout_rounds_a_scale(arch: str) -> None:
    """Each of these was seen: rounded up, cut down, or bits taken for bytes. A server's garbage rows must not raise."""
    sf = torch.tensor([[1.0, 0.0123], [2.0, 0.5], [3.0, -2.0]])
    laid = quantise.transform_sf_into_required_layout(sf, 3, 256, (1, 128), arch=arch)
    kept = quantise.unpack_ue8m0_from_int(laid, 2)
    assert kept.isnan().tolist() == [[False, True], [False, False], [True, True]]
    assert kept.nan_to_num().tolist() == [[1.0, 0.0], [2.0, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1.0, 1e38, -0.0])
def test_p14_rows_of_padding_hold_garbage(garbage: float) -> None:
    """Scales cut from a taller and wider buffer: nothing outside can be seen, nothing raises."""
    sf = torch.full((132, 12), garbage)
    sf[:129, :9] = 2.0 ** torch.randint(-9, 9, (129, 9))
    view, copy = sf[:129, :9], sf[:129, :9].clone()
    for arch, recipe, k in (("sm90", (1, 128), 9 * 128), ("sm100", (1, 32), 9 * 32), ("sm120", (1, 128), 9 * 128)):
        got = quantise.transform_sf_into_required_layout(view, 129, k, recipe, arch=arch)
        assert same(got, quantise.transform_sf_into_required_layout(copy, 129, k, recipe, arch=arch))
        storage = got.as_strided((got.stride(1) * got.shape[1],), (1,), 0).view(got.shape[1], -1)
        assert storage[:, 129:].eq(0).all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 3e38])
def test_p15_garbage_rows_leave_their_neighbours_as_they_were(garbage: float) -> None:
    x = torch.randn(64, 256)
    dirty = x.clone()
    dirty[40:] = garbage
    for cast in (quantise.per_token_cast_to_fp8, quantise.per_token_cast_to_fp4):
        for clean_part, dirty_part in zip(cast(x, True, 32, True), cast(dirty, True, 32, True), strict=True):
            assert same(clean_part[:40], dirty_part[:40])


@pytest.mark.parametrize("ue8m0", [False, True])
def test_p16_zero_rows_and_blocks(ue8m0: bool) -> None:
    w = torch.zeros(256, 256)
    w[:128, :128] = torch.randn(128, 128)
    x = torch.randn(8, 256)
    x[3], x[4] = 0.0, -0.0
    a, b = quantise.per_token_cast_to_fp8(x, ue8m0), quantise.per_block_cast_to_fp8(w, ue8m0)
    assert a[1].isfinite().all() and b[1].isfinite().all() and (a[1] > 0).all() and (b[1] > 0).all()
    assert b[0][128:].float().eq(0).all() and a[0][3:5].float().eq(0).all()
    d = product(a, b, 128)
    assert d[3:5].eq(0).all() and d[:, 128:].eq(0).all() and d[:, :128].isfinite().all()


@pytest.mark.parametrize(
    ("amax", "exponent"), [(1.0, -8), (448.0, 0), (450.0, 1), (224.0, -1), (225.0, 0), (6.0, -6), (7.0, -6), (7.01, -5)]
)
def test_p17_scales_of_fp8_are_rounded_up(amax: float, exponent: int) -> None:
    x = torch.zeros(1, 128)
    x[0, 77] = -amax
    data, sf = quantise.per_token_cast_to_fp8(x, True)
    assert sf.item() == 2.0**exponent
    assert abs(quantise.cast_back_from_fp8(data, sf)[0, 77].item() + amax) <= amax / 16, "the largest does not saturate"


@pytest.mark.parametrize(("amax", "exponent"), [(1.0, -2), (6.0, 0), (7.0, 1), (3.0, -1), (3.01, 0), (448.0, 7)])
def test_p17_scales_of_fp4_are_rounded_up(amax: float, exponent: int) -> None:
    x = torch.zeros(1, 32)
    x[0, 7] = amax
    packed, sf = quantise.cast_to_mxfp4(x)
    assert sf.view(torch.uint8).item() == 127 + exponent
    assert abs(quantise.cast_back_from_fp4(packed, sf, 32)[0, 7].item() - amax) <= amax / 4
