// Outputs in narrow types: how a block of neighbouring columns gets its scale and codes, and where scales are written.
// The rules are those of gemmgen.ops.quantise, bit for bit: they work on the bits of the largest magnitude.
#pragma once
#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Bits of magnitudes order as the numbers do, with Inf above all and NaN above Inf.
DEVICE u32 larger(u32 x, u32 y) { return x > y ? x : y; }
constexpr u32 INFINITE = 0x7f800000;
constexpr u32 AMAX_FLOOR = 0x38d1b717;  // 1e-4f: blocks of zeros have a finite scale
constexpr u32 NOT_A_NUMBER = 0x7fc00000;

// What a block is divided by: as it is stored, and its reciprocal to multiply with.
template <class T>
struct BlockScale {
  T stored;
  float inverse;
};

// The smallest power of two that brings the block's largest number below the format's. MAX_EXPONENT and MAX_MANTISSA
// are bits of the latter.
template <u32 MAX_EXPONENT, u32 MAX_MANTISSA>
DEVICE BlockScale<u8> power_of_two(u32 amax) {
  if (amax >= INFINITE) return {u8(0xff), __uint_as_float(NOT_A_NUMBER)};
  const u32 exponent = (larger(amax, AMAX_FLOOR) + (0x7fffff - MAX_MANTISSA) >> 23) - MAX_EXPONENT;
  return {u8(exponent), __uint_as_float((254 - exponent) << 23)};
}

// e4m3 with a power of two for BLOCK columns; the format's largest number is 1.75 * 2^8.
template <u32 COLUMNS>
struct Mxfp8 {
  static constexpr u32 BLOCK = COLUMNS, BITS = 8;
  DEVICE static BlockScale<u8> scale(u32 amax) { return power_of_two<8, 0x600000>(amax); }
  DEVICE static u32 encode(float2 x) { return ptx::to_e4m3x2(x); }
};

// x / 448 and 1 / x rounded to nearest, of numbers far from subnormal: an approximation and what its error says. Both are
// right for each of the 2^23 mantissas. __fdiv_rn and __frcp_rn are, too, but bring a call for numbers that do not occur
// here, which costs a third of the compile time of a kernel.
DEVICE float divided_by_448(float x) {
  constexpr float INVERSE = 1.0f / 448.0f;
  const float quotient = x * INVERSE;
  return __fmaf_rn(__fmaf_rn(-448.0f, quotient, x), INVERSE, quotient);
}
DEVICE float nearest_reciprocal(float x) {
  const float y = ptx::reciprocal(x);
  return __fmaf_rn(__fmaf_rn(-x, y, 1.0f), y, y);
}

// e4m3 with an fp32 scale for BLOCK columns.
template <u32 COLUMNS>
struct Fp8 {
  static constexpr u32 BLOCK = COLUMNS, BITS = 8;
  DEVICE static BlockScale<float> scale(u32 amax) {
    if (amax >= INFINITE) return {__uint_as_float(NOT_A_NUMBER), __uint_as_float(NOT_A_NUMBER)};
    const float scale = divided_by_448(__uint_as_float(larger(amax, AMAX_FLOOR)));
    return {scale, nearest_reciprocal(scale)};
  }
  DEVICE static u32 encode(float2 x) { return ptx::to_e4m3x2(x); }
};

// e2m1 with a power of two for BLOCK columns; the format's largest number is 1.5 * 2^2.
template <u32 COLUMNS>
struct Mxfp4 {
  static constexpr u32 BLOCK = COLUMNS, BITS = 4;
  DEVICE static BlockScale<u8> scale(u32 amax) { return power_of_two<2, 0x400000>(amax); }
  DEVICE static u32 encode(float2 x) { return ptx::to_e2m1x2(x); }
};

// e2m1 with a UE4M3 scale for BLOCK columns, of numbers that a scale of the whole tensor has divided.
template <u32 COLUMNS>
struct Nvfp4 {
  static constexpr u32 BLOCK = COLUMNS, BITS = 4;
  DEVICE static BlockScale<u8> scale(u32 amax) {
    const float wanted = __fdiv_rn(__uint_as_float(amax), 6.0f);
    const float least = 0.001953125f;  // 2^-9, the smallest UE4M3 number that is not zero
    const u32 code = amax >= INFINITE ? 0x7f : ptx::to_e4m3x2(make_float2(wanted < least ? least : wanted, 0.0f)) & 0x7f;
    return {u8(code), __frcp_rn(ptx::from_e4m3(code))};
  }
  DEVICE static u32 encode(float2 x) { return ptx::to_e2m1x2(x); }
};

// Scales by row: a tensor [m, blocks].
template <class T>
struct ScalesByRow {
  T* to;
  u64 stride;
  DEVICE void put(u32 row, u32 block, u32 blocks, T scale) const {
    if (block < blocks) to[row * stride + block] = scale;
  }
};

// Scales by block: a tensor [m, blocks] contiguous along m.
struct ScalesByBlock {
  float* to;
  u64 stride;
  DEVICE void put(u32 row, u32 block, u32 blocks, float scale) const {
    if (block < blocks) to[block * stride + row] = scale;
  }
};

// Four scales a word, the first in the low byte, words contiguous along m: what a product reads as scales of its a.
// Bytes past the last block are 0.
struct ScalesByWord {
  u32* to;
  u64 stride;
  DEVICE void put(u32 row, u32 block, u32 blocks, u8 scale) const {
    if (block >= blocks) return;
    u8* word = reinterpret_cast<u8*>(to + block / 4 * stride + row);
    word[block % 4] = scale;
    if (block + 1 == blocks)
      for (u32 byte = block % 4 + 1; byte < 4; ++byte) word[byte] = 0;
  }
};

}  // namespace gemmgen
