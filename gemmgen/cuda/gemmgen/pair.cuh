// Epilogue arithmetic on two neighbouring columns of one row, and bounds-checked reads of the operands it meets.
#pragma once
#include "gemmgen/math.cuh"
#include "ptx/convert.cuh"

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

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return ptx::to_float(x); }
DEVICE float widen(f16 x) { return ptx::to_float(x); }
DEVICE float widen(e4m3 x) { return ptx::from_e4m3(x.bits); }
DEVICE float widen(e5m2 x) { return ptx::from_e5m2(x.bits); }

// What an epilogue makes of columns n and n + 1 of row m. One that reduces is told which of the thread's rows and which of
// its pairs of columns in the block these are.
template <class F>
DEVICE auto finished(const F& epilogue, float2 x, u32 m, u32 n, u32 row, u32 pair) {
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

// Elements n and n + 1 of a vector along n.
template <class T>
DEVICE float2 load_columns(const T* from, u32 n, u32 end) {
  return make_float2(load(from, n, end), load(from, n + 1, end));
}

// Columns n and n + 1 of row m of a matrix with `stride` elements between rows. Past the edge the last row and column
// are read again: what comes of them is never stored.
template <class T>
DEVICE float2 load_row(const T* from, u64 stride, u32 m, u32 n, u32 rows, u32 cols) {
  const T* row = from + (m < rows ? m : rows - 1) * stride;
  return make_float2(widen(row[n < cols ? n : cols - 1]), widen(row[n + 1 < cols ? n + 1 : cols - 1]));
}

}  // namespace gemmgen
