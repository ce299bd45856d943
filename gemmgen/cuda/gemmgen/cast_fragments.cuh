// A prologue on Hopper: A's elements from shared memory to registers in bf16, and on to the fragments of tf32 wgmma.
#pragma once
#include "gemmgen/fragment.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/bytes.cuh"
#include "ptx/memory.cuh"
#include "ptx/pin.cuh"
#include "ptx/wgmma_tf32.cuh"

namespace gemmgen {

// Rows of 64 bf16 under the 128-byte smem_swizzle, atoms of ROWS of them side by side along k; STEPS products of 8 of k.
// A lane needs elements whose k leaves the same rest by 4, one of each pair in a word: it reads the word and drops one.
template <u32 ROWS, u32 STEPS>
class CastFragments {
  u32 lane_;  // where this lane's first word lies in a tile
  u32 half_;  // moves its element of a word to the upper half and clears the lower, which is what makes an fp32 number

 public:
  // `first` is the warpgroup's first row of the tile, `step` its first step.
  DEVICE explicit CastFragments(u32 first, u32 step = 0)
      : lane_((staged<128>(first + fragment_row(), ptx::lane_index() % 4 / 2 * 4) ^ step % 8 * 16) + step / 8 * ROWS * 128),
        half_(ptx::lane_index() % 2 ? 0x3244 : 0x1044) {}

  // Words of the fragments of all steps, in the order of the instruction's registers. The smem_swizzle exchanges 16-byte
  // chunks, of 8 elements each, by row: a step forward is an exclusive or, and 8 rows further a sum.
  DEVICE void read(u32 (&words)[STEPS][4], u32 tile) const {
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
      const u32 from = (tile + step / 8 * ROWS * 128 + lane_) ^ step % 8 * 16;
#pragma unroll
      for (u32 r = 0; r < 4; ++r) words[step][r] = ptx::load_shared_word(from + r % 2 * 8 * 128 + r / 2 * 8);
    }
  }

  // Words become their elements as fp32 numbers.
  DEVICE void cast(u32 (&words)[STEPS][4]) const {
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step)
#pragma unroll
      for (u32 r = 0; r < 4; ++r) words[step][r] = ptx::permute_bytes(words[step][r], 0, half_);
  }
};

// The compiler may move neither reads nor writes of fragments across this point.
template <u32 BLOCKS, u32 STEPS>
DEVICE void pin(u32 (&a)[BLOCKS][STEPS][4]) {
#pragma unroll
  for (u32 i = 0; i < BLOCKS; ++i)
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) ptx::pin(a[i][step]);
}

}  // namespace gemmgen
