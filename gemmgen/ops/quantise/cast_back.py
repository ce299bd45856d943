"""Exact dequantisers, by decoders of our own, and re-quantisation of data whose scales are no powers of two.

The products of data and scales are formed in fp64, where they are exact, and rounded once to the type asked for.
"""

from __future__ import annotations

import torch

from gemmgen.ops.quantise.blocks import Gran, ceil_div, check_scale_shape, granules, spread
from gemmgen.ops.quantise.formats import (
    decode_e2m1,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    pack_fp4,
    unpack_fp4,
)
from gemmgen.ops.quantise.ue8m0 import ceil_to_ue8m0, ue8m0_bytes

_FP4_TYPES = (torch.int8, getattr(torch, "float4_e2m1fn_x2", torch.int8))


def cast_back_from_fp8(
    data: torch.Tensor,
    sf: torch.Tensor,
    gran_k: int = 128,
    *,
    gran_mn: int = 1,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Numbers of e4m3 ``data`` with one scale per ``gran_mn`` rows and ``gran_k`` columns.

    sf: fp32, ``float8_e8m0fnu`` or int32 with four UE8M0 bytes; its type says which.
    dtype: torch.float64 is exact, torch.float32 rounds once.
    """
    return _product(_fp8_values(data), sf, (gran_mn, gran_k), dtype)


def cast_back_from_fp4(
    packed: torch.Tensor,
    sf: torch.Tensor,
    gran_k: int = 128,
    *,
    gran_mn: int = 1,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Numbers [.., m, k] of packed e2m1 ``packed`` [.., m, k/2]; scales as :func:`cast_back_from_fp8`."""
    return _product(_fp4_values(packed), sf, (gran_mn, gran_k), dtype)


def cast_back_from_nvfp4(
    packed: torch.Tensor, sf: torch.Tensor, tensor_scale: torch.Tensor, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers [.., m, k] of NVFP4: code, UE4M3 scale of its 16 and the tensor's scale multiplied."""
    if sf.dtype != torch.float8_e4m3fn:
        raise TypeError(f"sf: dtype is {sf.dtype}; NVFP4 has UE4M3 scales, torch.float8_e4m3fn")
    values = _fp4_values(packed)
    check_scale_shape(sf, granules(values.shape, (1, 16)), (1, 16))
    return _rounded(_spread_over(values, decode_e4m3(sf), (1, 16)) * tensor_scale.double(), dtype)


def requantise_to_ue8m0(
    data: torch.Tensor, sf: torch.Tensor, gran_k: int = 128, *, gran_mn: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """``data`` (e4m3 or packed e2m1) and fp32 scales as data of the same type under scales that are powers of two.

    Scales are rounded up; each number, exactly, is rounded to the new scale once (nearest even), so nothing saturates.
    What has powers of two already comes back as it was, with contiguous rows.
    """
    if sf.dtype != torch.float32:
        raise TypeError(f"sf: dtype is {sf.dtype}; only torch.float32 scales can be other than powers of two")
    is_fp4 = data.dtype in _FP4_TYPES
    values = (_fp4_values(data) if is_fp4 else _fp8_values(data)).contiguous()
    check_scale_shape(sf, granules(values.shape, (gran_mn, gran_k)), (gran_mn, gran_k))
    rounded = ceil_to_ue8m0(sf)
    values = _spread_over(values, sf.double() / rounded.double(), (gran_mn, gran_k))
    return (pack_fp4(encode_e2m1(values)).view(data.dtype) if is_fp4 else encode_e4m3(values)), rounded


def _product(values: torch.Tensor, sf: torch.Tensor, gran: Gran, dtype: torch.dtype) -> torch.Tensor:
    shape = granules(values.shape, gran)
    packed = sf.dtype == torch.int32
    check_scale_shape(sf, (*shape[:-1], ceil_div(shape[-1], 4)) if packed else shape, gran)
    scales = sf if sf.dtype == torch.float32 else decode_ue8m0(ue8m0_bytes(sf))[..., : shape[-1]]
    return _rounded(_spread_over(values, scales, gran), dtype)


def _spread_over(values: torch.Tensor, scales: torch.Tensor, gran: Gran) -> torch.Tensor:
    return values.double() * spread(scales.double(), gran, values.shape[-2], values.shape[-1])


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype: is {dtype}; must be torch.float32 or torch.float64, which round at most once")
    return values.to(dtype)


def _fp8_values(data: torch.Tensor) -> torch.Tensor:
    if data.dtype != torch.float8_e4m3fn:
        raise TypeError(f"data: dtype is {data.dtype}; must be torch.float8_e4m3fn")
    return decode_e4m3(data)


def _fp4_values(packed: torch.Tensor) -> torch.Tensor:
    if packed.dtype not in _FP4_TYPES:
        raise TypeError(
            f"packed: dtype is {packed.dtype}; two FP4 codes a byte are torch.int8; pass packed.view(torch.int8)"
        )
    return decode_e2m1(unpack_fp4(packed))
