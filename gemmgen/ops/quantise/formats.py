"""Narrow number formats as bits: e4m3, e2m1 (FP4), UE8M0 and UE4M3, encoders and decoders of our own.

Knows single codes only, no blocks and no layouts; encoders round to nearest even and saturate, as ``cvt.rn.satfinite``.
"""

from __future__ import annotations

import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
UE4M3_MIN = 2.0**-9
"""Smallest UE4M3 scale that is not zero."""
NAN_BYTE = 0x7F
"""NaN in e4m3, and in UE4M3."""
UE8M0_NAN = 0xFF


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """``2.0**exponent`` in fp32 for int32 exponents from -126 to 127, by bits: exact on every device."""
    return ((exponent + 127) << 23).view(torch.float32)


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """fp32 or fp64 to ``float8_e4m3fn`` with one rounding; Inf becomes 448, NaN becomes 0x7f whatever its sign."""
    rounded = _round_to_e4m3(values).float() if values.dtype == torch.float64 else values
    codes = rounded.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(values.isnan(), NAN_BYTE, codes).view(torch.float8_e4m3fn)


def _round_to_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Each fp64 value on the grid of e4m3 without its upper end; a cast by way of fp32 would round twice."""
    small = values.clamp(-2 * E4M3_MAX, 2 * E4M3_MAX)
    exponent = (torch.frexp(small).exponent.to(torch.int32) - 1).clamp(min=-6)
    step = power_of_two(exponent - 3).double()
    return (small / step).round() * step


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of e4m3 codes given as bytes or as ``float8_e4m3fn``."""
    bits = codes.view(torch.uint8).to(torch.int32)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = (8 + mantissa) * power_of_two(exponent - 10)
    magnitude = torch.where(exponent == 0, mantissa.float() * 2.0**-9, normal)
    magnitude = torch.where(bits & 0x7F == NAN_BYTE, float("nan"), magnitude)
    return torch.where(bits >= 0x80, -magnitude, magnitude)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """FP4 codes 0..15, one per byte: ties to the even code, signs kept (-0.0 is 8), Inf becomes 6, NaN becomes +6."""
    size = values.abs()
    code = (size > 0.25).to(torch.uint8)
    for reached in (size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5.0):
        code += reached
    code += values.signbit().to(torch.uint8) << 3
    return torch.where(values.isnan(), 7, code)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of FP4 codes 0..15, one per byte."""
    bits = codes.to(torch.int32)
    exponent, mantissa = (bits >> 1) & 3, bits & 1
    magnitude = torch.where(exponent == 0, mantissa.float() * 0.5, (2 + mantissa) * power_of_two(exponent - 2))
    return torch.where(bits & 8 != 0, -magnitude, magnitude)


def pack_fp4(codes: torch.Tensor) -> torch.Tensor:
    """Two FP4 codes a byte along the last dimension, the even index in the low nibble; int8."""
    if codes.shape[-1] % 2:
        raise ValueError(
            f"codes: the last dimension is {codes.shape[-1]}; two FP4 codes share a byte, so it must be even; "
            "pad with a zero"
        )
    codes = codes.view(torch.uint8)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8)


def unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    """The FP4 codes, one per uint8, of bytes that hold two; the last dimension doubles."""
    bits = packed.view(torch.uint8)
    return torch.stack((bits & 15, bits >> 4), dim=-1).flatten(-2)


def transpose_packed_fp4(packed: torch.Tensor) -> torch.Tensor:
    """Packed FP4 [.., r, c/2] as packed [.., c, r/2]: the transpose of the numbers, which no transpose of bytes is."""
    if packed.shape[-2] % 2:
        raise ValueError(
            f"packed: has {packed.shape[-2]} rows; after transposing two of them share a byte, so pad to "
            f"{packed.shape[-2] + 1}"
        )
    return pack_fp4(unpack_fp4(packed).mT.contiguous())


def decode_ue8m0(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values ``2**(code - 127)`` of UE8M0 bytes; 0 is 2**-127 (a subnormal), 255 is NaN."""
    bits = codes.view(torch.uint8).to(torch.int32) << 23
    bits = torch.where(bits == 0, 0x0040_0000, bits)
    return torch.where(bits == UE8M0_NAN << 23, 0x7FC0_0000, bits).view(torch.float32)


def encode_ue4m3(values: torch.Tensor) -> torch.Tensor:
    """Scales in fp32 to the nearest UE4M3 number from 2**-9 to 448, ties to even; NaN stays NaN."""
    return encode_e4m3(values.clamp(UE4M3_MIN, E4M3_MAX))
