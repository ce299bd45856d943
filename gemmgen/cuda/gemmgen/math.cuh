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
// Loses digits below about -4, where the result is small; so does the usual formula in fp32.
DEVICE float gelu(float x) { return 0.5f * x * (1.0f + erff(0.7071067811865476f * x)); }
// (1 + tanh(u)) / 2 is the sigmoid of 2 u.
DEVICE float twice_tanh_argument(float x) { return 1.5957691216057308f * (x + 0.044715f * x * x * x); }
DEVICE float gelu_tanh(float x) { return x * sigmoid(twice_tanh_argument(x)); }

}  // namespace gemmgen
