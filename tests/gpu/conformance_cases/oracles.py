"""What numpy and ml_dtypes say of lane-by-lane instructions: oracles that share nothing with the simulator."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from .case import Array

Oracle = Callable[..., Array]

NAN16, NAN32, NAN_TF32 = 0x7FFF, 0x7FFFFFFF, 0x7FFFE000


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


def f16x2_saturated(a: Array, b: Array) -> Array:
    return f16x2(*(np.where(np.isnan(x), x, np.clip(x, -65504, 65504)) for x in (a, b)))


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
    """Integer arithmetic, so a NaN or an infinity is cut, not rounded."""
    bits = a.view(np.uint32)
    return np.where(np.isfinite(a), bits + 0x1000, bits) & 0xFFFFE000


def tf32_nearest(a: Array) -> Array:
    """To even, by float64 arithmetic: adding and taking away 2**13 times the last place of tf32."""
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(a.astype(np.float64))[1] - 11, -136)
        rounded = np.ldexp(np.rint(np.ldexp(a.astype(np.float64), -exponent)), exponent).astype(np.float32)
    bits = np.where(np.isfinite(a), rounded, a).view(np.uint32)
    return np.where(np.isnan(a), NAN_TF32, bits).astype(np.uint32)


def tf32_cut(a: Array) -> Array:
    return np.where(np.isnan(a), NAN_TF32, a.view(np.uint32) & 0xFFFFE000)


def half_to_single(a: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return single(lambda x: x)(a.view(np.float16))


def sign_of_halves(operation: str, dtype: type) -> Oracle:
    """neg and abs of both halves: an H100 adds zero, which leaves one NaN."""

    def compute(a: Array) -> Array:
        codes = a.view(np.uint16)
        changed = codes ^ 0x8000 if operation == "neg" else codes & 0x7FFF
        with np.errstate(invalid="ignore"):
            nan = np.isnan(codes.view(dtype).astype(np.float32))
        return np.where(nan, NAN16, changed).astype(np.uint16).view(a.dtype)

    return compute


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


WHOLE: dict[str, Oracle] = {
    "rni": single(np.rint),
    "rzi": single(np.trunc),
    "rmi": single(np.floor),
    "rpi": single(np.ceil),
}


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


def integer(function: Callable[..., int], bits: int = 32, signed: bool = False, result_bits: int = 0) -> Oracle:
    """An operation on Python integers, taken modulo the result's width."""

    def compute(*operands: Array) -> Array:
        rows = zip(*(_whole_numbers(x, bits, signed) for x in operands), strict=True)
        modulus = 1 << (result_bits or bits)
        return np.array([function(*row) % modulus for row in rows], np.uint64)

    return compute


def _whole_numbers(values: Array, bits: int, signed: bool) -> list[int]:
    return [v - (1 << bits) if signed and v >> (bits - 1) else v for v in values.tolist()]


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(value: int, count: int, left: bool, bits: int, signed: bool) -> int:
    """shl, shr: counts beyond the width act as the width."""
    count = min(count, bits)
    value = value - (1 << bits) if signed and value >> (bits - 1) else value
    return value << count if left else value >> count


INTEGER: dict[str, Oracle] = {
    "mul.hi.u32": integer(lambda a, b: a * b >> 32),
    "mul.hi.s32": integer(lambda a, b: a * b >> 32, signed=True),
    "mul.lo.u32": integer(lambda a, b: a * b),
    "min.s32": integer(min, signed=True),
    "min.u32": integer(min),
    "max.s32": integer(max, signed=True),
    "max.u32": integer(max),
    "mul.wide.u32": integer(lambda a, b: a * b, result_bits=64),
    "mul.wide.s32": integer(lambda a, b: a * b, signed=True, result_bits=64),
    "mad.lo.u32": integer(lambda a, b, c: a * b + c),
    "mad.hi.u32": integer(lambda a, b, c: (a * b >> 32) + c),
    "mad.wide.u32": integer(lambda a, b, c: a * b + c, result_bits=64),
    "bfe.s32": integer(lambda a, s, n: signed_field(a, s, n)),
    "bfi.b32": integer(lambda f, a, s, n: bit_field_insert(f, a, s, n)),
    "add.u64": integer(lambda a, b: a + b, 64),
    "sub.u64": integer(lambda a, b: a - b, 64),
    "mul.lo.u64": integer(lambda a, b: a * b, 64),
    "mul.hi.u64": integer(lambda a, b: a * b >> 64, 64),
    "min.u64": integer(min, 64),
    "max.s64": integer(max, 64, signed=True),
    "sub.u32": integer(lambda a, b: a - b),
    "abs.s32": integer(abs, signed=True),
    "neg.s32": integer(lambda a: -a),
    "not.b32": integer(lambda a: ~a),
    "div.u32": integer(lambda a, b: a // b),
    "rem.u32": integer(lambda a, b: a % b),
    "div.s32": integer(towards_zero, signed=True),
    "rem.s32": integer(lambda a, b: a - b * towards_zero(a, b), signed=True),
    "clz.b32": integer(lambda a: 32 - a.bit_length()),
    "brev.b32": integer(lambda a: int(f"{a:032b}"[::-1], 2)),
    "bfind.u32": integer(lambda a: a.bit_length() - 1),
    "bfind.s32": integer(lambda a: (~a if a < 0 else a).bit_length() - 1, signed=True),
    "bfind.shiftamt.u32": integer(lambda a: 32 - a.bit_length() if a else -1),
    "shl.b32": integer(lambda a, n: shifted(a, n, True, 32, False)),
    "shr.u32": integer(lambda a, n: shifted(a, n, False, 32, False)),
    "shr.s32": integer(lambda a, n: shifted(a, n, False, 32, True)),
    "shl.b64": integer(lambda a, n: shifted(a, n, True, 64, False), 64),
    "shr.u64": integer(lambda a, n: shifted(a, n, False, 64, False), 64),
    "shr.s64": integer(lambda a, n: shifted(a, n, False, 64, True), 64),
    "shf.l.wrap.b32": integer(lambda low, high, n: (high << 32 | low) << n % 32 >> 32),
    "shf.r.wrap.b32": integer(lambda low, high, n: (high << 32 | low) >> n % 32),
    "shf.r.clamp.b32": integer(lambda low, high, n: (high << 32 | low) >> min(n, 32)),
}


def lop3(table: int) -> Oracle:
    """Any function of three bits, by its truth table."""

    def compute(a: int, b: int, c: int) -> int:
        chosen = [i for i in range(8) if table >> i & 1]
        terms = ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c) for i in chosen)
        result = 0
        for term in terms:
            result |= term
        return result

    return integer(compute)


def bit_field_insert(source: int, target: int, start: int, length: int) -> int:
    """bfi: start and length are bytes; what falls off the top is lost."""
    mask = ((1 << (length & 0xFF)) - 1) << (start & 0xFF)
    return target & ~mask | source << (start & 0xFF) & mask


def signed_field(value: int, start: int, length: int) -> int:
    """bfe.s32: above the field, and beyond the word, the sign of the field's (or the word's) last bit."""
    start, length = start & 0xFF, length & 0xFF
    if length == 0:
        return 0
    sign = value >> min(start + length - 1, 31) & 1
    word = value | (-1 << 32 if value >> 31 else 0)
    field = word >> min(start, 40) & (1 << min(length, 32)) - 1
    return field | (-1 << length if sign and length < 32 else 0)


def halves(function: Callable[..., Array], dtype: type) -> Oracle:
    """A packed 16-bit operation through float64, rounded once (sums and products of these formats allow it)."""

    def compute(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            values = [x.view(np.uint16).view(dtype).astype(np.float64) for x in operands]
            codes = to16(function(*values), dtype).astype(np.uint16)
        return codes.view(operands[0].dtype)

    return compute


HALF_OPERATIONS: dict[str, Callable[..., Array]] = {
    "add.rn": np.add,
    "sub.rn": np.subtract,
    "mul.rn": np.multiply,
    "min.NaN": lambda a, b: np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b)),
    "max.NaN": lambda a, b: np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.maximum(a, b)),
    "min": lambda a, b: np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b)),
    "max": lambda a, b: np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b)),
}
HALF_TYPES = {"bf16x2": ml_dtypes.bfloat16, "f16x2": np.float16, "bf16": ml_dtypes.bfloat16}


def by_text(text: str) -> Oracle | None:
    """The oracle of an instruction's text, where its opcode alone (or its immediate) says what it computes."""
    opcode = text.split(" ")[0]
    if opcode.startswith("lop3"):
        return lop3(int(text.rsplit(",", 1)[1].strip(" ;")))
    operation, _, kind = opcode.rpartition(".")
    if kind in HALF_TYPES and operation in ("neg", "abs"):
        return sign_of_halves(operation, HALF_TYPES[kind])
    if kind in HALF_TYPES and operation in HALF_OPERATIONS:
        return halves(HALF_OPERATIONS[operation], HALF_TYPES[kind])
    return INTEGER.get(opcode)
