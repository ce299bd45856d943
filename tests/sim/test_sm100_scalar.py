"""Ordinary instructions that sm_100a adds: wide accesses, redux of floats, packed pairs, narrow conversions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tcgen05_kernels import run_cuda

from gemmgen import sim


def test_256_bit_accesses_must_be_aligned_to_their_size() -> None:
    text = """extern "C" __global__ void k(u32* out, u32* in, int skew) {
      u32 r[8]; u32* from = in + 8 * threadIdx.x + skew; u32* to = out + 8 * threadIdx.x;
      asm volatile("ld.global.nc.L1::no_allocate.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "l"(from));
      asm volatile("st.global.L1::no_allocate.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
        :: "l"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]) : "memory");
    }"""
    source, out = np.arange(272, dtype=np.uint32), np.zeros(256, np.uint32)
    run_cuda(text, out, source, 0, block=32)
    np.testing.assert_array_equal(out, source[:256])
    with pytest.raises(sim.Fault, match="multiple of 32"):
        run_cuda(text, out, source, 4, block=32)


def test_128_bit_registers_load_move_and_store() -> None:
    text = """extern "C" __global__ void k(u64* out, u64* in) {
      __shared__ __align__(16) u64 words[64]; u64 a, b; u32 at = shared(words + 2 * threadIdx.x);
      asm volatile("{.reg .b128 t; ld.global.b128 t, [%2]; st.shared.b128 [%3], t; ld.shared.b128 t, [%3];"
        "mov.b128 {%0, %1}, t; mov.b128 t, {%1, %0}; st.global.b128 [%4], t;}"
        : "=l"(a), "=l"(b) : "l"(in + 2 * threadIdx.x), "r"(at), "l"(out + 2 * threadIdx.x) : "memory");
    }"""
    source, out = np.arange(64, dtype=np.uint64), np.zeros(64, np.uint64)
    run_cuda(text, out, source, block=32)
    np.testing.assert_array_equal(out.reshape(32, 2), source.reshape(32, 2)[:, ::-1])


def redux(form: str, values: np.ndarray) -> float:
    text = f"""extern "C" __global__ void k(float* out, float* in) {{
      float r; asm volatile("redux.sync.{form}.f32 %0, %1, 0xffffffff;" : "=f"(r) : "f"(in[threadIdx.x]));
      out[threadIdx.x] = r;
    }}"""
    out = np.zeros(32, np.float32)
    run_cuda(text, out, values.astype(np.float32), block=32)
    assert len({out.tobytes()[i : i + 4] for i in range(0, 128, 4)}) == 1
    return float(out[0])


def test_redux_of_floats() -> None:
    values = np.random.default_rng(0).normal(size=32)
    assert redux("max", values) == np.float32(values.max())
    assert redux("min", values) == np.float32(values.min())
    assert redux("max.abs", values) == np.float32(np.abs(values).max())
    values[5] = np.nan
    assert redux("max.abs", values) == np.float32(np.nanmax(np.abs(values)))
    assert np.isnan(redux("max.abs.NaN", values))
    assert np.isnan(redux("min", np.full(32, np.nan)))
    signs = np.array([0.0, -0.0] * 16)
    assert np.signbit(redux("min", signs)) and not np.signbit(redux("max", signs))


def test_pairs_of_floats() -> None:
    text = """extern "C" __global__ void k(u64* out, u64* in) {
      u64 r; asm volatile("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(r) : "l"(in[0]), "l"(in[1]), "l"(in[2])); out[0] = r;
      asm volatile("mul.rn.f32x2 %0, %1, %2;" : "=l"(r) : "l"(in[0]), "l"(in[1])); out[1] = r;
      asm volatile("add.rn.f32x2 %0, %1, %2;" : "=l"(r) : "l"(in[0]), "l"(in[1])); out[2] = r;
    }"""
    a, b, c = (np.random.default_rng(i).normal(size=2).astype(np.float32) for i in range(3))
    out = np.zeros(6, np.float32)
    run_cuda(text, out, np.concatenate([a, b, c]), block=1)
    exact = a.astype(np.float64) * b + c
    np.testing.assert_array_equal(out[:2], exact.astype(np.float32))
    np.testing.assert_array_equal(out[2:], np.concatenate([a * b, a + b]))


def test_narrow_conversions() -> None:
    text = """extern "C" __global__ void k(u32* out, float* in) {
      float a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1]; unsigned short h; u32 r;
      asm volatile("{.reg .b8 q; cvt.rn.satfinite.e2m1x2.f32 q, %1, %2; cvt.u16.u8 %0, q;}" : "=h"(h) : "f"(a), "f"(b));
      out[threadIdx.x] = h;
      asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b));
      out[32 + threadIdx.x] = h;
      asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b));
      out[64 + threadIdx.x] = r;
      asm volatile("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b));
      out[96 + threadIdx.x] = h;
    }"""
    values = np.random.default_rng(1).normal(scale=2, size=(32, 2)).astype(np.float32)
    out = np.zeros((4, 32), np.uint32)
    run_cuda(text, out, values, block=32)
    high, low = values[:, 0], values[:, 1]

    def joined(kind: type, code: type, width: int) -> np.ndarray:
        codes = [x.astype(kind).view(code).astype(np.uint32) for x in (high, low)]
        return codes[0] << width | codes[1]

    np.testing.assert_array_equal(out[0], joined(ml_dtypes.float4_e2m1fn, np.uint8, 4))
    np.testing.assert_array_equal(out[1], joined(ml_dtypes.float8_e4m3fn, np.uint8, 8))
    np.testing.assert_array_equal(out[2], joined(ml_dtypes.bfloat16, np.uint16, 16))
    exponents = [np.ceil(np.log2(np.abs(x.astype(np.float64)))).astype(np.uint32) + 127 for x in (high, low)]
    np.testing.assert_array_equal(out[3], exponents[0] << 8 | exponents[1])
