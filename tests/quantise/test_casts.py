"""The quantisers against loops over granules in numpy and ml_dtypes, and every rule of the package's docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_tables import LARGEST, NUMPY, rounded, same

from gemmgen import ops
from gemmgen.ops import quantise

FLOOR = np.float32(1e-4)
Cast = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
FP8: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[int, int]]]] = {
    "per token": (quantise.per_token_cast_to_fp8, lambda gran: (1, gran)),
    "per channel": (quantise.per_channel_cast_to_fp8, lambda gran: (gran, 1)),
    "per block": (quantise.per_block_cast_to_fp8, lambda gran: (gran, gran)),
}
CASTS: dict[str, Cast] = {
    "fp8": lambda x: quantise.per_token_cast_to_fp8(x, False),
    "fp8 ue8m0": lambda x: quantise.per_token_cast_to_fp8(x, True),
    "block": lambda x: quantise.per_block_cast_to_fp8(x, False),
    "block ue8m0": lambda x: quantise.per_block_cast_to_fp8(x, True),
    "channel": lambda x: quantise.per_channel_cast_to_fp8(x, True, 32),
    "fp4": lambda x: quantise.per_token_cast_to_fp4(x, False, 32),
    "mxfp8": quantise.cast_to_mxfp8,
    "mxfp4": quantise.cast_to_mxfp4,
    "nvfp4": quantise.cast_to_nvfp4,
}
BACK: dict[str, Callable[..., torch.Tensor]] = {
    "fp8": quantise.cast_back_from_fp8,
    "fp8 ue8m0": quantise.cast_back_from_fp8,
    "block": lambda data, sf: quantise.cast_back_from_fp8(data, sf, gran_mn=128),
    "block ue8m0": lambda data, sf: quantise.cast_back_from_fp8(data, sf, gran_mn=128),
    "channel": lambda data, sf: quantise.cast_back_from_fp8(data, sf, 1, gran_mn=32),
    "fp4": lambda packed, sf: quantise.cast_back_from_fp4(packed, sf, 32),
    "mxfp8": lambda data, sf: quantise.cast_back_from_fp8(data, sf, 32),
    "mxfp4": lambda packed, sf: quantise.cast_back_from_fp4(packed, sf, 32),
    "nvfp4": quantise.cast_back_from_nvfp4,
}
ALL = pytest.mark.parametrize("name", CASTS)


def wide(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers under row scales from 2**-20 to 2**20."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.randint(-20, 21, (*shape[:-1], 1), generator=generator)
    return torch.randn(*shape, generator=generator) * torch.exp2(magnitudes.float())


def granules(x: np.ndarray, gran: tuple[int, int]) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    for i, row in enumerate(range(0, x.shape[0], gran[0])):
        for j, column in enumerate(range(0, x.shape[1], gran[1])):
            yield (i, j), (slice(row, row + gran[0]), slice(column, column + gran[1]))


def power_above(amax: float, largest: float) -> float:
    """The smallest power of two s, as a search finds it, with amax <= largest * s."""
    exponent = -126
    while amax > largest * 2.0**exponent:
        exponent += 1
    return 2.0**exponent


def looped(x: np.ndarray, gran: tuple[int, int], form: str, ue8m0: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the codes and scales, a granule at a time."""
    values = np.zeros(x.shape)
    scales = np.zeros([-(-size // step) for size, step in zip(x.shape, gran, strict=True)], dtype=np.float32)
    for index, cut in granules(x, gran):
        amax = max(np.abs(x[cut]).max(), FLOOR)
        scale = np.float32(power_above(amax, LARGEST[form])) if ue8m0 else amax / np.float32(LARGEST[form])
        scales[index] = scale
        values[cut] = rounded(x[cut] * (np.float32(1) / scale), form)
    return values, scales


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("gran", [16, 32, 128])
@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (130, 300), (257, 128)])
def test_fp8_is_what_loops_make(name: str, gran: int, ue8m0: bool, shape: tuple[int, int]) -> None:
    cast, of = FP8[name]
    x = wide(*shape)
    data, sf = cast(x, ue8m0, gran)
    values, scales = looped(x.numpy(), of(gran), "e4m3", ue8m0)
    assert data.dtype == torch.float8_e4m3fn and sf.dtype == torch.float32 and data.is_contiguous()
    assert np.array_equal(sf.numpy(), scales)
    assert np.array_equal(data.view(torch.uint8).numpy().view(NUMPY["e4m3"]).astype(np.float64), values)


@pytest.mark.parametrize("gran", [16, 32, 128])
@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("shape", [(1, 2), (3, 34), (67, 300)])
def test_fp4_is_what_loops_make(gran: int, ue8m0: bool, shape: tuple[int, int]) -> None:
    x = wide(*shape)
    packed, sf = quantise.per_token_cast_to_fp4(x, ue8m0, gran)
    values, scales = looped(x.numpy(), (1, gran), "e2m1", ue8m0)
    assert packed.dtype == torch.int8 and packed.shape == (shape[0], shape[1] // 2)
    assert np.array_equal(sf.numpy(), scales)
    codes = quantise.unpack_fp4(packed).numpy().view(NUMPY["e2m1"])
    assert np.array_equal(codes.astype(np.float64), values)


@pytest.mark.parametrize("given", [None, 0.01])
def test_nvfp4_is_what_loops_make(given: float | None) -> None:
    x = wide(33, 90)
    packed, sf, scale = quantise.cast_to_nvfp4(x, None if given is None else torch.tensor(given))
    want = np.abs(x.numpy()).max() / np.float32(2688) if given is None else np.float32(given)
    assert sf.dtype == torch.float8_e4m3fn and sf.shape == (33, 6) and scale.shape == ()
    assert scale.item() == want
    y = x.numpy() * (np.float32(1) / want)
    values = np.zeros(y.shape)
    for index, cut in granules(y, (1, 16)):
        block = np.clip(np.abs(y[cut]).max() / np.float32(6), 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn)
        assert sf[index].float().item() == float(block)
        values[cut] = rounded(y[cut] * (np.float32(1) / block.astype(np.float32)), "e2m1")
    codes = quantise.unpack_fp4(packed).numpy().view(NUMPY["e2m1"])
    assert np.array_equal(codes.astype(np.float64), values)


def test_mx_formats_are_blocks_of_32_with_ue8m0_bytes() -> None:
    x = wide(5, 100)
    for cast, plain in (
        (quantise.cast_to_mxfp8, quantise.per_token_cast_to_fp8),
        (quantise.cast_to_mxfp4, quantise.per_token_cast_to_fp4),
    ):
        data, sf = cast(x)
        want, scales = plain(x, True, 32)
        assert sf.dtype == torch.float8_e8m0fnu and same(data, want)
        assert same(quantise.decode_ue8m0(sf), scales)


def test_packed_scales_are_the_others_packed_with_zeros_behind() -> None:
    x = wide(6, 5 * 32)
    for cast in (quantise.per_token_cast_to_fp8, quantise.per_token_cast_to_fp4):
        data, packed = cast(x, True, 32, use_packed_ue8m0=True)
        want, sf = cast(x, True, 32)
        assert packed.dtype == torch.int32 and packed.shape == (6, 2) and same(data, want)
        assert same(quantise.unpack_ue8m0_from_int(packed, 5), sf)
        assert packed.view(torch.uint8)[:, 5:].eq(0).all()


@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, 2), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("ue8m0", [False, True])
def test_one_scale_per_index_of_custom_dimensions(dims: tuple[int, ...], ue8m0: bool) -> None:
    x = wide(3, 4, 5)
    data, sf = quantise.per_custom_dims_cast_to_fp8(x, dims, ue8m0)
    kept = sorted(dim % 3 for dim in dims)
    assert sf.shape == tuple(x.shape[dim] for dim in kept)
    whole = sf.reshape([x.shape[dim] if dim in kept else 1 for dim in range(3)])
    others = tuple(dim for dim in range(3) if dim not in kept)
    amax = np.maximum(np.abs(x.numpy()).max(others, keepdims=True) if others else np.abs(x.numpy()), FLOOR)
    want = [power_above(each, 448) for each in amax.flat] if ue8m0 else list((amax / np.float32(448)).flat)
    assert whole.flatten().tolist() == want
    assert np.array_equal(data.float().numpy(), rounded(x.numpy() * (np.float32(1) / whole.numpy()), "e4m3"))


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrower_inputs_are_quantised_as_the_fp32_numbers_they_are(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(7, 130, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert all(same(*pair) for pair in zip(CASTS[name](x), CASTS[name](x.float()), strict=True))


@ALL
def test_groups_are_quantised_one_by_one(name: str) -> None:
    x = wide(3, 40, 70)
    x[1] = 0
    x[0, 0, 0] = x[2, 0, 0] = 2.0**24  # NVFP4 has one scale for all of a tensor
    whole = CASTS[name](x)
    for group in (0, 2):
        one = CASTS[name](x[group])
        assert all(same(each[group] if each.dim() else each, part) for each, part in zip(whole, one, strict=True))


@ALL
def test_strided_and_transposed_views_are_quantised_by_what_they_show(name: str) -> None:
    buffer = wide(70, 200)
    for view in (buffer.T, buffer[:, 3:99], buffer[::2, ::2], buffer[1:]):
        copy = view.contiguous()
        assert all(same(a, b) for a, b in zip(CASTS[name](view), CASTS[name](copy), strict=True))


@ALL
@pytest.mark.parametrize("shape", [(0, 128), (5, 0), (0, 0), (0, 3, 64), (2, 0, 64)])
def test_empty_tensors_have_the_shapes_their_sizes_imply(name: str, shape: tuple[int, ...]) -> None:
    parts = CASTS[name](torch.empty(shape))
    small = CASTS[name](torch.zeros([max(size, 2) for size in shape]))
    assert [part.dtype for part in parts] == [part.dtype for part in small]
    assert parts[0].shape[:-1] == shape[:-1] and parts[0].numel() == parts[1].numel() * 0
    assert BACK[name](*parts).shape == shape


@ALL
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 5), pairs=st.integers(1, 90))
def test_nothing_is_off_by_more_than_half_a_step_of_the_largest(name: str, seed: int, rows: int, pairs: int) -> None:
    x = torch.randn(rows, 2 * pairs, generator=torch.Generator().manual_seed(seed))
    error = (BACK[name](*CASTS[name](x)) - x).abs().amax()
    # e4m3: 16 / 448 of amax; e2m1: 1 / 6, and the UE4M3 scale itself may be off by 1/16. Rounding up doubles both.
    allowed = {"fp4": 1 / 6, "mxfp4": 2 / 6, "nvfp4": 1 / 6 + 1 / 16}.get(name, 32 / 448)
    assert error <= 1.01 * allowed * x.abs().amax()


@ALL
def test_zeros_have_a_finite_scale_and_come_back_as_zeros(name: str) -> None:
    x = torch.zeros(256, 256)
    x[:128, :128] = torch.randn(128, 128, generator=torch.Generator().manual_seed(5))
    data, *scales = CASTS[name](x)
    assert all(scale.float().isfinite().all() for scale in scales)
    assert data[128:].view(torch.uint8).eq(0).all()
    back = BACK[name](data, *scales)
    assert back[:128, 128:].eq(0).all() and back[128:].eq(0).all()


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("fp8", np.float32(1e-4) / np.float32(448)),
        ("fp8 ue8m0", 2.0**-22),
        ("mxfp8", 2.0**-22),
        ("mxfp4", 2.0**-15),
        ("nvfp4", 2.0**-9),
    ],
)
def test_the_scale_of_zeros_is_the_documented_one(name: str, scale: float) -> None:
    sf = CASTS[name](torch.zeros(2, 128))[1]
    values = quantise.decode_ue8m0(sf) if sf.dtype == torch.float8_e8m0fnu else sf.float()
    assert values.eq(float(scale)).all()


@ALL
def test_negative_zeros_come_back_as_negative_zeros(name: str) -> None:
    back = BACK[name](*CASTS[name](torch.full((3, 128), -0.0)))
    assert back.eq(0).all() and back.signbit().all()


@ALL
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_granule_with_nan_or_inf_comes_back_as_nan_and_no_other_does(name: str, bad: float) -> None:
    x = torch.randn(300, 320, generator=torch.Generator().manual_seed(6))
    good = x.clone()
    x[150, 150] = bad
    scale = (quantise.nvfp4_tensor_scale(good),) if name == "nvfp4" else ()
    cast = (lambda t: quantise.cast_to_nvfp4(t, *scale)) if name == "nvfp4" else CASTS[name]
    data, sf, *rest = cast(x)
    back = BACK[name](data, sf, *rest)
    rows, columns = {"block": (128, 128), "block ue8m0": (128, 128), "channel": (32, 1)}.get(name, (1, 0))
    columns = columns or {"nvfp4": 16, "mxfp8": 32, "mxfp4": 32, "fp4": 32}.get(name, 128)
    hit = torch.zeros_like(x, dtype=torch.bool)
    hit[150 // rows * rows :, 150 // columns * columns :][:rows, :columns] = True
    assert torch.equal(back.isnan(), hit)
    assert same(back[~hit], BACK[name](*cast(good))[~hit])
    codes = quantise.unpack_fp4(data) if data.dtype == torch.int8 else data.view(torch.uint8)
    assert codes[hit].eq(7 if data.dtype == torch.int8 else 0x7F).all()


def test_a_tensor_scale_is_nan_when_the_tensor_is_not_finite() -> None:
    x = torch.ones(4, 64)
    x[2, 3] = math.inf
    packed, sf, scale = quantise.cast_to_nvfp4(x)
    assert scale.isnan() and quantise.cast_back_from_nvfp4(packed, sf, scale).isnan().all()


@pytest.mark.parametrize("name", ["fp8", "fp8 ue8m0", "mxfp8", "mxfp4"])
def test_tiny_granules_take_the_scale_of_the_floor_unless_it_is_lowered(name: str) -> None:
    tiny = torch.full((1, 128), 1e-7)
    zero = CASTS[name](torch.zeros(1, 128))[1]
    assert same(CASTS[name](tiny)[1].view(torch.uint8), zero.view(torch.uint8))
    data, sf = quantise.per_token_cast_to_fp4(tiny, True, amax_floor=0.0)
    assert (quantise.cast_back_from_fp4(data, sf) / 1e-7 - 1).abs().max() < 0.25


@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3.4e38])
def test_without_a_floor_scales_still_stay_normal_and_finite(ue8m0: bool, value: float) -> None:
    x = torch.full((2, 128), value)
    for cast, back in (
        (quantise.per_token_cast_to_fp8, quantise.cast_back_from_fp8),
        (quantise.per_token_cast_to_fp4, quantise.cast_back_from_fp4),
    ):
        data, sf = cast(x, ue8m0, amax_floor=0.0)
        assert (sf >= 2.0**-126).all() and sf.isfinite().all()
        assert ((back(data, sf, dtype=torch.float64) - x).abs() <= 0.2 * x + 2.0**-127).all()


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_lie_along_the_last_axis_however_the_numbers_do(name: str, dtype: torch.dtype) -> None:
    """Products read along which axis two 4-bit codes share a byte from where they lie."""
    for view in (wide(256, 128).to(dtype).T, wide(3, 256, 128).to(dtype).mT, wide(128, 512).to(dtype)[:, ::2]):
        data, *scales = CASTS[name](view)
        wanted, *wanted_scales = CASTS[name](view.contiguous())
        assert data.is_contiguous() and same(data, wanted)
        for sf, wanted_sf in zip(scales, wanted_scales, strict=True):
            assert sf.stride() == wanted_sf.stride() and same(sf, wanted_sf)


def test_codes_of_custom_dimensions_lie_along_the_last_axis() -> None:
    assert quantise.per_custom_dims_cast_to_fp8(wide(8, 6).T, (0,), True)[0].is_contiguous()


def test_gradients_are_not_followed() -> None:
    x = torch.ones(2, 128, requires_grad=True)
    assert not any(part.requires_grad for cast in CASTS.values() for part in cast(x))


def test_what_cannot_be_quantised_is_refused() -> None:
    x = torch.zeros(4, 128)
    with pytest.raises(TypeError, match=r"^x: dtype is torch.float64; must be one of .*; pass x.float\(\)$"):
        quantise.per_token_cast_to_fp8(x.double(), True)
    with pytest.raises(ValueError, match=r"^x: has 1 dimensions; must have at least 2"):
        quantise.per_block_cast_to_fp8(x[0], True)
    with pytest.raises(ValueError, match=r"^gran_k: is 0; must be positive"):
        quantise.per_channel_cast_to_fp8(x, True, 0)
    with pytest.raises(ValueError, match=r"^use_packed_ue8m0: is True with use_ue8m0=False"):
        quantise.per_token_cast_to_fp8(x, False, use_packed_ue8m0=True)
    with pytest.raises(ValueError, match=r"^codes: the last dimension is 5"):
        quantise.per_token_cast_to_fp4(x[:, :5], True)


def test_the_operators_offer_them_too() -> None:
    names = [name for name in quantise.__all__ if name in ops.__all__]
    registered = {name for name in names if getattr(ops, name) is not getattr(quantise, name)}
    assert len(names) > 12
    assert registered == {  # one node each under compilers; tests/ops compares what they return
        "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
        "get_mn_major_tma_aligned_packed_ue8m0_tensor",
        "get_mn_major_tma_aligned_tensor",
        "transform_sf_into_required_layout",
    }
