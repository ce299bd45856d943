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
// gelu(x) = max(x, 0) - y q(y) 2^(-y^2 / ln 4) with y = |x|, where q(y) = erfc(y / sqrt(2)) / 2 e^(y^2 / 2) is a rational
// function, fitted for the least relative error (2^-20 up to 13.5) of what is taken off. No sum cancels: the relative
// error of that is below 2^-19 up to 5 and, because the exponent is rounded, 2^-16 up to 13. Beyond 19 it is 0; NaN stays.
DEVICE float gelu(float x) {
  const float y = ptx::smaller(fabsf(x), 19.0f);
  float p = 0.0158833210f;
  p = p * y + 0.114690317f;
  p = p * y + 0.353669438f;
  p = p * y + 0.499999907f;
  float q = 0.0398206362f;
  q = q * y + 0.287220303f;
  q = q * y + 0.930454023f;
  q = q * y + 1.50521338f;
  q = q * y + 1.0f;
  return fmaxf(x, 0.0f) - p * (y * ptx::exp2(-0.721347520f * y * y)) * ptx::reciprocal(q);
}
// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
DEVICE float twice_tanh_argument(float x) { return 1.5957691216057308f * (x + 0.044715f * x * x * x); }
DEVICE float gelu_tanh(float x) { return x * sigmoid(twice_tanh_argument(x)); }

}  // namespace gemmgen
