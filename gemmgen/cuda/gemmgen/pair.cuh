// Epilogue arithmetic on two neighbouring columns of one row, and bounds-checked reads of the operands it meets.
#pragma once
#include "gemmgen/math.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

DEVICE float2 add(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
DEVICE float2 mul(float2 x, float2 y) { return make_float2(x.x * y.x, x.y * y.y); }
// Times the reciprocal, rounded to nearest, as the quantisers do it.
DEVICE float2 divided(float2 x, float2 y) { return mul(x, make_float2(__frcp_rn(y.x), __frcp_rn(y.y))); }
DEVICE float2 both(float x) { return make_float2(x, x); }

// A function of one number of each argument, for both columns.
template <class F, class... Pairs>
DEVICE float2 each(const F& f, Pairs... x) {
  return make_float2(f(x.x...), f(x.y...));
}

// Functions that have a step of their own. Of two sigmoids only one reciprocal is taken, of the product of both
// denominators; so that it stays finite, numbers below -43 count as -43, where the sigmoid is 2^-62.
DEVICE float2 sigmoid(float2 x) {
  const float2 e = each([](float z) { return exp(fminf(-z, 43.0f)); }, x);
  const float y = 1.0f + e.y, inverse = ptx::reciprocal(e.x * y + y);
  return make_float2(inverse * y, inverse * e.x + inverse);
}
DEVICE float2 silu(float2 x) { return mul(x, sigmoid(x)); }
DEVICE float2 gelu_tanh(float2 x) {
  return mul(x, sigmoid(each([](float z) { return twice_tanh_argument(z); }, x)));
}
DEVICE float2 gelu(float2 x) {
  return each([](float z) { return gelu(z); }, x);
}
DEVICE float2 relu(float2 x) {
  return each([](float z) { return relu(z); }, x);
}
DEVICE float2 squared_relu(float2 x) {
  return each([](float z) { return squared_relu(z); }, x);
}

// Both columns as an author's function sees them, where it asks for silu or gelu_tanh: written as it is for one number, it
// takes one reciprocal for two.
struct Both : float2 {
  DEVICE Both(float2 x) : float2(x) {}
  DEVICE Both(float x) : float2(both(x)) {}
};
DEVICE Both operator+(Both x, Both y) { return add(x, y); }
DEVICE Both operator-(Both x, Both y) { return make_float2(x.x - y.x, x.y - y.y); }
DEVICE Both operator*(Both x, Both y) { return mul(x, y); }
DEVICE Both operator-(Both x) { return make_float2(-x.x, -x.y); }
DEVICE Both silu(Both x) { return silu(float2(x)); }
DEVICE Both gelu_tanh(Both x) { return gelu_tanh(float2(x)); }
DEVICE Both gelu(Both x) { return gelu(float2(x)); }
DEVICE Both relu(Both x) { return relu(float2(x)); }
DEVICE Both squared_relu(Both x) { return squared_relu(float2(x)); }

// To nearest even. What is too large for f16, e4m3 and e5m2 becomes their largest number, for bf16 Inf.
template <class To>
DEVICE To cast(float2 x);
template <>
DEVICE bf16x2 cast<bf16x2>(float2 x) {
  return ptx::to_bf16x2(x);
}
template <>
DEVICE f16x2 cast<f16x2>(float2 x) {
  return ptx::to_f16x2(x);
}
template <>
DEVICE e4m3x2 cast<e4m3x2>(float2 x) {
  return {u16(ptx::to_e4m3x2(x))};
}
template <>
DEVICE e5m2x2 cast<e5m2x2>(float2 x) {
  return {u16(ptx::to_e5m2x2(x))};
}
template <>
DEVICE float2 cast<float2>(float2 x) {
  return x;
}

// The same of what is positive, and 0 for the rest; NaN stays NaN.
template <class To>
DEVICE To relu_cast(float2 x);
template <>
DEVICE bf16x2 relu_cast<bf16x2>(float2 x) {
  return ptx::to_bf16x2_relu(x);
}
template <>
DEVICE f16x2 relu_cast<f16x2>(float2 x) {
  return ptx::to_f16x2_relu(x);
}
template <>
DEVICE e4m3x2 relu_cast<e4m3x2>(float2 x) {
  return {u16(ptx::to_e4m3x2_relu(x))};
}
template <>
DEVICE e5m2x2 relu_cast<e5m2x2>(float2 x) {
  return {u16(ptx::to_e5m2x2_relu(x))};
}
template <>
DEVICE float2 relu_cast<float2>(float2 x) {
  return relu(x);
}

// An even column whose neighbour is inside the matrix, where both are read at once. As wide as addresses, so that what is
// added to it becomes part of the load instruction.
struct Inside {
  u64 n;
  DEVICE operator u32() const { return u32(n); }
};
DEVICE Inside operator+(Inside x, u32 y) { return {x.n + y}; }

// Epilogues that read vectors along n have two forms of each operand's read: one that checks bounds element by element,
// and, for columns that are all inside, one for pairs.
template <class F>
constexpr bool READS_PAIRS = requires(const F& epilogue) { epilogue.paired(); };

// Runs `body` on column n: as one Inside, if `count` columns from there are and the epilogue may read their operands so.
template <class F, class Body>
DEVICE void at_column(const F& epilogue, u32 n, u32 count, u32 cols, const Body& body) {
  if constexpr (READS_PAIRS<F>)
    if (n + count <= cols && epilogue.paired()) return body(Inside{n});
  body(n);
}

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return ptx::to_float(x); }
DEVICE float widen(f16 x) { return ptx::to_float(x); }
DEVICE float widen(e4m3 x) { return ptx::from_e4m3(x.bits); }
DEVICE float widen(e5m2 x) { return ptx::from_e5m2(x.bits); }

// What an epilogue makes of columns n and n + 1 of row m. One that reduces is told which of the thread's rows and which of
// its pairs of columns in the block these are.
template <class F, class N>
DEVICE auto finished(const F& epilogue, float2 x, u32 m, N n, u32 row, u32 pair) {
  if constexpr (requires { epilogue(x, m, n, row, pair); })
    return epilogue(x, m, n, row, pair);
  else
    return epilogue(x, m, n);
}

// Element `at`, or 0 past the end.
template <class T>
DEVICE float load(const T* from, u64 at, u64 end) {
  return at < end ? widen(from[at]) : 0.0f;
}

// Elements from[0] and from[1], aligned as a pair.
DEVICE float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
template <class T>
DEVICE float2 load_pair(const T* from) {
  struct alignas(2 * sizeof(T)) Pair {
    T x, y;
  };
  const Pair pair = *reinterpret_cast<const Pair*>(from);
  return make_float2(widen(pair.x), widen(pair.y));
}
template <class T>
DEVICE bool is_paired(const T* from, u64 stride = 0) {
  return reinterpret_cast<u64>(from) % (2 * sizeof(T)) == 0 && stride % 2 == 0;
}

// Brings COUNT elements from n of a vector along n nearer, a line of 128 bytes a lane; for when it is read soon.
template <u32 COUNT, class T>
DEVICE void ahead(const T* from, u32 n, u32 end) {
  const u32 at = n + ptx::lane_index() * (128 / sizeof(T));
  if (at < n + COUNT && at < end) ptx::prefetch(from + at);
}

// Elements n and n + 1 of a vector along n.
template <class T>
DEVICE float2 load_columns(const T* from, Inside n, u32) {
  return load_pair(from + n.n);
}
template <class T>
DEVICE float2 load_columns(const T* from, u32 n, u32 end) {
  return make_float2(load(from, n, end), load(from, n + 1, end));
}

// Columns n and n + 1 of row m of a matrix with `stride` elements between rows. Past the edge the last row and column
// are read again: what comes of them is never stored.
template <class T>
DEVICE float2 load_row(const T* from, u64 stride, u32 m, Inside n, u32 rows, u32) {
  return load_pair(from + (m < rows ? m : rows - 1) * stride + n.n);
}
template <class T>
DEVICE float2 load_row(const T* from, u64 stride, u32 m, u32 n, u32 rows, u32 cols) {
  const T* row = from + (m < rows ? m : rows - 1) * stride;
  return make_float2(widen(row[n < cols ? n : cols - 1]), widen(row[n + 1 < cols ? n + 1 : cols - 1]));
}

}  // namespace gemmgen
