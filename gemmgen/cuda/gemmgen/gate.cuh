// Gated products: columns come as 8 of gate, 8 of up, and so on; a functor joins each pair, and half as many are left.
#pragma once
#include "gemmgen/fragment.cuh"
#include "gemmgen/pair.cuh"

namespace gemmgen {

// An epilogue of pairs of columns that come behind `pairs` others of their block.
template <class F>
struct Behind : F {
  u32 pairs;
  template <class N>
  DEVICE auto operator()(float2 x, u32 m, N n, u32 row, u32 pair) const {
    return finished(static_cast<const F&>(*this), x, m, n, row, pairs + pair);
  }
};

// A thread's fragments hold a group of gate beside its group of up. The block of 16 rows from m, columns from n of the
// product, goes to `store` as columns from n / 2, so many at a time as it takes: sums turn into results bit by bit.
template <class Store, u32 REGS, class G, class F>
DEVICE void store_gated(Store& store, const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const G& gate,
                        const F& epilogue) {
#pragma unroll
  for (u32 first = 0; first < REGS; first += Store::COLS) {
    float x[Store::COLS / 2];
#pragma unroll
    for (u32 i = 0; i < Store::COLS / 2; i += 2) {
      const u32 at = first + i / 4 * 8 + i % 4, h = i % 4 / 2;
      const u32 row = m + ptx::lane_index() / 4 + h * 8, col = n / 2 + first + i / 4 * 8 + fragment_col();
      const float2 y = gate(make_float2(acc[at], acc[at + 1]), make_float2(acc[at + 4], acc[at + 5]), row, col, h);
      x[i] = y.x;
      x[i + 1] = y.y;
    }
    store.block(x, m, n / 2 + first, rows, cols / 2, Behind<F>{epilogue, first / 8});
  }
}

// COLS neighbouring columns of a lane's row m of the product become half as many, which begin at column n.
template <u32 COLS, class G>
DEVICE void gate_row(float* to, const float (&x)[COLS], u32 m, u32 n, const G& gate) {
#pragma unroll
  for (u32 i = 0; i < COLS / 2; i += 2) {
    const u32 at = i / 8 * 16 + i % 8;
    const float2 y = gate(make_float2(x[at], x[at + 1]), make_float2(x[at + 8], x[at + 9]), m, n + i, 0);
    to[i] = y.x;
    to[i + 1] = y.y;
  }
}

}  // namespace gemmgen
