"""cvt and cvt.pack: between integers, floats and narrow packed formats, with every rounding.
The rounding of narrow formats is formats.py's; this file reads modifiers and moves lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import formats
from .elementwise import destination, row_copy, row_expression, value_call
from .errors import UnknownInstruction
from .floats import flush, round_directed, saturate
from .packed import narrow, widen
from .registry import Bind, Call, Mods, instruction
from .types import DTYPES, LANES, Array, Instr, Mask, Reg, bits_of, dtype_of
from .values import BITS, UNSIGNED

if TYPE_CHECKING:
    from .warp import Warp

_FLOATS = ("f16", "bf16", "f32", "f64")
_NARROW = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "e4m3x4", "e5m2x4")
_ROUND = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_TO_INTEGRAL: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_EXTRA_TYPES = {"tf32": 32, "bf16x2": 32, "f16x2": 32, **dict.fromkeys(_NARROW, 16)}


@instruction("cvt")
def cvt(instr: Instr) -> Bind:
    mods = Mods(instr)
    target, source = _two_types(instr, mods)
    mode = mods.pick(_ROUND)
    ftz, sat, satfinite, relu = mods.flag("ftz"), mods.flag("sat"), mods.flag("satfinite"), mods.flag("relu")
    mods.done()
    if target in _NARROW or source in _NARROW:
        return _narrow_pair(instr, target, source, mode, satfinite, relu)
    if target in ("bf16x2", "f16x2"):
        return _half_pair(instr, target, mode, satfinite, relu)
    if target == "tf32":
        return _to_tf32(instr, mode or "rna", satfinite, relu)
    convert = _scalar(target, source, mode, ftz, sat or satfinite, relu)
    if convert is None:
        return _integer_move(instr, target, source)
    return _elementwise(instr, dtype_of(source), _out_dtype(target), convert)


def _two_types(instr: Instr, mods: Mods) -> tuple[str, str]:
    names = [p for p in mods.left if p in _EXTRA_TYPES or (p in DTYPES or p in ("bf16", "b16", "b8", "b32", "b64"))]
    mods.left = [p for p in mods.left if p not in names]
    if len(names) != 2:
        raise UnknownInstruction(f"{instr.opcode!r}: expected two types, found {names}")
    return names[0], names[1]


def _out_dtype(target: str) -> str:
    return "u16" if target in ("f16", "bf16") else dtype_of(target)


def _to_tf32(instr: Instr, mode: str, satfinite: bool, relu: bool) -> Bind:
    """rna cuts the payload of a NaN; one of a value in flight must stay a NaN, and no other value in flight."""

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out, row = _wide_destination(warp, instr.operands[0], "u32"), warp.src(instr.operands[1], "f32")

        def compute() -> Array:
            x = formats.relu(row) if relu else row
            code = formats.encode_tf32(x, mode, satfinite)
            return np.where(np.isnan(x), np.uint32(formats.TF32_NAN), code) if warp.wgmma_pending else code

        return value_call(out, mask, compute)

    return bind


def _elementwise(instr: Instr, source: str, target: str, convert: Callable[[Array], Array]) -> Bind:
    """One register in, one out; a destination register wider than the type is extended."""

    return row_expression(_wide_target(instr.operands[0], target), [(instr.operands[1], source)], convert)


def _wide_target(operand: Any, dtype: str) -> tuple[Any, str]:
    """The target with the type it is written under."""
    if isinstance(operand, Reg) and operand.kind in UNSIGNED and int(operand.kind) > BITS[dtype]:
        return operand, ("s" if dtype.startswith("s") else "u") + operand.kind
    return operand, dtype


def _wide_destination(warp: Warp, operand: Any, dtype: str) -> Array:
    if (
        isinstance(operand, Reg)
        and operand.kind in UNSIGNED
        and int(operand.kind) > 8 * np.dtype(DTYPES[dtype]).itemsize
    ):
        wide = ("s" if dtype.startswith("s") else "u") + operand.kind
        return warp.row(operand, wide)
    return destination(warp, operand, dtype)


def _integer_move(instr: Instr, target: str, source: str) -> Bind:
    """Integer to integer: truncate, or extend by the source's sign."""

    wide = _wide_target(instr.operands[0], dtype_of(target))
    if bits_of(target) < BITS[wide[1]] or bits_of(source) > BITS[wide[1]]:
        narrow_type = DTYPES[dtype_of(target)]
        return row_expression(wide, [(instr.operands[1], dtype_of(source))], lambda row: row.astype(narrow_type), True)
    return row_copy(wide, (instr.operands[1], dtype_of(source)))


def _scalar(target: str, source: str, mode: str, ftz: bool, sat: bool, relu: bool) -> Callable[[Array], Array] | None:
    """The conversion of one value; None for a plain integer move."""
    if source in _FLOATS and target in _FLOATS:
        return lambda x: _float_to_float(_as_float(x, source, ftz), target, mode, ftz, sat, relu)
    if source in _FLOATS:
        return lambda x: _float_to_int(_as_float(x, source, ftz), target, mode or "rzi")
    if target in _FLOATS:
        return lambda x: _int_to_float(x, target, mode or "rn")
    if sat:
        low, high = _limits(target)
        return lambda x: _clip(x, low, high).astype(DTYPES[dtype_of(target)])
    return None


def _clip(x: Array, low: int, high: int) -> Array:
    info = np.iinfo(x.dtype)
    return np.clip(x, max(low, int(info.min)), min(high, int(info.max)))


def _as_float(x: Array, source: str, ftz: bool) -> Array:
    if source == "bf16":
        return widen(x)
    if source == "f16":
        return formats.canonical_nan(x.astype(np.float32))
    return flush(x) if ftz and source == "f32" else x


def _float_to_float(x: Array, target: str, mode: str, ftz: bool, sat: bool, relu: bool) -> Array:
    if mode in _TO_INTEGRAL:
        x = _TO_INTEGRAL[mode](x)
        x = formats.canonical_nan(x) if x.dtype == np.float32 else x
    if relu:
        x = formats.relu(x)
    if sat:
        x = saturate(x)
    if target == "f64":
        return x.astype(np.float64)
    if target in ("bf16", "f16"):
        if mode in ("rn", "rz", "") and x.dtype == np.float32:
            encode = formats.encode_bf16 if target == "bf16" else formats.encode_f16
            return encode(x, mode or "rn")
        return narrow(x.astype(np.float64), target)
    if x.dtype == np.float64 and mode in ("rz", "rm", "rp"):
        x = round_directed(x, np.zeros(LANES), mode)
    result = x.astype(np.float32)
    return flush(result) if ftz else result


def _limits(target: str) -> tuple[int, int]:
    bits = bits_of(target)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if target.startswith("s") else (0, (1 << bits) - 1)


def _float_to_int(x: Array, target: str, mode: str) -> Array:
    """Rounds, clamps to the range; NaN gives 0 (the largest magnitude bit pattern for 64 bits)."""
    low, high = _limits(target)
    rounded = _TO_INTEGRAL[mode](x.astype(np.float64))
    nan = 0 if bits_of(target) < 64 else 1 << 63
    out = [
        (
            nan
            if value != value
            else max(low, min(high, int(value) if abs(value) < 1e300 else (high if value > 0 else low)))
        )
        for value in rounded.tolist()
    ]
    unsigned = np.array([value % (1 << 64) for value in out], np.uint64)
    return unsigned.astype(DTYPES[f"u{bits_of(target)}"]).view(DTYPES[dtype_of(target)])


def _int_to_float(x: Array, target: str, mode: str) -> Array:
    if target == "f64":
        return x.astype(np.float64)
    if target in ("f16", "bf16"):
        return narrow(x.astype(np.float64), target)
    if mode == "rn":
        return x.astype(np.float32)
    if x.dtype.itemsize < 8:
        return round_directed(x.astype(np.float64), np.zeros(LANES), mode)
    wide = x.astype(np.longdouble)
    near = x.astype(np.float64)
    return round_directed(near, (wide - near).astype(np.float64), mode)


def _half_pair(instr: Instr, target: str, mode: str, satfinite: bool, relu: bool) -> Bind:
    """Two float32 into one register; the first operand goes to the upper half."""
    encode = formats.encode_bf16 if target == "bf16x2" else formats.encode_f16

    def convert(x: Array) -> Array:
        return encode(formats.relu(x) if relu else x, mode or "rn", satfinite).astype(np.uint32)

    target_row, high, low = instr.operands
    sources = [(high, "f32"), (low, "f32")]
    if target == "bf16x2" and mode in ("rn", "") and not satfinite and not relu:
        return row_expression((target_row, "u32"), sources, _bf16_pair, batch=True)
    shift = np.uint32(16)
    return row_expression((target_row, "u32"), sources, lambda high, low: convert(high) << shift | convert(low))


_HALF, _ONE, _SIXTEEN, _UPPER = np.uint32(0x7FFF), np.uint32(1), np.uint32(16), np.uint32(0xFFFF0000)


def _bf16_pair(high: Array, low: Array) -> Array:
    """Both halves rounded on integer bits; NaN takes the general way."""
    total: Array = high + low  # NaN if either is (or the infinities differ)
    if np.isnan(total).any():
        codes = [formats.encode_bf16(np.ascontiguousarray(x)).astype(np.uint32) for x in (high, low)]
        return codes[0] << _SIXTEEN | codes[1]
    upper, lower = high.view(np.uint32), low.view(np.uint32)
    upper = upper + _HALF + (upper >> _SIXTEEN & _ONE)
    lower = lower + _HALF + (lower >> _SIXTEEN & _ONE)
    result: Array = upper & _UPPER | lower >> _SIXTEEN
    return result


def _narrow_pair(instr: Instr, target: str, source: str, mode: str, satfinite: bool, relu: bool) -> Bind:
    if target in _NARROW and source == "f32" and target.endswith("x2"):
        return _encode_pair(instr, target[:-2], mode, satfinite, relu)
    if target in _NARROW and source in ("f16x2", "bf16x2"):
        return _encode_half_pair(instr, target[:-2], source, mode, satfinite, relu)
    if source in _NARROW and target in ("f16x2", "bf16x2"):
        return _decode_pair(instr, source[:-2], target, relu)
    raise UnknownInstruction(f"{instr.opcode!r}: this conversion is not modelled")


def _encode(x: Array, fmt: str, mode: str, satfinite: bool, relu: bool) -> Array:
    value = formats.relu(x) if relu else x
    if fmt == "ue8m0":
        return formats.encode_ue8m0(value, mode or "rz", satfinite).astype(np.uint32)
    return formats.encode_rn_satfinite(value, fmt).astype(np.uint32)


def _pack_width(fmt: str) -> int:
    return 4 if fmt == "e2m1" else 8


def _encode_pair(instr: Instr, fmt: str, mode: str, satfinite: bool, relu: bool) -> Bind:
    width = np.uint32(_pack_width(fmt))

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = _wide_destination(warp, instr.operands[0], "u8" if fmt == "e2m1" else "u16")
        high, low = (warp.src(op, "f32") for op in instr.operands[1:3])
        return value_call(
            out,
            mask,
            lambda: _encode(high, fmt, mode, satfinite, relu) << width | _encode(low, fmt, mode, satfinite, relu),
        )

    return bind


def _encode_half_pair(instr: Instr, fmt: str, source: str, mode: str, satfinite: bool, relu: bool) -> Bind:
    width = np.uint32(_pack_width(fmt))

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = _wide_destination(warp, instr.operands[0], "u8" if fmt == "e2m1" else "u16")
        row = warp.src(instr.operands[1], "u32")

        def compute() -> Array:
            low, high = (formats.decode(part, source[:-2]) for part in (row & 0xFFFF, row >> 16))
            return _encode(high, fmt, mode, satfinite, relu) << width | _encode(low, fmt, mode, satfinite, relu)

        return value_call(out, mask, compute)

    return bind


def _decode_pair(instr: Instr, fmt: str, target: str, relu: bool) -> Bind:
    width = _pack_width(fmt)

    def bind(warp: Warp, mask: Mask | None) -> Call:
        out = destination(warp, instr.operands[0], "u32")
        row = (
            warp.registers.raw(instr.operands[1])
            if isinstance(instr.operands[1], Reg)
            else warp.src(instr.operands[1], "u16")
        )

        def half(code: Array) -> Array:
            value = formats.decode(code.astype(np.uint8), fmt)
            value = formats.relu(value) if relu else value
            return (formats.encode_f16 if target == "f16x2" else formats.encode_bf16)(value).astype(np.uint32)

        def compute() -> Array:
            codes = row.astype(np.uint32)
            low, high = codes & (1 << width) - 1, codes >> width & (1 << width) - 1
            return half(high) << np.uint32(16) | half(low)

        return value_call(out, mask, compute)

    return bind
