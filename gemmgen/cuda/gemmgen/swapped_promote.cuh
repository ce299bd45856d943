// Sums between K blocks in fp32 of products with columns of the output on their rows: acc += part * (scale of the row) *
// (scale of the column), of which few columns have one each.
#pragma once
#include "gemmgen/promote.cuh"

namespace gemmgen {

// The scale that all rows of a block share which starts at `first`, as one for ROWS rows of the tile.
template <u32 ROWS>
DEVICE float2 shared_row_scales(u32 scales, u32 first) {
  const float scale = ptx::load_shared(scales + 4 * (first / ROWS));
  return make_float2(scale, scale);
}

// Likewise of scales that the thread has.
template <u32 ROWS, u32 COUNT>
DEVICE float2 shared_row_scales(const float (&scales)[COUNT], u32 first) {
  float scale = scales[0];
#pragma unroll
  for (u32 i = 1; i < COUNT; ++i)
    if (first / ROWS == i) scale = scales[i];
  return make_float2(scale, scale);
}

// Scales of this thread's pairs of columns of a block, wherever it starts.
template <u32 PAIRS>
DEVICE void column_pairs_anywhere(float2 (&to)[PAIRS], u32 scales, u32 first) {
#pragma unroll
  for (u32 i = 0; i < PAIRS; ++i) {
    const u32 at = scales + 4 * (first + 8 * i + fragment_col());
    to[i] = make_float2(ptx::load_shared(at), ptx::load_shared(at + 4));
  }
}

}  // namespace gemmgen
