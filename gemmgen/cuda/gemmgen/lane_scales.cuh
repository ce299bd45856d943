// Scales of B that warps read from memory by themselves: lanes hold a K block each and pass it round.
#pragma once
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Scales of a tile of TILE_N columns, one for 128 columns of the matrix and 128 of k, contiguous along k. What the next 32
// K blocks need is read while these are multiplied.
template <u32 TILE_N>
class LaneScales {
  static constexpr u32 ROWS = 128 % TILE_N == 0 ? 1 : 2;  // that a tile may meet
  const float* from_[ROWS];
  float now_[ROWS], next_[ROWS];
  u32 first_, last_, until_ = 0;

  DEVICE void fetch(u32 kb) {
    const u32 at = kb + ptx::lane_index();
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) next_[i] = at < last_ ? from_[i][at] : 0.0f;
  }

 public:
  // For tiles whose K blocks are those from `first` to `last`.
  DEVICE LaneScales(u32 first, u32 last) : from_(), now_(), next_(), first_(first), last_(last) {}
  // For the tile that starts at column n of `cols`.
  DEVICE LaneScales(const float* scales, u64 stride, u32 n, u32 cols, u32 first, u32 last) : LaneScales(first, last) {
    of(scales, stride, n, cols);
  }

  // From now on of the tile that starts at column n of `cols`: what it needs first is on its way.
  DEVICE void of(const float* scales, u64 stride, u32 n, u32 cols) {
    until_ = 128 - n % 128;
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
      const u32 row = n / 128 + i, end = (cols - 1) / 128;
      from_[i] = scales + (row < end ? row : end) * stride;
    }
    fetch(first_);
  }

  // Of K block kb, COUNT scales for equal shares of the tile's columns. Blocks are asked for one after the other.
  template <u32 COUNT>
  DEVICE void read(float (&to)[COUNT], u32 kb) {
    const u32 lane = (kb - first_) % 32;
    if (lane == 0) {
#pragma unroll
      for (u32 i = 0; i < ROWS; ++i) now_[i] = next_[i];
      fetch(kb + 32);
    }
    float each[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) each[i] = ptx::from_lane(now_[i % ROWS], lane);
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) to[i] = TILE_N / COUNT * i < until_ ? each[0] : each[1];
  }
};

}  // namespace gemmgen
