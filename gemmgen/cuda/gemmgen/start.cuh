// Sums that start from a vector beside the tile: it is read while the first K block is multiplied, so that nobody waits,
// and added by what scales that block.
#pragma once
#include "gemmgen/fragment.cuh"
#include "gemmgen/pair.cuh"
#include "ptx/pin.cuh"

namespace gemmgen {

template <bool VALUE>
struct Known {
  static constexpr bool value = VALUE;
};

// A vector along n, for COLS blocks side by side from column n. A thread's rows have the same columns.
template <u32 COLS, u32 REGS>
class StartFromColumns {
  float2 x_[COLS][REGS / 4];

  template <class T, class N>
  DEVICE void read(const T* from, N n, u32 end) {
#pragma unroll
    for (u32 j = 0; j < COLS; ++j)
#pragma unroll
      for (u32 r = 0; r < REGS / 4; ++r) x_[j][r] = load_columns(from, n + (2 * REGS * j + 8 * r) + fragment_col(), end);
  }

 public:
  template <class T>
  DEVICE StartFromColumns(const T* from, u32 n, u32 end) {
    if (n + 2 * REGS * COLS <= end && is_paired(from))
      read(from, Inside{n}, end);
    else
      read(from, n, end);
  }

  DEVICE void put(float (&acc)[REGS], u32, u32 j) const {
#pragma unroll
    for (u32 r = 0; r < REGS; ++r) acc[r] = r % 2 ? x_[j][r / 4].y : x_[j][r / 4].x;
  }
};

// A vector along m, for ROWS blocks below each other from row m.
template <u32 ROWS, u32 REGS>
class StartFromRows {
  float2 x_[ROWS];

 public:
  template <class T>
  DEVICE StartFromRows(const T* from, u32 m, u32 end) {
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
      const u32 row = m + 64 * i + fragment_row();
      x_[i] = make_float2(load(from, row, end), load(from, row + 8, end));
    }
  }

  DEVICE void put(float (&acc)[REGS], u32 i, u32) const {
#pragma unroll
    for (u32 r = 0; r < REGS; ++r) acc[r] = r % 4 / 2 ? x_[i].y : x_[i].x;
  }
};

// All blocks at once, where there is nothing to multiply; pinned, or the compiler would do it also where there is.
template <class Start, u32 ROWS, u32 COLS, u32 REGS>
DEVICE void put_all(const Start& start, float (&acc)[ROWS][COLS][REGS]) {
#pragma unroll
  for (u32 i = 0; i < ROWS; ++i)
#pragma unroll
    for (u32 j = 0; j < COLS; ++j) {
      start.put(acc[i][j], i, j);
      ptx::pin(acc[i][j]);
    }
}

}  // namespace gemmgen
