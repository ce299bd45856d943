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
// x / 2 times erfc(x / sqrt(2)) for x >= 0, which is 2^P(t) t x 2^(-x^2 / ln 4), t = 1 / (1 + x / sqrt(8)), with the
// polynomial that Numerical Recipes (6.2) fits to erfc. Relative error below 2^-18 up to 5, 2^-16 up to 13.
DEVICE float gelu_tail(float x) {
  const float t = ptx::reciprocal(1.0f + 0.353553391f * x);
  float p = 0.246517298f;
  p = p * t + -1.18611495f;
  p = p * t + 2.14747446f;
  p = p * t + -1.63775315f;
  p = p * t + 0.402321582f;
  p = p * t + -0.26875686f;
  p = p * t + 0.139630057f;
  p = p * t + 0.539700616f;
  p = p * t + 1.4427292f;
  p = p * t + -2.82574822f;
  return x * t * ptx::exp2(-0.721347520f * x * x + p);
}
// Of numbers beyond 19 the tail is 0.
DEVICE float gelu(float x) { return relu(x) - gelu_tail(fminf(fabsf(x), 19.0f)); }
// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
DEVICE float twice_tanh_argument(float x) { return 1.5957691216057308f * (x + 0.044715f * x * x * x); }
DEVICE float gelu_tanh(float x) { return x * sigmoid(twice_tanh_argument(x)); }

}  // namespace gemmgen
