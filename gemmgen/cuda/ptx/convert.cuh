// Conversions between element types.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// cvt.rn.bf16x2.f32, PTX 7.0, sm_80: the first source becomes the high half.
DEVICE bf16x2 to_bf16x2(float2 x) {
  bf16x2 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.rn.satfinite.f16x2.f32, PTX 8.1, sm_80: the first of the pair in the low half; NaN is 0x7fff.
DEVICE f16x2 to_f16x2(float2 x) {
  f16x2 y;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.rn.relu.bf16x2.f32, PTX 7.0, sm_80; cvt.rn.satfinite.relu.f16x2.f32, PTX 8.1, sm_80: 0 for what is negative.
DEVICE bf16x2 to_bf16x2_relu(float2 x) {
  bf16x2 y;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(x.y), "f"(x.x));
  return y;
}
DEVICE f16x2 to_f16x2_relu(float2 x) {
  f16x2 y;
  asm("cvt.rn.satfinite.relu.f16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.f32.f16, PTX 1.0
DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// A bfloat16 is the upper half of a float.
DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
DEVICE float2 to_float2(bf16x2 x) {
  return make_float2(__uint_as_float(x.bits << 16), __uint_as_float(x.bits & 0xffff0000u));
}

// cvt.rn.satfinite.e4m3x2.f32, PTX 7.8, sm_89: the first of the pair in the low byte; NaN is 0x7f.
DEVICE u32 to_e4m3x2(float2 x) {
  u16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.rn.satfinite.e5m2x2.f32, PTX 7.8, sm_89: likewise.
DEVICE u32 to_e5m2x2(float2 x) {
  u16 y;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.rn.satfinite.relu.e4m3x2.f32 and .e5m2x2, PTX 7.8, sm_89: 0 for what is negative.
DEVICE u32 to_e4m3x2_relu(float2 x) {
  u16 y;
  asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  return y;
}
DEVICE u32 to_e5m2x2_relu(float2 x) {
  u16 y;
  asm("cvt.rn.satfinite.relu.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  return y;
}

// cvt.rn.f16x2.e4m3x2, PTX 7.8, sm_89: the number of one code.
DEVICE float from_e4m3(u32 code) {
  float y;
  asm("{ .reg .b32 pair; .reg .b16 low, high; cvt.rn.f16x2.e4m3x2 pair, %1; mov.b32 {low, high}, pair;\n"
      "cvt.f32.f16 %0, low; }"
      : "=f"(y)
      : "h"(u16(code)));
  return y;
}

// An e5m2 is the upper half of a float16.
DEVICE float from_e5m2(u32 code) { return to_float(f16{u16(code << 8)}); }

// cvt.rn.satfinite.e2m1x2.f32, PTX 8.6, sm_100a: the first of the pair in the low half of a byte; NaN is 7.
DEVICE u32 to_e2m1x2(float2 x) {
  u32 y;
  asm("{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2; cvt.u32.u8 %0, pair; }"
      : "=r"(y)
      : "f"(x.y), "f"(x.x));
  return y;
}

}  // namespace ptx
