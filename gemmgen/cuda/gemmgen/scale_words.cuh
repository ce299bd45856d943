// Block scales as operands of mma.sync: words of four scale bytes, from shared memory to registers, and bytes picked.
#pragma once
#include "gemmgen/in_turn.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma_scaled.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Rows of A that lane l supplies scales of: l / 4, and in odd lanes 8 more; columns of B: l / 4.
DEVICE u32 scale_row() { return ptx::lane_index() / 4 + ptx::lane_index() % 2 * 8; }
DEVICE u32 scale_col() { return ptx::lane_index() / 4; }

// WORDS words a K block for each of ROWS rows, a scale for every BLOCK of k; or one word for PER K blocks of TILE_K. A
// product takes SCALES of them. Slot 0 lies OFFSET bytes into dynamic shared memory.
//
// Bytes of a word past the end of k may hold anything, NaN too, and a product reaches there: whatever is picked for it
// is a scale that belongs to k, or 0.
template <u32 OFFSET, u32 ROWS, u32 WORDS, u32 BLOCK, u32 PER, u32 TILE_K, u32 SCALES, class From = Whole>
struct ScaleWords {
  static constexpr u32 BYTES = WORDS * ROWS * 4;
  static constexpr u32 SLOT_BYTES = (BYTES + 127) / 128 * 128;
  static constexpr u32 STEP = SCALES == 1 ? 32 : 64;
  // A product takes a scale for each BLOCK of its k, in the order in which they lie.
  static constexpr bool WHOLE = SCALES > 1 && SCALES * BLOCK == STEP;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // With K block kb, the first of those that a word serves; where every group has a matrix, of `group`.
  template <class... Group>
  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 row, u32 kb, u32 full, Group... group) {
    From::load_own(address(slot), map, row, kb / PER * WORDS, full, group...);
  }

  // From the word'th on.
  DEVICE static void load_word(u32 slot, const ptx::TensorMap& map, u32 row, u32 word, u32 full) {
    From::load_own(address(slot), map, row, word, full);
  }

  // Words of COUNT rows STRIDE apart from `row` on, as K block kb of k elements needs them.
  template <u32 STRIDE, u32 COUNT>
  DEVICE static void read(u32 (&to)[WORDS][COUNT], u32 slot, u32 row, u32 kb, u32 k) {
    const u32 from = address(slot) + row * 4;
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w)
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) to[w][i] = ptx::load_shared_word(from + (w * ROWS + i * STRIDE) * 4);
    if constexpr (WHOLE) limit(to, kb * TILE_K, k);
  }

  // Of words whose bytes products take as they lie, from element `at` of k on: what lies past the end of k becomes the
  // last scale there is. Words that begin there are 0, as the copy engine fills in. Of scales of 16, which no product
  // need shift, only the last K block pays.
  template <u32 COUNT>
  DEVICE static void limit(u32 (&words)[WORDS][COUNT], u32 at, u32 k) {
    if (SCALES == 4 && at + TILE_K <= k) return;
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w)
#pragma unroll
      for (u32 i = 0; i < COUNT; ++i) words[w][i] = ptx::bytes_up_to(words[w][i], (k - 1 - at - w * 4 * BLOCK) / BLOCK);
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
      if constexpr (WHOLE)
        to[i] = words[word][i] >> 8 * (step * SCALES % 4);
      else if constexpr (SCALES == 1)
        to[i] = words[word][i] >> 8 * byte(at, k);
      else
        to[i] = ptx::two_bytes(words[word][i], byte(at, k), byte(at + 32, k));
    }
  }
};

}  // namespace gemmgen
