// Sums between K blocks in fp32: acc += part * (scale of the row) * (scale of the column).
#pragma once
#include "gemmgen/fragment.cuh"
#include "ptx/memory.cuh"

namespace gemmgen {

// Scales of this thread's two rows.
DEVICE float2 row_scales(u32 scales, u32 row) {
  return make_float2(ptx::load_shared(scales + 4 * row), ptx::load_shared(scales + 4 * (row + 8)));
}

// COUNT scales, the same for every thread.
template <u32 COUNT>
DEVICE void column_scales(float (&to)[COUNT], u32 scales) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) to[i] = ptx::load_shared(scales + 4 * i);
}

// One scale per COLUMNS columns of the tile; the block starts at column `first`.
template <u32 COLUMNS, u32 REGS, u32 COUNT>
DEVICE void promote(float (&acc)[REGS], const float (&part)[REGS], float2 rows, const float (&cols)[COUNT], u32 first) {
#pragma unroll
  for (u32 i = 0; i < REGS; i += 4) {
    const float col = cols[(first + 2 * i) / COLUMNS];
    const float upper = rows.x * col, lower = rows.y * col;
    acc[i] += part[i] * upper;
    acc[i + 1] += part[i + 1] * upper;
    acc[i + 2] += part[i + 2] * lower;
    acc[i + 3] += part[i + 3] * lower;
  }
}

// Scales of this thread's pairs of columns, one of each, of a block that starts at an even one.
template <u32 PAIRS>
DEVICE void column_pairs(float2 (&to)[PAIRS], u32 scales, u32 first = 0) {
#pragma unroll
  for (u32 i = 0; i < PAIRS; ++i) to[i] = ptx::load_shared_pair(scales + 4 * (first + 8 * i + fragment_col()));
}

// One scale per column, which the thread has.
template <u32 REGS>
DEVICE void promote_columns(float (&acc)[REGS], const float (&part)[REGS], float2 rows, const float2 (&cols)[REGS / 4]) {
#pragma unroll
  for (u32 i = 0; i < REGS; i += 4) {
    acc[i] += part[i] * (rows.x * cols[i / 4].x);
    acc[i + 1] += part[i + 1] * (rows.x * cols[i / 4].y);
    acc[i + 2] += part[i + 2] * (rows.y * cols[i / 4].x);
    acc[i + 3] += part[i + 3] * (rows.y * cols[i / 4].y);
  }
}

// One scale per column, read as it is needed.
template <u32 REGS>
DEVICE void promote_columns(float (&acc)[REGS], const float (&part)[REGS], float2 rows, u32 scales, u32 first) {
#pragma unroll
  for (u32 i = 0; i < REGS; i += 4) {
    const float2 cols = ptx::load_shared_pair(scales + 4 * (first + 2 * i + fragment_col()));
    acc[i] += part[i] * (rows.x * cols.x);
    acc[i + 1] += part[i + 1] * (rows.x * cols.y);
    acc[i + 2] += part[i + 2] * (rows.y * cols.x);
    acc[i + 3] += part[i + 3] * (rows.y * cols.y);
  }
}

}  // namespace gemmgen
