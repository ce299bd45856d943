"""tcgen05.mma of every kind, operand layout and shape, run from CUDA text against float64 products."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import tcgen05_kernels
from tcgen05_kernels import Mma, k_major, k_major_descriptors, run_mma, scale_image

from gemmgen import sim

Array = np.ndarray
SCHEDULES = sim.all_schedules()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SCALED = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"


def bf16(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).view(np.uint8)


def f8(rng: np.random.Generator, shape: tuple[int, int], kind: type) -> tuple[Array, Array]:
    """Codes and values of small 8-bit floats: sums of 128 products are exact in float32."""
    values = rng.integers(-8, 9, shape).astype(kind)
    return values.view(np.uint8), values.astype(np.float64)


def packed(codes: Array) -> Array:
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def in_cells(codes: Array) -> Array:
    """16 codes in 8 bytes and 8 bytes of padding, as 16u4_align16b copies write them; the padding is not zero."""
    cells = packed(codes).reshape(len(codes), -1, 8)
    return np.concatenate([cells, np.full_like(cells, 0xA5)], axis=2).reshape(len(codes), -1)


def close(words: Array, expected: Array) -> None:
    """Float32 accumulation against float64: errors are those of sums as large as the largest result."""
    np.testing.assert_allclose(words.view(np.float32), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def descriptor(m: int, n: int, bits: int) -> int:
    return m >> 4 << 24 | n >> 3 << 17 | bits


def dense(opcode: str, a: Array, b: Array, bits: int, m: int, n: int, swizzle: int = 128) -> Mma:
    """Both operands K-major, given as rows of bytes."""
    steps = a.shape[1] // 32
    return Mma(
        opcode,
        [descriptor(m, n, bits)] * steps,
        k_major(a, swizzle),
        k_major(b, swizzle),
        k_major_descriptors(len(a), a.shape[1], swizzle),
        k_major_descriptors(len(b), b.shape[1], swizzle),
        n,
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_bf16(schedule: sim.Schedule) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (128, 128)).astype(float), rng.integers(-4, 5, (48, 128)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490, 128, 48)
    np.testing.assert_array_equal(run_mma(mma, schedule).view(np.float32), a @ b.T)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzles(swizzle: int) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-4, 5, (128, 64)).astype(float), rng.integers(-4, 5, (32, 64)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490, 128, 32, swizzle)
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), a @ b.T)


def m_64(lane: int, **pieces: str) -> tuple[Mma, Array]:
    """A product whose D lies in lanes `lane` to `lane + 15` of every quarter, and what it must be."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (64, 64)).astype(float), rng.integers(-4, 5, (24, 64)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490, 64, 24)
    mma.d_lane, mma.pieces = lane, pieces
    return mma, a @ b.T


@pytest.mark.parametrize("lane", [0, 16])
def test_m_64_uses_16_lanes_of_each_quarter(lane: int) -> None:
    mma, expected = m_64(lane)
    found = run_mma(mma).reshape(4, 2, 16, 24)
    np.testing.assert_array_equal(found[:, lane // 16].reshape(64, 24).view(np.float32), expected)
    assert (found[:, 1 - lane // 16] == 0xFFFFFFFF).all(), "other lanes keep their poison"


@pytest.mark.parametrize("lane", [0, 16])
def test_m_64_overwrites_its_own_16_lanes_only(lane: int) -> None:
    load = 'u32 early; asm volatile("tcgen05.ld.sync.aligned.16x64b.x1.b32 {%0}, [%1];" : "=r"(early) : "r"(tmem));'
    mma, expected = m_64(lane, before_issue=load)
    if lane == 0:
        with pytest.raises(sim.Race, match=r"lanes 0 to 15 of every quarter, which warp \d read \(still in flight"):
            run_mma(mma)
    else:
        found = run_mma(mma).reshape(4, 2, 16, 24)[:, 1]
        np.testing.assert_array_equal(found.reshape(64, 24).view(np.float32), expected)


def test_f16_accumulator_lies_in_the_low_half() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (128, 64)).astype(np.float16), rng.integers(-4, 5, (16, 64)).astype(np.float16)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", a.view(np.uint8), b.view(np.uint8), 0, 128, 16)
    found = run_mma(mma).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(found.astype(float), a.astype(float) @ b.T.astype(float))


def with_scale_input_d(operand: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Array]:
    """Two products of 16 k, D being scaled before the second, and what each adds."""
    plain = tcgen05_kernels.compiled
    scaled = rf"\1, p, {operand};"
    monkeypatch.setattr(
        tcgen05_kernels, "compiled", lambda text: re.sub(r"(tcgen05\.mma[^;]*), p;", scaled, plain(text))
    )
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 5, (128, 32)).astype(float), rng.integers(-4, 5, (16, 32)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490, 128, 16, 64)
    return run_mma(mma).view(np.float32), np.stack([a[:, k : k + 16] @ b[:, k : k + 16].T for k in (0, 16)])


def test_scale_input_d_divides_what_d_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    found, (first, second) = with_scale_input_d("3", monkeypatch)
    np.testing.assert_array_equal(found, first / 8 + second)


def test_scale_input_d_is_at_most_15(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sim.UnknownInstruction, match="have one of 0 to 15"):
        with_scale_input_d("16", monkeypatch)


def test_negated_operands() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (128, 64)).astype(float), rng.integers(-4, 5, (16, 64)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490 | 1 << 13, 128, 16)
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), -(a @ b.T))


def test_tf32_ignores_low_mantissa_bits() -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-99, 100, (rows, 32)).astype(np.float32) for rows in (128, 16))
    noisy = (a.view(np.uint32) | 0x1FFF).view(np.float32)
    mma = dense("tcgen05.mma.cta_group::1.kind::tf32", noisy.view(np.uint8), b.view(np.uint8), 0x910, 128, 16)
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), a @ b.T)


@pytest.mark.parametrize("kinds", [("e4m3", "e5m2"), ("e2m1", "e4m3"), ("e2m1", "e2m1")], ids="-".join)
def test_f8f6f4(kinds: tuple[str, str]) -> None:
    rng = np.random.default_rng(7)
    code = {"e4m3": 0, "e5m2": 1, "e2m1": 5}
    (a, a_values), (b, b_values) = (operand(rng, rows, 128, kind) for rows, kind in zip((128, 32), kinds, strict=True))
    bits = 1 << 4 | code[kinds[0]] << 7 | code[kinds[1]] << 10
    mma = dense("tcgen05.mma.cta_group::1.kind::f8f6f4", a, b, bits, 128, 32)
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), a_values @ b_values.T)


def operand(rng: np.random.Generator, rows: int, k: int, kind: str) -> tuple[Array, Array]:
    """Rows of bytes as the 8-bit kinds want them, and their values."""
    if kind == "e2m1":
        codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
        return in_cells(codes), E2M1[codes]
    return f8(rng, (rows, k), {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind])


# MN-major


def mn_major(values: Array, size: int) -> tuple[Array, int, int]:
    """[k, mn] bytes as swizzled atoms of 128 bytes along mn by 8 k; the image, LBO and SBO."""
    k, nbytes = values.shape
    image = np.zeros(k * nbytes, np.uint8)
    for row in range(k):
        for chunk in range(nbytes // 16):
            atom, inside = divmod(chunk, 8)
            address = atom * k * 128 + row * 128 + ((inside ^ (row % 8)) * 16)
            image[address : address + 16] = values[row, chunk * 16 : chunk * 16 + 16]
    assert size
    return image, k * 128, 1024


@pytest.mark.parametrize("majors", ["MN-K", "K-MN", "MN-MN"])
def test_mn_major_bf16(majors: str) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.integers(-4, 5, (128, 64)).astype(float), rng.integers(-4, 5, (64, 64)).astype(float)
    mma = dense("tcgen05.mma.cta_group::1.kind::f16", bf16(a), bf16(b), 0x490, 128, 64)
    a_major, b_major = majors.split("-")
    if a_major == "MN":
        mma.a_image, mma.a_descriptors = mn_operand(a.T)
    if b_major == "MN":
        mma.b_image, mma.b_descriptors = mn_operand(b.T)
    mma.idesc = [mma.idesc[0] | (a_major == "MN") << 15 | (b_major == "MN") << 16] * 4
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), a @ b.T)


def mn_operand(values: Array) -> tuple[Array, list[int]]:
    image, leading, stride = mn_major(bf16(np.ascontiguousarray(values)), 2)
    fields = leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | 2 << 61
    return image, [fields | step * 2 * 1024 >> 4 for step in range(4)]  # 16 k's are two groups of 8


# block scales


def scales_of(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Four UE8M0 bytes a row, and their values."""
    codes = rng.integers(120, 135, (rows, 4)).astype(np.uint8)
    return codes, np.exp2(codes.astype(float) - 127)


@pytest.mark.parametrize("kinds", [("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e2m1", "e4m3")], ids="-".join)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_mxf8f6f4(kinds: tuple[str, str], schedule: sim.Schedule) -> None:
    rng = np.random.default_rng(9)
    code = {"e4m3": 0, "e5m2": 1, "e2m1": 5}
    (a, av), (b, bv) = (operand(rng, rows, 128, kind) for rows, kind in zip((128, 40), kinds, strict=True))
    (a_scales, asv), (b_scales, bsv) = scales_of(rng, 128), scales_of(rng, 40)
    mma = dense(SCALED, a, b, 1 << 23 | code[kinds[0]] << 7 | code[kinds[1]] << 10, 128, 40)
    mma.idesc = [value | i << 29 | i << 4 for i, value in enumerate(mma.idesc)]
    mma.a_scales, mma.b_scales = scale_image(a_scales), scale_image(b_scales)
    expected = (av * np.repeat(asv, 32, 1)) @ (bv * np.repeat(bsv, 32, 1)).T
    close(run_mma(mma, schedule), expected)


def test_mxf8f6f4_ids_differ_per_operand_and_n_256() -> None:
    rng = np.random.default_rng(10)
    (a, av), (b, bv) = operand(rng, 128, 32, "e4m3"), operand(rng, 256, 32, "e4m3")
    (a_scales, asv), (b_scales, bsv) = scales_of(rng, 128), scales_of(rng, 256)
    mma = dense(SCALED + ".scale_vec::1X", a, b, 1 << 23 | 3 << 29 | 1 << 4, 128, 256, 32)
    mma.a_scales, mma.b_scales = scale_image(a_scales), scale_image(b_scales)
    expected = (av * asv[:, 3:]) @ (bv * bsv[:, 1:2]).T
    close(run_mma(mma), expected)


def test_extreme_scales_do_not_overflow_on_the_way() -> None:
    """2^127 times 2^-126 is 2, although neither scaled operand need fit."""
    rng = np.random.default_rng(11)
    (a, av), (b, bv) = operand(rng, 128, 32, "e4m3"), operand(rng, 16, 32, "e4m3")
    mma = dense(SCALED, a, b, 1 << 23, 128, 16, 32)
    mma.a_scales = scale_image(np.full((128, 4), 254, np.uint8))
    mma.b_scales = scale_image(np.full((16, 4), 1, np.uint8))
    np.testing.assert_array_equal(run_mma(mma).view(np.float32), 2 * (av @ bv.T))


def test_nan_scale_reaches_its_row_only() -> None:
    rng = np.random.default_rng(12)
    (a, _), (b, _) = operand(rng, 128, 32, "e4m3"), operand(rng, 16, 32, "e4m3")
    mma = dense(SCALED, a, b, 1 << 23, 128, 16, 32)
    a_scales = np.full((128, 4), 127, np.uint8)
    a_scales[77, 0] = 255
    mma.a_scales, mma.b_scales = scale_image(a_scales), scale_image(np.full((16, 4), 127, np.uint8))
    nan = np.isnan(run_mma(mma).view(np.float32)).any(axis=1)
    assert np.flatnonzero(nan).tolist() == [77]


@pytest.mark.parametrize(
    ("suffix", "scales", "ue4m3"),
    [
        ("mxf4.block_scale", 2, False),
        ("mxf4.block_scale.block32", 2, False),
        ("mxf4nvf4.block_scale.scale_vec::2X", 2, False),
        ("mxf4nvf4.block_scale.scale_vec::4X", 4, True),
        ("mxf4nvf4.block_scale.block16", 4, True),
        ("mxf4nvf4.block_scale.block16", 4, False),
    ],
)
def test_packed_fp4(suffix: str, scales: int, ue4m3: bool) -> None:
    """Two instructions of K = 64: their scales are bytes 0-1 and 2-3 of one word, or one word each."""
    rng = np.random.default_rng(13)
    steps = 2 if scales == 2 else 1
    k = 64 * steps
    a_codes, b_codes = rng.integers(0, 16, (128, k)).astype(np.uint8), rng.integers(0, 16, (24, k)).astype(np.uint8)
    bits = 1 << 7 | 1 << 10 | (not ue4m3) << 23
    mma = dense(f"tcgen05.mma.cta_group::1.kind::{suffix}", packed(a_codes), packed(b_codes), bits, 128, 24, k // 2)
    mma.idesc = [value | 2 * i << 29 | 2 * i << 4 for i, value in enumerate(mma.idesc)]
    (a_scales, asv), (b_scales, bsv) = scales_of(rng, 128), scales_of(rng, 24)
    if ue4m3:
        (a_scales, asv), (b_scales, bsv) = unsigned_scales(rng, 128), unsigned_scales(rng, 24)
    mma.a_scales, mma.b_scales = scale_image(a_scales), scale_image(b_scales)
    block = k // 4
    expected = (E2M1[a_codes] * np.repeat(asv, block, 1)) @ (E2M1[b_codes] * np.repeat(bsv, block, 1)).T
    close(run_mma(mma), expected)


def unsigned_scales(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    codes = rng.integers(0, 0x7F, (rows, 4)).astype(np.uint8)
    return codes, codes.view(ml_dtypes.float8_e4m3fn).astype(float)


# A from tensor memory

COPY_A = """
  for (int i = 0; i < STEPS; ++i) {
    const u32* from = (const u32*)a + (threadIdx.x * STEPS + i) * 8;
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};"
      :: "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7]),
         "r"(tmem + A_COLUMN + 8 * i + (warp << 21)) : "memory");
  }
  WAIT_ST; BEFORE; __syncthreads(); AFTER;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
@pytest.mark.parametrize(("kind", "bits"), [("f16", 0x490), ("tf32", 0x910)])
def test_a_from_tensor_memory(kind: str, bits: int, schedule: sim.Schedule) -> None:
    """Row r of A lies in lane r, 32 bytes of k in eight columns."""
    mma = a_in_tmem(kind, bits)
    a, b = (image_values(x, kind) for x in (mma.a_image.reshape(128, -1), tmem_b(kind)))
    np.testing.assert_array_equal(run_mma(mma, schedule).view(np.float32), a @ b.T)


def a_in_tmem(kind: str, bits: int) -> Mma:
    rng = np.random.default_rng(17)
    values = rng.integers(-4, 5, (128, 64 if kind == "f16" else 32)).astype(np.float32)
    rows = bf16(values) if kind == "f16" else values.view(np.uint8)
    mma = dense(f"tcgen05.mma.cta_group::1.kind::{kind}", rows, tmem_b(kind), bits, 128, 16)
    mma.a_image, mma.a_in_tmem = np.ascontiguousarray(rows).reshape(-1), True
    mma.pieces = {"before_issue": COPY_A.replace("STEPS", "4")}
    return mma


def tmem_b(kind: str) -> Array:
    values = np.random.default_rng(18).integers(-4, 5, (16, 64 if kind == "f16" else 32)).astype(np.float32)
    return bf16(values) if kind == "f16" else values.view(np.uint8)


def image_values(rows: Array, kind: str) -> Array:
    return np.ascontiguousarray(rows).view(ml_dtypes.bfloat16 if kind == "f16" else np.float32).astype(float)


@pytest.mark.parametrize("missing", ["WAIT_ST;", "BEFORE;", "AFTER;", "__syncthreads();"])
def test_a_in_tensor_memory_needs_waits_and_fences(missing: str) -> None:
    mma = a_in_tmem("f16", 0x490)
    text = mma.pieces["before_issue"]
    assert missing in text
    mma.pieces["before_issue"] = text.replace(missing, "", 1)
    with pytest.raises(sim.Race, match=r"tcgen05\.mma of warp 0 .* reads TMEM columns"):
        run_mma(mma)


def test_4_bit_a_in_tensor_memory_is_refused() -> None:
    mma = a_in_tmem("f16", 0x490)
    mma.opcode, mma.idesc = mma.opcode.replace("f16", "f8f6f4"), [descriptor(128, 16, 1 << 4 | 5 << 7)] * 4
    with pytest.raises(sim.Fault, match="A in tensor memory is modelled"):
        run_mma(mma)
