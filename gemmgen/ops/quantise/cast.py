"""Reference quantisers: per token, per block and per channel, to FP8, MXFP8, FP4, MXFP4 and NVFP4, by one set of rules.

Pure torch on any device; the rules are in the docstring of the package. Knows no architecture and no layout of scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemmgen.ops.quantise.blocks import Gran, block_amax, spread
from gemmgen.ops.quantise.formats import (
    E2M1_MAX,
    E4M3_MAX,
    decode_e4m3,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    encode_ue4m3,
    pack_fp4,
)
from gemmgen.ops.quantise.ue8m0 import pack_ue8m0_to_int, ue8m0_scale

AMAX_FLOOR = 1e-4
"""Magnitudes of a block are never taken to be below this, so that zeros have a finite scale."""
Quantised = tuple[torch.Tensor, torch.Tensor]
_INPUTS = (torch.float32, torch.bfloat16, torch.float16)
_SMALLEST = 2.0**-126


def per_token_cast_to_fp8(
    x: torch.Tensor,
    use_ue8m0: bool,
    gran_k: int = 128,
    use_packed_ue8m0: bool = False,
    *,
    amax_floor: float = AMAX_FLOOR,
) -> Quantised:
    """e4m3 [.., m, k] and scales [.., m, ceil(k/gran_k)]: one per row and ``gran_k`` columns.

    use_ue8m0: round scales up to powers of two (fp32 all the same).
    use_packed_ue8m0: give those as int32 [.., m, ceil(k/gran_k/4)], four bytes a word.
    """
    _check_packed(use_ue8m0, use_packed_ue8m0)
    data, sf = _cast_to_fp8(x, (1, gran_k), use_ue8m0, amax_floor)
    return data, pack_ue8m0_to_int(sf) if use_packed_ue8m0 else sf


def per_channel_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, *, amax_floor: float = AMAX_FLOOR
) -> Quantised:
    """e4m3 [.., k, n] and scales [.., ceil(k/gran_k), n]: one per column and ``gran_k`` rows."""
    return _cast_to_fp8(x, (gran_k, 1), use_ue8m0, amax_floor)


def per_block_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = 128, *, amax_floor: float = AMAX_FLOOR
) -> Quantised:
    """e4m3 [.., n, k] and scales [.., ceil(n/gran_k), ceil(k/gran_k)]: one per square of ``gran_k``."""
    return _cast_to_fp8(x, (gran_k, gran_k), use_ue8m0, amax_floor)


def per_custom_dims_cast_to_fp8(
    x: torch.Tensor, dims: Sequence[int], use_ue8m0: bool, *, amax_floor: float = AMAX_FLOOR
) -> Quantised:
    """e4m3 of x's shape and one scale per index of ``dims``, squeezed to those dimensions."""
    _check_input(x)
    kept = sorted(dim % x.dim() for dim in dims)
    others = [dim for dim in range(x.dim()) if dim not in kept]
    x = _in_rows(x)
    if x.numel():
        amax = x.abs().amax(others, keepdim=True) if others else x.abs()
    else:  # nothing to take the largest of, yet there may be scales
        amax = x.new_zeros([x.shape[dim] if dim in kept else 1 for dim in range(x.dim())])
    sf = _fp8_scale(amax.clamp(min=amax_floor), use_ue8m0)
    return encode_e4m3(x * sf.reciprocal()), sf.reshape([x.shape[dim] for dim in kept])


def per_token_cast_to_fp4(
    x: torch.Tensor,
    use_ue8m0: bool,
    gran_k: int = 128,
    use_packed_ue8m0: bool = False,
    *,
    amax_floor: float = AMAX_FLOOR,
) -> Quantised:
    """Packed e2m1 int8 [.., m, k/2] and scales [.., m, ceil(k/gran_k)], as :func:`per_token_cast_to_fp8`."""
    _check_packed(use_ue8m0, use_packed_ue8m0)
    _check_matrix(x, (1, gran_k))
    x = _in_rows(x)
    amax = block_amax(x, (1, gran_k)).clamp(min=amax_floor)
    sf = decode_ue8m0(ue8m0_scale(amax, E2M1_MAX)) if use_ue8m0 else _divided(amax, E2M1_MAX)
    packed = pack_fp4(encode_e2m1(_scaled(x, sf, (1, gran_k))))
    return packed, pack_ue8m0_to_int(sf) if use_packed_ue8m0 else sf


def cast_to_mxfp8(x: torch.Tensor, *, amax_floor: float = AMAX_FLOOR) -> Quantised:
    """MXFP8: e4m3 [.., m, k] and ``float8_e8m0fnu`` scales [.., m, ceil(k/32)]."""
    data, sf = per_token_cast_to_fp8(x, True, 32, amax_floor=amax_floor)
    return data, _as_e8m0(sf)


def cast_to_mxfp4(x: torch.Tensor, *, amax_floor: float = AMAX_FLOOR) -> Quantised:
    """MXFP4: packed e2m1 int8 [.., m, k/2] and ``float8_e8m0fnu`` scales [.., m, ceil(k/32)]."""
    packed, sf = per_token_cast_to_fp4(x, True, 32, amax_floor=amax_floor)
    return packed, _as_e8m0(sf)


def cast_to_nvfp4(
    x: torch.Tensor, tensor_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """NVFP4: packed e2m1 int8 [.., m, k/2], UE4M3 scales (``float8_e4m3fn``) [.., m, ceil(k/16)], fp32 tensor scale.

    tensor_scale: one fp32 number; by default x's largest magnitude over 448 * 6.
    """
    _check_matrix(x, (1, 16))
    x = _in_rows(x)
    if tensor_scale is None:
        tensor_scale = nvfp4_tensor_scale(x)
    # First by one scale, then by the other: their product may be too small for fp32.
    x = x * tensor_scale.reciprocal()
    sf = encode_ue4m3(_divided(block_amax(x, (1, 16)), E2M1_MAX))
    return pack_fp4(encode_e2m1(_scaled(x, decode_e4m3(sf), (1, 16)))), sf, tensor_scale


def nvfp4_tensor_scale(x: torch.Tensor) -> torch.Tensor:
    """The fp32 scale of a whole tensor: its largest magnitude over 448 * 6, as a tensor without dimensions."""
    x = x.detach().float()
    amax = x.abs().amax() if x.numel() else x.new_zeros(())
    return _divided(amax.clamp(min=AMAX_FLOOR), E4M3_MAX * E2M1_MAX)


def _cast_to_fp8(x: torch.Tensor, gran: Gran, use_ue8m0: bool, amax_floor: float) -> Quantised:
    _check_matrix(x, gran)
    x = _in_rows(x)
    sf = _fp8_scale(block_amax(x, gran).clamp(min=amax_floor), use_ue8m0)
    return encode_e4m3(_scaled(x, sf, gran)), sf


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """fp32 numbers with contiguous rows, whose codes and scales lie likewise; products read how 4 bits lie by it."""
    return x.detach().float().contiguous()


def _fp8_scale(amax: torch.Tensor, use_ue8m0: bool) -> torch.Tensor:
    return decode_ue8m0(ue8m0_scale(amax, E4M3_MAX)) if use_ue8m0 else _divided(amax, E4M3_MAX)


def _divided(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """``amax / largest`` not below 2**-126, NaN for Inf.

    The divisor is a tensor: by a Python number, torch on CUDA multiplies with the reciprocal, which rounds differently.
    """
    scale = (amax / torch.full_like(amax, largest)).clamp(min=_SMALLEST)
    return torch.where(scale.isfinite(), scale, float("nan"))  # one NaN, on every device the same


def _scaled(x: torch.Tensor, sf: torch.Tensor, gran: Gran) -> torch.Tensor:
    return x * spread(sf.reciprocal(), gran, x.shape[-2], x.shape[-1])


def _as_e8m0(sf: torch.Tensor) -> torch.Tensor:
    return ((sf.view(torch.int32) >> 23) & 0xFF).to(torch.uint8).view(torch.float8_e8m0fnu)


def _check_packed(use_ue8m0: bool, use_packed_ue8m0: bool) -> None:
    if use_packed_ue8m0 and not use_ue8m0:
        raise ValueError(
            "use_packed_ue8m0: is True with use_ue8m0=False; only powers of two fit a byte; pass use_ue8m0=True"
        )


def _check_matrix(x: torch.Tensor, gran: Gran) -> None:
    _check_input(x)
    if x.dim() < 2:
        raise ValueError(f"x: has {x.dim()} dimensions; must have at least 2: (.., rows, columns)")
    if min(gran) < 1:
        raise ValueError(
            f"gran_k: is {max(gran) if min(gran) == 1 else min(gran)}; must be positive, such as 32 or 128"
        )


def _check_input(x: torch.Tensor) -> None:
    if x.dtype not in _INPUTS:
        raise TypeError(f"x: dtype is {x.dtype}; must be one of {', '.join(map(str, _INPUTS))}; pass x.float()")
