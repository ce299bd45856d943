"""Quantisers and layouts of scales on a GPU give the CPU's bits, wait for nothing and can be captured (P16, P17)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from gemmgen.ops import quantise

DEVICE = "cuda"
CASTS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "per token": lambda x: quantise.per_token_cast_to_fp8(x, False),
    "per token ue8m0": lambda x: quantise.per_token_cast_to_fp8(x, True, 32, True),
    "per block": lambda x: quantise.per_block_cast_to_fp8(x, False),
    "per channel": lambda x: quantise.per_channel_cast_to_fp8(x, True),
    "fp4": lambda x: quantise.per_token_cast_to_fp4(x, False),
    "mxfp8": quantise.cast_to_mxfp8,
    "mxfp4": quantise.cast_to_mxfp4,
    "nvfp4": quantise.cast_to_nvfp4,
}


def numbers() -> torch.Tensor:
    """Rows of all magnitudes, edges of rounding up, zeros, and a row of NaN and one of Inf."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(260, 384, generator=generator) * torch.exp2(torch.arange(-130.0, 130.0) / 4)[:, None]
    x[:96, 0] = 448 * torch.exp2(torch.arange(-48.0, 48.0))
    x[96:192, 0] = torch.nextafter(6 * torch.exp2(torch.arange(-48.0, 48.0)), torch.tensor(math.inf))
    x[200], x[201], x[202] = 0.0, math.nan, math.inf
    return x


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.cpu().contiguous().flatten().view(torch.uint8).tolist()


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantised_bits_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    x = numbers().to(dtype)
    x = x.nan_to_num(0, 1, 1) if name == "nvfp4" else x
    for here, there in zip(CASTS[name](x), CASTS[name](x.to(DEVICE)), strict=True):
        assert there.device.type == DEVICE and here.stride() == there.stride() and bits(here) == bits(there)


def test_dequantised_and_requantised_bits_are_those_of_the_cpu() -> None:
    data, sf = quantise.per_token_cast_to_fp8(numbers(), False)
    on_gpu = data.to(DEVICE), sf.to(DEVICE)
    assert bits(quantise.cast_back_from_fp8(data, sf).nan_to_num(7)) == bits(
        quantise.cast_back_from_fp8(*on_gpu).nan_to_num(7)
    )
    for here, there in zip(quantise.requantise_to_ue8m0(data, sf), quantise.requantise_to_ue8m0(*on_gpu), strict=True):
        assert bits(here) == bits(there)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_layouts_are_those_of_the_cpu_without_waiting_and_in_graphs(arch: str) -> None:
    sf = quantise.per_token_cast_to_fp8(numbers(), True)[1]
    want = quantise.transform_sf_into_required_layout(sf, 260, 384, (1, 128), arch=arch)
    on_gpu = sf.to(DEVICE)
    quantise.transform_sf_into_required_layout(on_gpu, 260, 384, (1, 128), arch=arch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a wait for the device would end the capture with an error
        got = quantise.transform_sf_into_required_layout(on_gpu, 260, 384, (1, 128), arch=arch)
    graph.replay()
    assert got.stride() == want.stride() and bits(got) == bits(want)


def test_scales_that_ue8m0_cannot_hold_are_nan_as_on_the_cpu() -> None:
    sf = torch.cat([numbers()[:, :4], torch.tensor([[1.0, 2.0**-127, 2.0**127, 0.0], [-1.0, 2.0**-128, 3.0, -0.0]])])
    assert bits(quantise.pack_ue8m0_to_int(sf)) == bits(quantise.pack_ue8m0_to_int(sf.to(DEVICE)))


def test_the_device_says_which_layout_it_needs() -> None:
    laid = quantise.transform_sf_into_required_layout(torch.ones(5, 3, device=DEVICE), 5, 384, (1, 128))
    major = torch.cuda.get_device_capability()[0]
    assert laid.dtype == (torch.float32 if major == 9 else torch.int32) and laid.stride() == (1, 8)
