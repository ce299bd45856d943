"""Scalar instructions against numpy and exact Python arithmetic, on random and edge values."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from core_ptx import Bench, kernel, lanes

from gemmgen import sim

RNG = np.random.default_rng(7)
EDGES32 = np.array([0, 1, 2, 31, 32, 33, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)


def u32() -> np.ndarray:
    values = RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
    values[:10] = RNG.permutation(EDGES32)
    return values


def f32(scale: float = 100.0) -> np.ndarray:
    values = (RNG.standard_normal(32) * scale).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.0, np.inf]
    return values


def binary(op: str, a: np.ndarray, b: np.ndarray, reg: str = "b32", out: object = np.uint32) -> np.ndarray:
    return lanes(f"{op} res, in0, in1;", [a, b], out, reg, reg)


INTEGER = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "min.u32": min,
    "max.u32": max,
    "shl.b32": lambda a, b: a << min(b, 32),
    "shr.u32": lambda a, b: a >> min(b, 32),
    "div.u32": lambda a, b: a // b if b else 0xFFFFFFFF,
    "rem.u32": lambda a, b: a % b if b else a,
}
SIGNED = {
    "mul.hi.s32": lambda a, b: a * b >> 32,
    "min.s32": min,
    "max.s32": max,
    "div.s32": lambda a, b: int(Fraction(a, b)) if b else -1,
    "rem.s32": lambda a, b: a - b * int(Fraction(a, b)) if b else a,
    "shr.s32": lambda a, b: a >> min(b & 0xFFFFFFFF, 32),
    "add.sat.s32": lambda a, b: max(-(1 << 31), min((1 << 31) - 1, a + b)),
}


@pytest.mark.parametrize("op", INTEGER)
def test_unsigned_binary(op: str) -> None:
    a, b = u32(), u32()
    expected = [INTEGER[op](x, y) & 0xFFFFFFFF for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert binary(op, a, b).tolist() == expected


@pytest.mark.parametrize("op", SIGNED)
def test_signed_binary(op: str) -> None:
    a, b = u32(), u32()
    pairs = zip(a.view(np.int32).tolist(), b.view(np.int32).tolist(), strict=True)
    assert binary(op, a, b).tolist() == [SIGNED[op](x, y) & 0xFFFFFFFF for x, y in pairs]


def test_wide_and_64_bit() -> None:
    a, b = u32(), u32()
    wide = lanes("mul.wide.s32 res, in0, in1;", [a, b], np.int64, "b32", "b64")
    assert wide.tolist() == (a.view(np.int32).astype(np.int64) * b.view(np.int32)).tolist()
    x, y = (RNG.integers(0, 1 << 63, 32, dtype=np.uint64) * 2 + 1 for _ in range(2))
    high = lanes("mul.hi.u64 res, in0, in1;", [x, y], np.uint64, "b64", "b64")
    assert high.tolist() == [p * q >> 64 for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    shifted = lanes(
        "cvt.u32.u64 %r5, in1; and.b32 %r5, %r5, 127; shr.s64 res, in0, %r5;", [x, y], np.int64, "b64", "b64"
    )
    assert shifted.tolist() == [
        p >> min(q & 127, 64) for p, q in zip(x.view(np.int64).tolist(), y.tolist(), strict=True)
    ]


def test_add_with_carry_makes_64_bit_sums() -> None:
    a, b, c, d = u32(), u32(), u32(), u32()
    body = "add.cc.u32 %r5, in0, in1; addc.u32 %r6, in2, in3; mov.b64 res, {%r5, %r6};"
    total = lanes(body, [a, b, c, d], np.uint64, "b32", "b64")
    low, high = (x.astype(np.uint64) for x in (a, c))
    assert (total == low + b + ((high + d) << np.uint64(32))).all()
    body = "sub.cc.u32 %r5, in0, in1; subc.u32 %r6, in2, in3; mov.b64 res, {%r5, %r6};"
    difference = lanes(body, [a, b, c, d], np.uint64, "b32", "b64")
    whole = (low | high << np.uint64(32)) - (b.astype(np.uint64) | d.astype(np.uint64) << np.uint64(32))
    assert (difference == whole).all()


def test_bit_fields() -> None:
    a, b = u32(), u32()
    extract = lanes("bfe.u32 res, in0, 5, 11;", [a], np.uint32, "b32", "b32")
    assert (extract == (a >> 5 & 0x7FF)).all()
    signed = lanes("bfe.s32 res, in0, 24, 20;", [a], np.int32, "b32", "b32")
    assert (signed == (a.view(np.int32) >> 24)).all()
    insert = lanes("bfi.b32 res, in0, in1, 8, 12;", [a, b], np.uint32, "b32", "b32")
    assert (insert == (b & ~np.uint32(0xFFF00) | (a & 0xFFF) << 8)).all()
    assert lanes("popc.b32 res, in0;", [a], np.uint32, "b32", "b32").tolist() == [x.bit_count() for x in a.tolist()]
    assert lanes("clz.b32 res, in0;", [a], np.uint32, "b32", "b32").tolist() == [
        32 - x.bit_length() for x in a.tolist()
    ]
    reverse = [int(f"{x:032b}"[::-1], 2) for x in a.tolist()]
    assert lanes("brev.b32 res, in0;", [a], np.uint32, "b32", "b32").tolist() == reverse
    find = [x.bit_length() - 1 if x else 0xFFFFFFFF for x in a.tolist()]
    assert lanes("bfind.u32 res, in0;", [a], np.uint32, "b32", "b32").tolist() == find


def test_lop3_prmt_shf() -> None:
    a, b, c = u32(), u32(), u32()
    chosen = lanes("lop3.b32 res, in0, in1, in2, 0xCA;", [a, b, c], np.uint32, "b32", "b32")
    assert (chosen == (a & b | ~a & c)).all()
    picked = lanes("prmt.b32 res, in0, in1, 0x5410;", [a, b], np.uint32, "b32", "b32")
    assert (picked == (a & 0xFFFF | (b & 0xFFFF) << 16)).all()
    sign = lanes("prmt.b32 res, in0, in1, 0x000b;", [a, b], np.uint32, "b32", "b32")
    assert ((sign & 0xFF) == np.where(a >> 31, 0xFF, 0)).all()
    funnel = lanes("shf.l.wrap.b32 res, in0, in1, 7;", [a, b], np.uint32, "b32", "b32")
    assert (funnel == (b << 7 | a >> 25)).all()


def test_dp4a_is_a_byte_dot_product() -> None:
    a, b, c = u32(), u32(), u32()
    got = lanes("dp4a.s32.s32 res, in0, in1, in2;", [a, b, c], np.int32, "b32", "b32")
    dot = (a.view(np.int8).reshape(32, 4).astype(np.int64) * b.view(np.int8).reshape(32, 4)).sum(axis=1)
    assert (got == (dot + c.view(np.int32)).astype(np.int32)).all()


def exact_f32(value: Fraction) -> np.float32:
    """Nearest float32 to a rational, by comparing with neighbours exactly."""
    near = np.float32(float(value))
    options = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(options, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def test_fma_rounds_once_even_at_ties() -> None:
    a, b, c = f32(), f32(), f32()
    a[3] = b[3] = 2.0
    one = np.float32(1)
    a[4:8], b[4:8] = one + np.float32(2**-12), one + np.float32(2**-12)
    c[4:8] = [2.0**24, -(2.0**24), 2.0**-30, 1.5]
    a[8], b[8], c[8] = (
        np.float32(2**-13) * (one + np.float32(2**-23)),
        np.float32(2**-11) * (one - np.float32(2**-24)),
        one,
    )
    got = lanes("fma.rn.f32 res, in0, in1, in2;", [a, b, c], np.float32, "f32", "f32")
    for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        if all(map(np.isfinite, (x, y, z))):
            assert exact_f32(Fraction(x) * Fraction(y) + Fraction(z)) == value


def test_directed_rounding_brackets_the_exact_value() -> None:
    a, b, c = f32(), f32(1e-3), f32()
    a[3] = b[3] = c[3] = 3.0
    down = lanes("fma.rm.f32 res, in0, in1, in2;", [a, b, c], np.float32, "f32", "f32")
    up = lanes("fma.rp.f32 res, in0, in1, in2;", [a, b, c], np.float32, "f32", "f32")
    for x, y, z, low, high in zip(a.tolist(), b.tolist(), c.tolist(), down, up, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert Fraction(float(low)) <= exact <= Fraction(float(high))
        assert high == low or np.nextafter(low, np.float32(np.inf)) == high


@pytest.mark.parametrize(("op", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_float_arithmetic_is_ieee(op: str, function: np.ufunc) -> None:
    a, b = f32(), f32()
    with np.errstate(all="ignore"):
        expected = function(a, b)
    got = lanes(f"{op}.rn.f32 res, in0, in1;", [a, b], np.float32, "f32", "f32")
    assert np.array_equal(got, expected, equal_nan=True)


def test_float_minimum_and_maximum() -> None:
    a, b = f32(), f32()
    a[:4], b[:4] = [0.0, -0.0, np.nan, 5.0], [-0.0, 0.0, 1.0, np.nan]
    high = lanes("max.f32 res, in0, in1;", [a, b], np.float32, "f32", "f32")
    assert not np.signbit(high[:2]).any() and high[2] == 1.0 and high[3] == 5.0
    assert (high[4:] == np.fmax(a, b)[4:]).all()
    low = lanes("min.f32 res, in0, in1;", [a, b], np.float32, "f32", "f32")
    assert np.signbit(low[:2]).all()
    nan = lanes("max.NaN.f32 res, in0, in1;", [a, b], np.float32, "f32", "f32")
    assert np.isnan(nan[2:4]).all()


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "geu", "num", "nan"])
def test_float_comparisons_with_nan(op: str) -> None:
    a, b = f32(), f32()
    a[:6], b[:6] = [np.nan, 1, np.nan, 2, 2, 3], [1, np.nan, np.nan, 2, 3, 2]
    got = lanes(f"setp.{op}.f32 %p1, in0, in1; selp.u32 res, 1, 0, %p1;", [a, b], np.uint32, "f32", "b32")
    unordered = np.isnan(a) | np.isnan(b)
    base = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    expected = {"num": ~unordered, "nan": unordered}.get(op)
    if expected is None:
        key = op.rstrip("u")
        expected = base[key] | unordered if op.endswith("u") else base[key] & ~unordered
    assert (got == expected).all()


def test_setp_pair_with_combined_predicate() -> None:
    a, b = u32(), u32()
    body = "setp.gt.u32 %p3, in0, 1000; setp.lt.and.s32 %p1|%p2, in0, in1, %p3;"
    body += "selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2; or.b32 res, %r5, %r6;"
    got = lanes(body, [a, b], np.uint32, "b32", "b32")
    third, less = a > 1000, a.view(np.int32) < b.view(np.int32)
    assert (got == (less & third) + 2 * (~less & third)).all()


def test_integer_conversions() -> None:
    a = u32()
    assert (lanes("cvt.s32.s8 res, in0;", [a], np.int32, "b32", "b32") == a.astype(np.int8)).all()
    assert (lanes("cvt.u32.u16 res, in0;", [a], np.uint32, "b32", "b32") == a.astype(np.uint16)).all()
    assert (lanes("cvt.s64.s32 res, in0;", [a], np.int64, "b32", "b64") == a.view(np.int32)).all()
    assert (lanes("cvt.u64.u32 res, in0;", [a], np.uint64, "b32", "b64") == a).all()
    clamped = lanes("cvt.sat.u8.s32 res, in0;", [a], np.uint32, "b32", "b32")
    assert (clamped == np.clip(a.view(np.int32), 0, 255)).all()


def test_float_integer_conversions() -> None:
    x = f32()
    x[4:9] = [2.5, 3.5, -2.5, np.nan, 3e9]
    got = lanes("cvt.rni.s32.f32 res, in0;", [x], np.int32, "f32", "b32")
    expected = [0 if v != v else int(max(-(2**31), min(2**31 - 1, np.rint(v)))) for v in x.astype(np.float64).tolist()]
    assert got.tolist() == expected
    truncated = lanes("cvt.rzi.u32.f32 res, in0;", [x], np.uint32, "f32", "b32")
    assert truncated.tolist() == [
        0 if v != v else int(max(0, min(2**32 - 1, v))) for v in x.astype(np.float64).tolist()
    ]
    a = u32()
    assert (lanes("cvt.rn.f32.u32 res, in0;", [a], np.float32, "b32", "f32") == a.astype(np.float32)).all()


def test_bf16_and_e4m3_pairs_put_the_first_operand_high() -> None:
    import ml_dtypes

    x, y = f32(), f32()
    pair = lanes("cvt.rn.bf16x2.f32 res, in0, in1;", [x, y], np.uint32, "f32", "b32")
    high, low = (v.astype(ml_dtypes.bfloat16).view(np.uint16) for v in (x, y))
    assert ((pair >> 16) == high).all() and ((pair & 0xFFFF) == low).all()
    x[3] = y[3] = 300.0
    codes = lanes("cvt.rn.satfinite.e4m3x2.f32 %h1, in0, in1; cvt.u32.u16 res, %h1;", [x, y], np.uint32, "f32", "b32")
    limited = [np.clip(v, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for v in (x, y)]
    assert ((codes >> 8) == limited[0]).all() and ((codes & 0xFF) == limited[1]).all()
    body = "cvt.rn.satfinite.e4m3x2.f32 %h1, in0, in1; cvt.rn.f16x2.e4m3x2 res, %h1;"
    back = lanes(body, [x, y], np.uint32, "f32", "b32")
    values = back.view(np.float16).reshape(32, 2)
    assert (values[:, 1] == limited[0].view(ml_dtypes.float8_e4m3fn).astype(np.float16)).all()


def test_packed_arithmetic() -> None:
    import ml_dtypes

    a, b, c = (RNG.standard_normal(64).astype(ml_dtypes.bfloat16) for _ in range(3))
    rows = [v.view(np.uint32) for v in (a, b, c)]
    got = lanes("fma.rn.bf16x2 res, in0, in1, in2;", rows, np.uint32, "b32", "b32").view(ml_dtypes.bfloat16)
    exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    assert (got == exact.astype(ml_dtypes.bfloat16)).all()
    x, y = (RNG.standard_normal(64).astype(np.float16) for _ in range(2))
    halves = lanes("add.rn.f16x2 res, in0, in1;", [x.view(np.uint32), y.view(np.uint32)], np.uint32, "b32", "b32")
    assert (halves.view(np.float16) == x + y).all()
    p, q = (RNG.standard_normal(64).astype(np.float32) for _ in range(2))
    pairs = lanes("mul.rn.f32x2 res, in0, in1;", [p.view(np.uint64), q.view(np.uint64)], np.uint64, "b64", "b64")
    assert (pairs.view(np.float32) == p * q).all()


def test_special_functions_are_close() -> None:
    x = np.abs(f32(10)) + np.float32(0.1)
    x[3] = 1.0
    table = {
        "ex2.approx.ftz.f32": np.exp2,
        "lg2.approx.f32": np.log2,
        "sqrt.rn.f32": np.sqrt,
        "rcp.rn.f32": lambda v: 1 / v,
    }
    table |= {"rsqrt.approx.f32": lambda v: 1 / np.sqrt(v), "sin.approx.f32": np.sin, "tanh.approx.f32": np.tanh}
    for op, function in table.items():
        got = lanes(f"{op} res, in0;", [x], np.float32, "f32", "f32")
        assert np.allclose(got, function(x.astype(np.float64)), rtol=1e-6), op


def test_vector_moves_and_special_registers() -> None:
    out = np.zeros((64, 2), np.uint32)
    body = """
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %d2, %r4, 8; add.s64 %d1, %d1, %d2;
    mov.u32 %r5, %laneid; mov.u32 %r6, %nctaid.x; mad.lo.u32 %r6, %r6, 100, %r5;
    mov.b64 %d3, {%r4, %r6}; mov.b64 {%r7, %r8}, %d3; st.global.v2.u32 [%d1], {%r7, %r8};
    """
    Bench(grid=(2,)).run(kernel(body), out)
    assert (out[:, 0] == np.arange(64)).all() and (out[:, 1] == 200 + np.arange(64) % 32).all()


def test_unknown_opcode_and_modifier_are_named() -> None:
    with pytest.raises(sim.UnknownInstruction, match=r"frobnicate\.b32"):
        Bench().run(kernel("frobnicate.b32 %r1, %r2;"), np.zeros(1, np.uint32))
    with pytest.raises(sim.UnknownInstruction, match=r"modifier \.wobbly"):
        Bench().run(kernel("add.wobbly.u32 %r1, %r2, %r3;"), np.zeros(1, np.uint32))
