// Block scales as operands of mma.sync: words of four scale bytes, from shared memory to registers, and bytes picked.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/mma_scaled.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// Rows of A that lane l supplies scales of: l / 4, and in odd lanes 8 more; columns of B: l / 4.
DEVICE u32 scale_row() { return ptx::lane_index() / 4 + ptx::lane_index() % 2 * 8; }
DEVICE u32 scale_col() { return ptx::lane_index() / 4; }

// WORDS words a K block for each of ROWS rows, a scale for every BLOCK of k; or one word for PER K blocks of TILE_K. A
// product takes SCALES of them. Slot 0 lies OFFSET bytes into dynamic shared memory.
//
// Bytes of a word past the end of k may hold anything, NaN too, and a product reaches there: whatever is picked for it
// is a scale that belongs to k, or 0.
template <u32 OFFSET, u32 ROWS, u32 WORDS, u32 BLOCK, u32 PER, u32 TILE_K, u32 SCALES>
struct ScaleWords {
  static constexpr u32 BYTES = WORDS * ROWS * 4;
  static constexpr u32 SLOT_BYTES = (BYTES + 127) / 128 * 128;
  static constexpr u32 STEP = SCALES == 1 ? 32 : 64;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // With K block kb, the first of those that a word serves.
  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 row, u32 kb, u32 full) {
    ptx::tma_load_2d_own(address(slot), map, row, kb / PER * WORDS, full);
  }

  // Words of COUNT rows STRIDE apart from `row` on, as K block kb of k elements needs them.
  template <u32 STRIDE, u32 COUNT>
  DEVICE static void read(u32 (&to)[WORDS][COUNT], u32 slot, u32 row, u32 kb, u32 k) {
    const u32 from = address(slot) + row * 4;
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w)
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) to[w][i] = ptx::load_shared_word(from + (w * ROWS + i * STRIDE) * 4);
    if constexpr (SCALES == 4)
      if ((kb + 1) * TILE_K > k) clear(to, k - kb * TILE_K);
  }

  // Of words that products take whole: `rest` elements of k begin in them, what lies behind becomes 0.
  template <u32 COUNT>
  DEVICE static void clear(u32 (&words)[WORDS][COUNT], u32 rest) {
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w) {
      const u32 first = w * 4 * BLOCK;
      const u32 bytes = rest > first ? (rest - first + BLOCK - 1) / BLOCK : 0;
      const u32 mask = bytes >= 4 ? 0xffffffff : (1u << 8 * bytes) - 1;
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) words[w][i] &= mask;
    }
  }

  // Which byte of its word holds the scale of element `at`, or of the last one there is. A block as long as a K block
  // is never wholly past the end.
  DEVICE static u32 byte(u32 at, u32 k) {
    if constexpr (BLOCK < TILE_K) at = at < k ? at : k - 1;
    return at / BLOCK % 4;
  }

  // What the product of step `step` of K block kb takes, in the low bytes.
  template <u32 COUNT>
  DEVICE static void pick(u32 (&to)[COUNT], const u32 (&words)[WORDS][COUNT], u32 kb, u32 step, u32 k) {
    const u32 word = step * STEP / (4 * BLOCK) % WORDS, at = kb * TILE_K + step * STEP;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
      if constexpr (SCALES == 1) to[i] = words[word][i] >> 8 * byte(at, k);
      if constexpr (SCALES == 2) to[i] = ptx::two_bytes(words[word][i], byte(at, k), byte(at + 32, k));
      if constexpr (SCALES == 4) to[i] = words[word][i];
    }
  }
};

}  // namespace gemmgen
