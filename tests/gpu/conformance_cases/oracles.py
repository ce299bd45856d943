"""What numpy and ml_dtypes say of lane-by-lane instructions: oracles that share nothing with the simulator."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from .case import Array

Oracle = Callable[..., Array]

NAN16, NAN32 = 0x7FFF, 0x7FFFFFFF


def to16(values: Array, dtype: type) -> Array:
    with np.errstate(all="ignore"):
        codes = values.astype(dtype).view(np.uint16)
    return np.where(np.isnan(values), NAN16, codes).astype(np.uint32)


def to_bf16(values: Array) -> Array:
    return to16(values, ml_dtypes.bfloat16).astype(np.uint16)


def to_f16(values: Array) -> Array:
    return to16(values, np.float16).astype(np.uint16)


def pack(high: Array, low: Array) -> Array:
    return (high << 16 | low).astype(np.uint32)


def bf16x2(a: Array, b: Array) -> Array:
    return pack(to16(a, ml_dtypes.bfloat16), to16(b, ml_dtypes.bfloat16))


def f16x2(a: Array, b: Array) -> Array:
    return pack(to16(a, np.float16), to16(b, np.float16))


def saturated(values: Array, dtype: type, nan: int) -> Array:
    largest = float(ml_dtypes.finfo(dtype).max)
    codes = np.clip(np.nan_to_num(values), -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(values), nan, codes).astype(np.uint16)


def e4m3x2(a: Array, b: Array) -> Array:
    return saturated(a, ml_dtypes.float8_e4m3fn, 0x7F) << 8 | saturated(b, ml_dtypes.float8_e4m3fn, 0x7F)


def e5m2x2(a: Array, b: Array) -> Array:
    return saturated(a, ml_dtypes.float8_e5m2, 0x7F) << 8 | saturated(b, ml_dtypes.float8_e5m2, 0x7F)


def shf_left(low: Array, high: Array, n: Array) -> Array:
    wide = high.astype(object) * 2**32 + low
    return np.array([int(w) << int(min(s, 32)) >> 32 & 0xFFFFFFFF for w, s in zip(wide, n, strict=True)], np.uint32)


def prmt(a: Array, b: Array, selector: Array) -> Array:
    result = np.zeros(a.size, np.uint32)
    octets = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], axis=1)
    for i in range(4):
        nibble = selector >> (4 * i) & 15
        octet = octets[np.arange(a.size), nibble & 7]
        octet = np.where(nibble & 8, np.where(octet & 0x80, 0xFF, 0), octet).astype(np.uint32)
        result |= octet << np.uint32(8 * i)
    return result


def field(a: Array, start: Array, length: Array) -> Array:
    return np.array(
        [
            int(x) >> min(int(s) & 255, 40) & (1 << min(int(n) & 255, 32)) - 1
            for x, s, n in zip(a, start, length, strict=True)
        ],
        np.uint32,
    )


def tf32_away(a: Array) -> Array:
    bits = a.view(np.uint32)
    return np.where(np.isnan(a), NAN32, (bits + 0x1000) & 0xFFFFE000)


def decode_pair(dtype: type) -> Oracle:
    def decode(pair: Array) -> Array:
        low, high = ((pair >> s & 0xFF).astype(np.uint8).view(dtype).astype(np.float32) for s in (0, 8))
        return pack(to16(high, np.float16), to16(low, np.float16))

    return decode


def to_integer(rounding: str, kind: str) -> Oracle:
    """Rounded to 32 bits and clamped; NaN gives 0."""
    to_whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]
    low, high = (-(2.0**31), 2.0**31 - 1) if kind == "s32" else (0.0, 2.0**32 - 1)

    def convert(a: Array) -> Array:
        whole = np.clip(to_whole(np.where(np.isnan(a), 0, a).astype(np.float64)), low, high)
        return whole.astype(np.int64) & 0xFFFFFFFF

    return convert


def single(function: Oracle) -> Oracle:
    """A float32 result of numpy with PTX's only NaN."""

    def compute(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            result = function(*operands).astype(np.float32)
        return np.where(np.isnan(result), NAN32, result.view(np.uint32)).astype(np.uint32).view(np.float32)

    return compute


def reciprocal(a: Array) -> Array:
    return np.float32(1) / a


def through_double(function: Oracle) -> Oracle:
    return single(lambda *operands: function(*(x.astype(np.float64) for x in operands)))


FLOAT: dict[str, Oracle] = {
    "add.rn": single(np.add),
    "sub.rn": single(np.subtract),
    "mul.rn": single(np.multiply),
    "div.rn": single(np.divide),
    "sqrt.rn": single(np.sqrt),
    "rcp.rn": single(reciprocal),
    "min.NaN": single(np.minimum),
    "max.NaN": single(np.maximum),
}
APPROXIMATED: dict[str, Oracle] = {
    "ex2": through_double(np.exp2),
    "lg2": through_double(np.log2),
    "rcp": through_double(lambda a: 1 / a),
    "rsqrt": through_double(lambda a: 1 / np.sqrt(a)),
    "sqrt": through_double(np.sqrt),
}
COMPARISONS: dict[str, Oracle] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "neu": np.not_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def mask(name: str) -> Oracle | None:
    """The result of set.*.u32: all ones where the comparison holds."""
    compare = COMPARISONS.get(name)
    return (lambda a, b: np.where(compare(a, b), 0xFFFFFFFF, 0).astype(np.uint32)) if compare else None
