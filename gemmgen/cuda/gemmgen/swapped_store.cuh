// From accumulators whose rows are columns of the output to global memory, for products with swapped factors.
#pragma once
#include "gemmgen/store.cuh"

namespace gemmgen {

// Two neighbours in one store where they lie so, as they do in outputs of an even pitch.
template <class T, class Columns = SideBySide>
class PairStore {
  T* to_;
  u64 stride_;

 public:
  DEVICE PairStore(T* to, u64 stride) : to_(to), stride_(stride) {}

  // Columns n and n + 1 of a row inside the matrix; the second may lie past its edge.
  template <class Pair>
  DEVICE void pair(u32 row, u32 col, u32 cols, Pair x) const {
    T* to = to_ + row * stride_ + Columns::column(col);
    add_held<Columns>(x, to, col + 1 < cols);
    if (col + 1 < cols && reinterpret_cast<u64>(to) % sizeof(Pair) == 0)
      *reinterpret_cast<Pair*>(to) = x;
    else
      put(to, x, col + 1 < cols);
  }
};

// Straight from registers with bounds checks. Lanes 4 apart exchange values, so that each has two neighbouring columns
// of a row of the output, which `Out` writes.
template <class T, class Columns = SideBySide, class Out = DirectStore<T, Columns>>
class SwappedStore {
  Out out_;

 public:
  DEVICE SwappedStore(T* to, u64 stride) : out_(to, stride) {}

  // 16 columns of the output from n, rows from m.
  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    const u32 lane = ptx::lane_index();
    const bool odd = lane / 4 % 2;
#pragma unroll
    for (u32 i = 0; i < REGS; i += 2) {
      const float other = ptx::exchange<4>(odd ? acc[i] : acc[i + 1]);
      const float2 x = odd ? make_float2(other, acc[i + 1]) : make_float2(acc[i], other);
      const u32 row = m + i / 4 * 8 + fragment_col() + odd;
      const u32 col = n + i % 4 / 2 * 8 + lane / 8 * 2;
      if (row < rows && col < cols) out_.pair(row, col, cols, epilogue(x, row, col));
    }
  }

  DEVICE void finish() const {}
};

}  // namespace gemmgen
