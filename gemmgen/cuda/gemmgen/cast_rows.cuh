// A prologue on datacenter Blackwell: a lane takes its row of A from shared memory in bf16 and leaves it in tensor memory
// as fp32 numbers, which the tensor core reads as tf32.
#pragma once
#include "gemmgen/pair_barriers.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/memory.cuh"
#include "ptx/tcgen05_store.cuh"

namespace gemmgen {

// Rows of 64 bf16 under the 128-byte smem_swizzle, 32 of them a warp.
class CastRows {
  u32 lane_;  // where this lane's row lies in a tile

 public:
  static constexpr u32 WORDS = 32;

  // `first` is the warp's first row of the tile.
  DEVICE explicit CastRows(u32 first) : lane_(staged<128>(first + ptx::lane_index(), 0)) {}

  // 16 bytes at a time; the smem_swizzle exchanges them by row.
  DEVICE void read(u32 (&words)[WORDS], u32 tile) const {
#pragma unroll
    for (u32 i = 0; i < WORDS; i += 4)
      ptx::load_shared_words((tile + lane_) ^ i * 4, words[i], words[i + 1], words[i + 2], words[i + 3]);
  }
};

// Both elements of each word as fp32 numbers, to as many columns of tensor memory.
template <u32 WORDS>
DEVICE void cast_to_tmem(const u32 (&words)[WORDS], u32 to) {
#pragma unroll
  for (u32 part = 0; part < WORDS; part += 16) {
    u32 x[32];
#pragma unroll
    for (u32 i = 0; i < 16; ++i) x[2 * i] = words[part + i] << 16, x[2 * i + 1] = words[part + i] & 0xffff0000u;
    ptx::TmemStore<32>::from(x, to + 2 * part);
  }
}

// Four sums of squares of a row, of which the lane that has the row adds up what it reads.
template <u32 WORDS>
DEVICE void add_row_squares(float (&squares)[4], const u32 (&words)[WORDS]) {
#pragma unroll
  for (u32 i = 0; i < WORDS; ++i) {
    const float low = __uint_as_float(words[i] << 16), high = __uint_as_float(words[i] & 0xffff0000u);
    squares[2 * i % 4] = fmaf(low, low, squares[2 * i % 4]);
    squares[2 * i % 4 + 1] = fmaf(high, high, squares[2 * i % 4 + 1]);
  }
}

// Squares travel to the storing role behind the columns of the accumulators.
DEVICE void squares_to_tmem(const float (&squares)[4], u32 to) {
  u32 x[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) x[i] = __float_as_uint(squares[i]);
  ptx::TmemStore<4>::from(x, to);
}

// What a warp has stored to tensor memory is there for whoever waits at the barrier: one arrival of the warp.
DEVICE void arrive_stored(u32 barrier) {
  ptx::tmem_wait_store();
  ptx::tcgen05_fence_before();
  ptx::sync_warp();
  if (ptx::lane_index() == 0) ptx::mbarrier_arrive(barrier);
}

// The lane of a row that the matrix has writes its sum.
DEVICE void store_row_squares(float* to, const float (&squares)[4], u32 m, u32 rows) {
  const u32 row = m + ptx::lane_index();
  if (row < rows) to[row] = (squares[0] + squares[2]) + (squares[1] + squares[3]);
}

}  // namespace gemmgen
