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

// A bfloat16 is the upper half of a float.
DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
DEVICE float2 to_float2(bf16x2 x) {
  return make_float2(__uint_as_float(x.bits << 16), __uint_as_float(x.bits & 0xffff0000u));
}

}  // namespace ptx
