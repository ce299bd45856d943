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

// WORDS words a K block for each of ROWS rows, a scale for every BLOCK of k; or one word for PER K blocks of TILE_K.
// Slot 0 lies OFFSET bytes into dynamic shared memory.
template <u32 OFFSET, u32 ROWS, u32 WORDS, u32 BLOCK, u32 PER, u32 TILE_K>
struct ScaleWords {
  static constexpr u32 BYTES = WORDS * ROWS * 4;
  static constexpr u32 SLOT_BYTES = (BYTES + 127) / 128 * 128;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // With K block kb, the first of those that a word serves.
  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 row, u32 kb, u32 full) {
    ptx::tma_load_2d(address(slot), map, row, kb / PER * WORDS, full);
  }

  // Bytes of a word that belong to the `rest` elements of k from its first one on. The others may hold anything, NaN
  // too, and a product reaches past the end of k.
  DEVICE static u32 meant(u32 rest) {
    const u32 bytes = (rest + BLOCK - 1) / BLOCK;
    return bytes >= 4 ? 0xffffffff : (1u << 8 * bytes) - 1;
  }

  // Words of COUNT rows STRIDE apart from `row` on. k elements of K block kb and later are left to multiply.
  template <u32 STRIDE, u32 COUNT>
  DEVICE static void read(u32 (&to)[WORDS][COUNT], u32 slot, u32 row, u32 kb, u32 k) {
    const u32 from = address(slot) + row * 4;
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w)
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) to[w][i] = ptx::load_shared_word(from + (w * ROWS + i * STRIDE) * 4);
    if (kb * TILE_K + 4 * BLOCK * WORDS <= k) return;
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w) {
      const u32 start = kb * TILE_K + 4 * BLOCK * w;
      const u32 mask = start < k ? meant(k - start) : 0;
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) to[w][i] &= mask;
    }
  }

  // What one product takes, SCALES bytes of a word, for the step'th STEP elements of K block kb.
  template <u32 STEP, u32 SCALES, u32 COUNT>
  DEVICE static void pick(u32 (&to)[COUNT], const u32 (&words)[WORDS][COUNT], u32 kb, u32 step) {
    const u32 word = step * STEP / (4 * BLOCK) % WORDS;
    const u32 byte = (kb % PER * TILE_K + step * STEP) / BLOCK % 4;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i)
      if constexpr (SCALES == 4)
        to[i] = words[word][i];
      else if constexpr (SCALES == 2 && BLOCK >= STEP)
        to[i] = ptx::repeat_byte(words[word][i], byte);
      else
        to[i] = words[word][i] >> 8 * byte;
  }
};

}  // namespace gemmgen
