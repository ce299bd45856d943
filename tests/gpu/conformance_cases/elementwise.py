"""Scalar and packed instructions that work lane by lane: conversions, bit operations, integer and float arithmetic.

Every instruction gets the same kind of kernel: operands from arrays, one result per thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from . import oracles
from .case import PRELUDE, Array, Case, In, generator, out
from .oracles import Oracle

COUNT = 2048
THREADS = 256
# register class of the asm constraint -> (C type, numpy type)
CLASSES = {
    "r": ("u32", np.uint32),
    "f": ("float", np.float32),
    "h": ("u16", np.uint16),
    "l": ("u64", np.uint64),
    "d": ("double", np.float64),
}


@dataclass(frozen=True)
class Op:
    """One instruction: text with %0 the result and %1.. the operands; constraint letters, the result's first."""

    family: str
    text: str
    classes: str
    inputs: str = "any"  # which operand generator
    oracle: Oracle | None = None
    ulp: int = -1

    @property
    def kernel(self) -> str:
        words = "".join(c if c.isalnum() else "_" for c in self.text.split("%")[0].strip(" {;"))
        return f"op_{words.strip('_')}_{self.classes}_{abs(hash_of(self.text)) % 9973}"


def hash_of(text: str) -> int:
    """A hash that is the same in every process."""
    return int.from_bytes(text.encode(), "little") % 1000003


# operands

F32_SPECIAL = [
    *(0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001),
    *(0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F7FFFFF, 0x33800000, 0x4B000000),
    *(0x43E00000, 0x43E80000, 0x43E7FFFF, 0x43E80001, 0x47600000, 0x47700000, 0x477FE000, 0x477FF000, 0x477FEFFF),
    *(0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0x33000000),
    *(0x38800000, 0x387FC000, 0x387FE000, 0x33000001, 0x3A800000, 0x3A7FFFFF, 0x37800000, 0x36800000, 0x4F000000),
    *(0x4EFFFFFF, 0xCF000000, 0x4F800000, 0x3F000000, 0x3FC00000, 0x40200000, 0xBF000000, 0xBFC00000, 0x7F000000),
    *(0x3B000000, 0x3A800001, 0x3B7FFFFF, 0x43800000, 0x42FE0000, 0x42FF0000, 0x437F0000, 0x437F8000, 0xC3008000),
]


def _f32(kind: str, rng: np.random.Generator) -> Array:
    bits = rng.integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32)
    moderate = (rng.standard_normal(COUNT) * 2.0 ** rng.integers(-12, 12, COUNT)).astype(np.float32)
    values = np.where(rng.random(COUNT) < 0.5, bits, moderate.view(np.uint32)).astype(np.uint32)
    if kind == "positive":
        values &= 0x7FFFFFFF
        values[values >= 0x7E000000] = 0x3F800000  # no subnormal reciprocal
        values[values < 0x01000000] = 0x3F800000
        return values.view(np.float32)
    if kind == "exponent":
        return rng.uniform(-126, 126, COUNT).astype(np.float32)
    special = np.array(F32_SPECIAL, dtype=np.uint32)
    values[: special.size] = special
    values[-special.size :] = rng.permutation(special)
    return values.view(np.float32)


def _halves(rng: np.random.Generator) -> Array:
    """Packed 16-bit operands: random codes, moderate values and the special codes of both 16-bit formats."""
    codes = rng.integers(0, 1 << 16, 2 * COUNT, dtype=np.uint16)
    codes[:COUNT:2] = rng.integers(0x3C00, 0x4200, COUNT // 2, dtype=np.uint16)  # moderate in f16 and in bf16
    codes[1:COUNT:4] = rng.choice(
        np.array(
            [0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7C01, 0x7F80, 0xFF80, 0x7F81, 0x7BFF, 0x7F7F, 0x0400, 0x0080],
            np.uint16,
        ),
        COUNT // 4,
    )
    return codes.view(np.uint32)


def operands(op: Op, rng: np.random.Generator) -> list[Array]:
    return [_operand(op, letter, position, rng) for position, letter in enumerate(op.classes[1:])]


def _operand(op: Op, letter: str, position: int, rng: np.random.Generator) -> Array:
    if letter == "f":
        return _f32(op.inputs, rng)
    if letter == "d":
        with np.errstate(invalid="ignore"):
            return _f32(op.inputs, rng).astype(np.float64) * (1 + rng.random(COUNT) * 2.0**-30)
    if op.inputs == "halves":
        return _halves(rng) if letter == "r" else _halves(rng).view(np.uint16)[:COUNT].copy()
    dtype = CLASSES[letter][1]
    octets = rng.integers(0, 256, COUNT * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
    small = (octets & 63).astype(dtype)
    if op.inputs == "shift" and position > 0:
        return small
    return np.where(rng.random(COUNT) < 0.25, small, octets).astype(dtype)


CVT = (
    Op("cvt 16 bits", "cvt.rn.bf16x2.f32 %0, %1, %2;", "rff", oracle=oracles.bf16x2),
    Op("cvt 16 bits", "cvt.rz.bf16x2.f32 %0, %1, %2;", "rff"),
    Op("cvt 16 bits", "cvt.rn.relu.bf16x2.f32 %0, %1, %2;", "rff"),
    Op("cvt 16 bits", "cvt.rn.f16x2.f32 %0, %1, %2;", "rff", oracle=oracles.f16x2),
    Op("cvt 16 bits", "cvt.rz.f16x2.f32 %0, %1, %2;", "rff"),
    Op("cvt 16 bits", "cvt.rn.satfinite.f16x2.f32 %0, %1, %2;", "rff", oracle=oracles.f16x2_saturated),
    Op("cvt 16 bits", "cvt.rn.relu.f16x2.f32 %0, %1, %2;", "rff"),
    Op("cvt 16 bits", "cvt.rn.bf16.f32 %0, %1;", "hf", oracle=oracles.to_bf16),
    Op("cvt 16 bits", "cvt.rz.bf16.f32 %0, %1;", "hf"),
    Op("cvt 16 bits", "cvt.rn.f16.f32 %0, %1;", "hf", oracle=oracles.to_f16),
    Op("cvt 16 bits", "cvt.rz.f16.f32 %0, %1;", "hf"),
    Op("cvt 16 bits", "cvt.f32.f16 %0, %1;", "fh", "halves", oracles.half_to_single),
    Op("cvt 16 bits", "cvt.f32.bf16 %0, %1;", "fh", "halves"),
    Op("cvt 8 bits", "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "hff", oracle=oracles.e4m3x2),
    Op("cvt 8 bits", "cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "hff", oracle=oracles.e5m2x2),
    Op("cvt 8 bits", "cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;", "hff"),
    Op("cvt 8 bits", "cvt.rn.satfinite.relu.e5m2x2.f32 %0, %1, %2;", "hff"),
    Op("cvt 8 bits", "cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;", "hr", "halves"),
    Op("cvt 8 bits", "cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;", "hr", "halves"),
    Op("cvt 8 bits", "cvt.rn.f16x2.e4m3x2 %0, %1;", "rh", oracle=oracles.decode_pair(ml_dtypes.float8_e4m3fn)),
    Op("cvt 8 bits", "cvt.rn.f16x2.e5m2x2 %0, %1;", "rh", oracle=oracles.decode_pair(ml_dtypes.float8_e5m2)),
    Op("cvt 8 bits", "cvt.rn.relu.f16x2.e4m3x2 %0, %1;", "rh"),
    Op("cvt tf32", "cvt.rna.tf32.f32 %0, %1;", "rf", oracle=oracles.tf32_away),
    Op("cvt tf32", "cvt.rn.tf32.f32 %0, %1;", "rf", oracle=oracles.tf32_nearest),
    Op("cvt tf32", "cvt.rz.tf32.f32 %0, %1;", "rf", oracle=oracles.tf32_cut),
    Op("cvt tf32", "cvt.rn.relu.tf32.f32 %0, %1;", "rf"),
    *[
        Op("cvt integer", f"cvt.{r}.{t}.f32 %0, %1;", "rf", oracle=oracles.to_integer(r, t))
        for r in ("rni", "rzi", "rmi", "rpi")
        for t in ("s32", "u32")
    ],
    *[Op("cvt integer", f"cvt.rzi.{t}.f32 %0, %1;", "lf") for t in ("s64", "u64")],
    *[Op("cvt integer", f"cvt.{r}.f32.{t} %0, %1;", "fr") for r in ("rn", "rz") for t in ("s32", "u32")],
    *[Op("cvt integer", f"cvt.rn.f32.{t} %0, %1;", "fl") for t in ("s64", "u64")],
    *[Op("cvt integer", f"cvt.sat.{t}.s32 %0, %1;", "rr") for t in ("u8", "s8", "u16", "s16")],
    *[Op("cvt integer", f"cvt.{t}.u32 %0, %1;", "rr") for t in ("u8", "s8", "u16", "s16")],
    Op("cvt integer", "cvt.s64.s32 %0, %1;", "lr", oracle=lambda a: a.view(np.int32).astype(np.int64).view(np.uint64)),
    Op("cvt integer", "cvt.u64.u32 %0, %1;", "lr", oracle=lambda a: a.astype(np.uint64)),
    Op("cvt integer", "cvt.u32.u64 %0, %1;", "rl", oracle=lambda a: a.astype(np.uint32)),
    *[Op("cvt round", f"cvt.{r}.f32.f32 %0, %1;", "ff", oracle=oracle) for r, oracle in oracles.WHOLE.items()],
    Op("cvt f64", "cvt.f64.f32 %0, %1;", "df"),
    Op("cvt f64", "cvt.rn.f32.f64 %0, %1;", "fd"),
)
BITS = (
    Op("prmt", "prmt.b32 %0, %1, %2, %3;", "rrrr", oracle=oracles.prmt),
    *[Op("prmt", f"prmt.b32.{m} %0, %1, %2, %3;", "rrrr") for m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")],
    Op("shf", "shf.l.clamp.b32 %0, %1, %2, %3;", "rrrr", "shift", oracles.shf_left),
    *[Op("shf", f"shf.{m}.b32 %0, %1, %2, %3;", "rrrr", "shift") for m in ("l.wrap", "r.clamp", "r.wrap")],
    *[Op("shifts", f"{m} %0, %1, %2;", "rrr", "shift") for m in ("shl.b32", "shr.u32", "shr.s32")],
    *[Op("shifts", f"{m} %0, %1, %2;", "llr", "shift") for m in ("shl.b64", "shr.u64", "shr.s64")],
    Op("bit fields", "bfe.u32 %0, %1, %2, %3;", "rrrr", "shift", oracles.field),
    Op("bit fields", "bfe.s32 %0, %1, %2, %3;", "rrrr", "shift"),
    Op("bit fields", "bfi.b32 %0, %1, %2, %3, %4;", "rrrrr"),
    Op("bit counts", "popc.b32 %0, %1;", "rr", oracle=lambda a: np.bitwise_count(a).astype(np.uint32)),
    *[
        Op("bit counts", f"{m} %0, %1;", "rr")
        for m in ("clz.b32", "brev.b32", "bfind.u32", "bfind.s32", "bfind.shiftamt.u32")
    ],
    *[Op("lop3", f"lop3.b32 %0, %1, %2, %3, {n};", "rrrr") for n in (0x96, 0xE8, 0xCA, 0x1B, 0xF8)],
)
INTEGER = (
    *[
        Op("integer", f"{m} %0, %1, %2;", "rrr")
        for m in ("mul.hi.u32", "mul.hi.s32", "mul.lo.u32", "min.s32", "min.u32", "max.s32", "max.u32")
    ],
    *[Op("integer", f"{m} %0, %1, %2;", "lrr") for m in ("mul.wide.u32", "mul.wide.s32")],
    *[Op("integer", f"{m} %0, %1, %2, %3;", "rrrr") for m in ("mad.lo.u32", "mad.hi.u32")],
    Op("integer", "mad.wide.u32 %0, %1, %2, %3;", "lrrl"),
    *[
        Op("integer", f"{m} %0, %1, %2;", "lll")
        for m in ("add.u64", "sub.u64", "mul.lo.u64", "min.u64", "max.s64", "mul.hi.u64")
    ],
    Op("integer", "sub.u32 %0, %1, %2;", "rrr"),
    *[Op("integer", f"{m} %0, %1;", "rr") for m in ("abs.s32", "neg.s32", "not.b32")],
    *[Op("integer", f"{m} %0, %1, %2;", "rrr", "shift") for m in ("div.u32", "rem.u32", "div.s32", "rem.s32")],
)
APPROXIMATED = (
    ("ex2", "exponent", 4),
    ("lg2", "positive", 1 << 12),
    ("rcp", "positive", 2),
    ("rsqrt", "positive", 4),
    ("sqrt", "positive", 4),
)
FLOAT = (  # 0 ulp: the payload of a NaN is not compared
    *[
        Op("float", f"{m}.f32 %0, %1, %2;", "fff", oracle=oracles.FLOAT.get(m), ulp=0)
        for m in ("add.rn", "sub.rn", "mul.rn", "add.rz", "mul.rz", "add.ftz", "mul.ftz", "div.rn")
    ],
    *[Op("float", f"{m}.f32 %0, %1, %2, %3;", "ffff", ulp=0) for m in ("fma.rn", "fma.rz", "fma.rn.ftz")],
    *[
        Op("float", f"{m}.f32 %0, %1, %2;", "fff", oracle=oracles.FLOAT.get(m), ulp=0)
        for m in ("min", "max", "min.NaN", "max.NaN", "max.ftz")
    ],
    *[
        Op("float", f"{m}.f32 %0, %1;", "ff", oracle=oracles.FLOAT.get(m), ulp=0)
        for m in ("abs", "neg", "sqrt.rn", "rcp.rn")
    ],
    Op("float", "copysign.f32 %0, %1, %2;", "fff"),
    *[
        Op("float compare", f"set.{c}.u32.f32 %0, %1, %2;", "rff", oracle=oracles.mask(c))
        for c in ("lt", "le", "gt", "ge", "eq", "ne", "ltu", "equ", "neu", "num", "nan")
    ],
    *[
        Op("approximations", f"{m}.approx{z}.f32 %0, %1;", "ff", operands, oracles.APPROXIMATED[m], ulp)
        for m, operands, ulp in APPROXIMATED
        for z in ("", ".ftz")
    ],
    Op("approximations", "div.approx.f32 %0, %1, %2;", "fff", "exponent", ulp=8),
    Op("approximations", "tanh.approx.f32 %0, %1;", "ff", "exponent", ulp=1 << 14),
    Op("approximations", "div.full.f32 %0, %1, %2;", "fff", "exponent", ulp=8),
)
PACKED = (
    *[
        Op("packed 16 bits", f"fma.rn.{t} %0, %1, %2, %3;", "rrrr", "halves")
        for t in ("bf16x2", "f16x2", "relu.bf16x2", "relu.f16x2")
    ],
    *[
        Op("packed 16 bits", f"{m}.{t} %0, %1, %2;", "rrr", "halves")
        for m in ("add.rn", "sub.rn", "mul.rn", "min", "max", "min.NaN", "max.NaN")
        for t in ("bf16x2", "f16x2")
    ],
    *[Op("packed 16 bits", f"{m}.{t} %0, %1;", "rr", "halves") for m in ("neg", "abs") for t in ("bf16x2", "f16x2")],
    *[Op("packed 16 bits", f"{m}.bf16 %0, %1, %2;", "hhh", "halves") for m in ("add.rn", "mul.rn", "max")],
)
OPS = (*CVT, *BITS, *INTEGER, *FLOAT, *PACKED)


def cases() -> Iterator[Case]:
    for group in (CVT, BITS, INTEGER, FLOAT, PACKED):
        source = PRELUDE + "".join(map(_kernel, group))
        for op in group:
            yield _case(source, op)


def _kernel(op: Op) -> str:
    types = [CLASSES[letter][0] for letter in op.classes]
    parameters = "".join(f"const {t}* in{i}, " for i, t in enumerate(types[1:]))
    inputs = ", ".join(f'"{letter}"(in{i}[n])' for i, letter in enumerate(op.classes[1:]))
    return f"""
extern "C" __global__ void {op.kernel}({parameters}{types[0]}* to) {{
  u32 n = blockIdx.x * blockDim.x + threadIdx.x;
  {types[0]} result;
  asm volatile("{op.text}" : "={op.classes[0]}"(result) : {inputs});
  to[n] = result;
}}
"""


def _case(source: str, op: Op) -> Case:
    name = f"{op.text.split(' ')[0]} {op.classes}" + (
        op.text.rsplit(",", 1)[1].strip(" ;") if "lop3" in op.text else ""
    )
    arrays = operands(op, generator(name))
    if op.text.startswith(("div", "rem")) and op.classes == "rrr":
        arrays[1][arrays[1] == 0] = 1
    dtype = CLASSES[op.classes[0]][1]
    oracle = op.oracle or oracles.by_text(op.text)
    return Case(
        family=op.family,
        name=name,
        source=source,
        kernel=op.kernel,
        parameters=(*map(In, arrays), out(COUNT, dtype, op.ulp)),
        grid=(COUNT // THREADS, 1, 1),
        block=(THREADS, 1, 1),
        expected=(oracle(*arrays).astype(dtype) if oracle else None,),
    )
