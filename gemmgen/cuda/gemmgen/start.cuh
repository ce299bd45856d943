// Sums that start from a vector beside the tile: it is read before or while the first K block is multiplied, so that nobody
// waits, and added by what scales that block.
#pragma once
#include "gemmgen/fragment.cuh"
#include "gemmgen/pair.cuh"
#include "ptx/pin.cuh"

namespace gemmgen {

// A pair of columns that another lane has.
DEVICE float2 handed(float2 x, u32 lane) {
  return make_float2(ptx::from_lane_now(x.x, lane), ptx::from_lane_now(x.y, lane));
}
DEVICE float2 handed(bf16x2 x, u32 lane) { return ptx::pair_from_lane_now(x, lane); }

// Elements n and n + 1 as memory has them: whoever asks for them does not wait.
template <class T, class N>
DEVICE void hold(float2& x, const T* from, N n, u32 end) {
  x = load_columns(from, n, end);
}
DEVICE void hold(bf16x2& x, const bf16* from, Inside n, u32) { x = *reinterpret_cast<const bf16x2*>(from + n.n); }
DEVICE void hold(bf16x2& x, const bf16* from, u32 n, u32 end) {
  const u32 left = n < end ? from[n].bits : 0, right = n + 1 < end ? from[n + 1].bits : 0;
  x = {left | right << 16};
}

// A vector along n, for COLS blocks side by side from column n. A warp's lanes read it once, pairs of columns in turn, and
// hand it round: were every thread to read its own columns, eight times as many reads would delay the first products.
// Pairs are held and handed round as a Pair: shuffles go by words, so one of bf16 takes half as many.
template <u32 COLS, u32 REGS, class Pair = float2>
class StartFromColumns {
  static constexpr u32 PAIRS = REGS * COLS, HELD = (PAIRS + 31) / 32;
  Pair x_[HELD];

  template <class T, class N>
  DEVICE void read_pairs(const T* from, N n, u32 end) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
      const u32 pair = 32 * i + ptx::lane_index();
      if (PAIRS % 32 == 0 || pair < PAIRS) hold(x_[i], from, n + 2 * pair, end);
    }
  }

 public:
  DEVICE StartFromColumns() {}
  template <class T>
  DEVICE StartFromColumns(const T* from, u32 n, u32 end) {
    read(from, n, end);
  }

  template <class T>
  DEVICE void read(const T* from, u32 n, u32 end) {
    if (n + 2 * PAIRS <= end && is_paired(from))
      read_pairs(from, Inside{n}, end);
    else
      read_pairs(from, n, end);
  }

  // Lanes take what they need when it is needed, and not before the product ends, whose registers are many.
  DEVICE void put(float (&acc)[REGS], u32, u32 j) const {
#pragma unroll
    for (u32 r = 0; r < REGS; r += 4) {
      const u32 pair = REGS * j + r, lane = pair % 32 + ptx::lane_index() % 4;
      const float2 x = handed(x_[pair / 32], lane);
      acc[r] = acc[r + 2] = x.x;
      acc[r + 1] = acc[r + 3] = x.y;
    }
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
