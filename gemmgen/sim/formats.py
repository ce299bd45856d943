"""Narrow number formats: values of codes, and the rounding of PTX cvt, vectorised over arrays.

Knows numbers only; it may not know of instructions, registers or memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.unsignedinteger[Any]]
Bits = npt.NDArray[np.uint32]

F32_NAN = 0x7FFFFFFF
TF32_NAN = 0x7FFFE000
F16_NAN = 0x7FFF


@dataclass(frozen=True)
class MiniFloat:
    """A format of at most 8 bits: sign (if any), exponent, mantissa; how its top codes are used."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_code: int  # largest finite value's code, sign cleared
    nan_code: int  # what a NaN converts to; a format without NaN gives its maximum
    signed: bool = True
    infinity_code: int | None = None

    @property
    def bits(self) -> int:
        return self.exponent_bits + self.mantissa_bits + int(self.signed)

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def has_nan(self) -> bool:
        return self.nan_code > self.max_code


MINI_FLOATS = {
    f.name: f
    for f in (
        MiniFloat("e4m3", 4, 3, 7, 0x7E, 0x7F),
        MiniFloat("e5m2", 5, 2, 15, 0x7B, 0x7F, infinity_code=0x7C),
        MiniFloat("e2m1", 2, 1, 1, 0x7, 0x7),
        MiniFloat("e2m3", 2, 3, 1, 0x1F, 0x1F),
        MiniFloat("e3m2", 3, 2, 3, 0x1F, 0x1F),
        MiniFloat("ue4m3", 4, 3, 7, 0x7E, 0x7F, signed=False),
    )
}


# decode


def decode(codes: npt.NDArray[Any], fmt: str) -> Floats:
    """float32 values of codes (f32 codes are uint32 bits; tf32 ignores the 13 low bits, as the tensor core does)."""
    if fmt in _WIDE_DECODERS:
        return _WIDE_DECODERS[fmt](codes)
    table = decode_table(fmt)
    return np.take(table, codes, mode="wrap")


@lru_cache(maxsize=16)
def decode_table(fmt: str) -> Floats:
    """Value of every code of a format of at most 8 bits."""
    if fmt == "ue8m0":
        values = np.ldexp(np.float64(1), np.arange(256) - 127)
        values[255] = np.nan
    elif fmt in MINI_FLOATS:
        values = _mini_float_values(MINI_FLOATS[fmt])
    else:
        raise ValueError(f"format is {fmt!r}; it must be one of {', '.join((*MINI_FLOATS, 'ue8m0', *_WIDE_DECODERS))}")
    table = values.astype(np.float32)
    table.setflags(write=False)
    return table


def _mini_float_values(f: MiniFloat) -> npt.NDArray[np.float64]:
    code = np.arange(1 << f.bits)
    magnitude = code & (f.sign_bit - 1)
    exponent, mantissa = magnitude >> f.mantissa_bits, magnitude & ((1 << f.mantissa_bits) - 1)
    significand = np.where(exponent > 0, mantissa + (1 << f.mantissa_bits), mantissa)
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - f.bias - f.mantissa_bits)
    values[magnitude > f.max_code] = np.nan
    if f.infinity_code is not None:
        values[magnitude == f.infinity_code] = np.inf
    values[code >= f.sign_bit] *= -1
    return np.asarray(values, dtype=np.float64)


def _decode_bf16(codes: npt.NDArray[Any]) -> Floats:
    return (codes.astype(np.uint32) << 16).view(np.float32)


def _decode_f16(codes: npt.NDArray[Any]) -> Floats:
    return codes.astype(np.uint16).view(np.float16).astype(np.float32)


def _decode_tf32(codes: npt.NDArray[Any]) -> Floats:
    return (codes.astype(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _decode_f32(codes: npt.NDArray[Any]) -> Floats:
    return codes.astype(np.uint32).view(np.float32)


_WIDE_DECODERS: dict[str, Callable[[npt.NDArray[Any]], Floats]] = {
    "bf16": _decode_bf16,
    "f16": _decode_f16,
    "tf32": _decode_tf32,
    "f32": _decode_f32,
}


# encode: eight bits and fewer


def encode_rn_satfinite(values: npt.NDArray[Any], fmt: str) -> npt.NDArray[np.uint8]:
    """cvt.rn.satfinite: nearest even, clamped to the largest finite value; NaN gives the NaN code (or the maximum).

    float32 values are looked up by their upper 16 bits with the lower ones folded into the last: these formats
    round on fewer bits than that.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    key = (bits >> 16) | ((bits & 0xFFFF) != 0)
    codes: npt.NDArray[np.uint8] = np.take(_encode_table(fmt), key)
    return codes


@lru_cache(maxsize=8)
def _encode_table(fmt: str) -> npt.NDArray[np.uint8]:
    """Code of every upper half of a float32; an odd half stands for all values strictly between its even neighbours."""
    half = np.arange(1 << 16, dtype=np.uint32)
    sticky = np.where((half & 0x7F80) == 0x7F80, half << 16, half << 16 | (half & 1))
    with np.errstate(invalid="ignore"):
        return _round_mini_float(sticky.view(np.float32).astype(np.float64), MINI_FLOATS[fmt])


def _round_mini_float(values: npt.NDArray[np.float64], f: MiniFloat) -> npt.NDArray[np.uint8]:
    magnitude = np.minimum(np.abs(values), float(decode_table(f.name)[f.max_code]))
    smallest = 1 - f.bias  # exponent of the subnormals, and of zero
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    quanta = np.rint(np.ldexp(magnitude, f.mantissa_bits - exponent))  # rint rounds ties to even
    code = (exponent + f.bias - 1) * (1 << f.mantissa_bits) + quanta
    code = np.where(np.isnan(values), f.nan_code, np.minimum(code, f.max_code)).astype(np.uint8)
    negative = np.signbit(values) & ~np.isnan(values)
    return np.where(negative, code | f.sign_bit if f.signed else 0, code).astype(np.uint8)


def encode_ue8m0(values: npt.NDArray[Any], rounding: str, satfinite: bool = True) -> npt.NDArray[np.uint8]:
    """cvt.{rz,rp}(.satfinite).ue8m0 of float32: the exponent of |x| rounded down or up; NaN is 0xff."""
    if rounding not in ("rz", "rp"):
        raise ValueError(f"rounding is {rounding!r}; ue8m0 converts with rz or rp")
    magnitude = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) & 0x7FFFFFFF
    exponent, mantissa = magnitude >> 23, magnitude & 0x7FFFFF
    if rounding == "rp":
        exponent = exponent + np.where(
            exponent == 0, mantissa > 0x400000, mantissa > 0
        )  # code 0 is 2^-127, half of 2^-126
    code = np.minimum(exponent, 0xFE if satfinite else 0xFF)
    return np.where(magnitude > 0x7F800000, 0xFF, code).astype(np.uint8)


# encode: 16 bits and tf32


def encode_bf16(values: Floats, rounding: str = "rn", satfinite: bool = False) -> npt.NDArray[np.uint16]:
    """cvt.{rn,rz}.bf16.f32; NaN becomes 0x7fff."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    code = bits >> 16 if rounding == "rz" else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    magnitude = bits & 0x7FFFFFFF
    if satfinite:
        code = np.where((code & 0x7FFF) >= 0x7F80, (code & 0x8000) | 0x7F7F, code)
    return np.where(magnitude > 0x7F800000, F16_NAN, code).astype(np.uint16)


def encode_f16(values: npt.NDArray[Any], rounding: str = "rn", satfinite: bool = False) -> npt.NDArray[np.uint16]:
    """cvt.{rn,rz}.f16.f32; NaN becomes 0x7fff."""
    exact = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        half = exact.astype(np.float16)
        code = half.view(np.uint16)
        if rounding == "rz":
            away = np.abs(half.astype(np.float64)) > np.abs(exact.astype(np.float64))
            code = code - away.astype(np.uint16)  # one code towards zero; from infinity to the largest finite value
    if satfinite:
        code = np.where((code & 0x7FFF) >= 0x7C00, (code & 0x8000) | 0x7BFF, code)
    return np.where(np.isnan(exact), F16_NAN, code).astype(np.uint16)


def encode_tf32(values: Floats, rounding: str = "rna", satfinite: bool = False) -> Bits:
    """cvt.{rna,rn,rz}.tf32.f32 as float32 bits with 13 low zeros.

    NaN becomes 0x7fffe000; but rna, which is integer arithmetic on an H100, cuts it: a short payload gives infinity.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    code = (bits + np.where(finite, _tf32_half(bits, rounding), np.uint32(0))) & 0xFFFFE000
    if satfinite:
        code = np.where((code & 0x7FFFFFFF) >= 0x7F800000, (code & 0x80000000) | 0x7F7FE000, code)
    if rounding == "rna":
        return code.astype(np.uint32)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, TF32_NAN, code).astype(np.uint32)


def _tf32_half(bits: Bits, rounding: str) -> Bits:
    """What is added before the 13 low bits are cut: half of the last place, a little less for a tie to even."""
    if rounding == "rn":
        return ((bits >> 13) & 1).astype(np.uint32) + np.uint32(0xFFF)
    return np.full_like(bits, {"rna": 0x1000, "rz": 0}[rounding])


def relu(values: Floats) -> Floats:
    """The .relu of cvt, on the input: negative values and -0 become +0, NaN stays."""
    return np.where(np.isnan(values), values, np.maximum(values, np.float32(0)) + np.float32(0))


def canonical_nan(values: Floats) -> Floats:
    """Every NaN as 0x7fffffff, the one that float arithmetic of a GPU gives."""
    bits = np.where(np.isnan(values), np.uint32(F32_NAN), np.ascontiguousarray(values).view(np.uint32))
    return bits.view(np.float32)


def flush_subnormals(bits: Bits) -> Bits:
    """The .ftz of float32 bits: subnormals become zeros of the same sign."""
    return np.where((bits & 0x7F800000) == 0, bits & 0x80000000, bits).astype(np.uint32)


def pack_pair(high: Codes, low: Codes, bits: int) -> Bits:
    """The x2 forms of cvt: the first source operand goes to the upper half of the destination (of 2 * bits)."""
    return (high.astype(np.uint32) << np.uint32(bits)) | low.astype(np.uint32)
