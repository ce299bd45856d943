// Functions of one number that epilogue steps use, in fp32. Relative errors are below 2^-20 unless a comment says otherwise.
#pragma once
#include "ptx/math.cuh"

namespace gemmgen {

// x * log2(e) is rounded before it is raised: the relative error grows with |x|, to 2^-17 at the ends of the range.
DEVICE float exp(float x) { return ptx::exp2(x * 1.4426950408889634f); }
DEVICE float log(float x) { return logf(x); }
DEVICE float erf(float x) { return erff(x); }
DEVICE float tanh(float x) { return tanhf(x); }
DEVICE float divide(float x, float y) { return ptx::divide(x, y); }
DEVICE float sqrt(float x) { return ptx::sqrt(x); }
DEVICE float rsqrt(float x) { return ptx::reciprocal_sqrt(x); }
DEVICE float sigmoid(float x) { return ptx::reciprocal(1.0f + exp(-x)); }
DEVICE float silu(float x) { return x * sigmoid(x); }
// NaN is not below 0 and stays.
DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }
DEVICE float squared_relu(float x) { return relu(x) * relu(x); }
// gelu(x) = max(x, 0) - y 2^P(y) with y = |x|, where P is fitted to log2(erfc(y / sqrt(2)) / 2). No sum cancels, and the
// special function unit is asked once: a quotient of polynomials is no shorter and asks it twice. The relative error of what
// is taken off is below 2^-16 up to 5, 2^-15 up to 9 and 2^-13 up to 12.9. Beyond 19 it is 0; NaN stays.
DEVICE float gelu(float x) {
  const float y = ptx::smaller(fabsf(x), 19.0f);
  float p = -2.28417329e-09f;
  p = p * y + 1.6054716e-07f;
  p = p * y - 4.97350447e-06f;
  p = p * y + 9.00039886e-05f;
  p = p * y - 0.00106710149f;
  p = p * y + 0.0088637583f;
  p = p * y - 0.0544289909f;
  p = p * y - 0.458218485f;
  p = p * y - 1.15125549f;
  p = p * y - 1.00000751f;
  return fmaxf(x, 0.0f) - y * ptx::exp2(p);
}
// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
DEVICE float twice_tanh_argument(float x) { return 1.5957691216057308f * (x + 0.044715f * x * x * x); }
DEVICE float gelu_tanh(float x) { return x * sigmoid(twice_tanh_argument(x)); }

}  // namespace gemmgen
