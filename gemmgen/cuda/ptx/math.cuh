// Approximations of the special function unit: the relative error of each is about 2^-22.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// ex2.approx.ftz, PTX 2.3, sm_20: 2 to the power x.
DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rcp.approx.ftz, PTX 2.3, sm_20: 1 / x, and 0 for infinity.
DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rsqrt.approx.ftz, PTX 2.3, sm_20
DEVICE float reciprocal_sqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sqrt.approx.ftz, PTX 2.3, sm_20
DEVICE float sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// div.full.ftz, PTX 2.0, sm_20: x / y within 2 ulp over the whole range.
DEVICE float divide(float x, float y) {
  float z;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// min.NaN.f32, PTX 7.0, sm_80: NaN if one is.
DEVICE float smaller(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// max.NaN.f32, PTX 7.0, sm_80: of magnitudes; NaN if one is.
DEVICE float larger_magnitude(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(fabsf(x)), "f"(fabsf(y)));
  return z;
}

}  // namespace ptx
