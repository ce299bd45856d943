// Block scales on their way to tensor memory: words of four scale bytes come by TMA, one word a row, are transposed in
// place to the 32 rows of 16 bytes that the copy to tensor memory wants, and land in four columns per 128 rows.
#pragma once
#include "gemmgen/in_turn.cuh"
#include "gemmgen/pair_barriers.cuh"
#include "gemmgen/umma_operand.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// The fields of the instruction descriptor that say which byte of its word is an operand's scale.
DEVICE constexpr u32 scale_ids(u32 a, u32 b) { return a << 29 | b << 4; }

// WORDS words for each of ROWS rows, a byte for every BLOCK of k. Slot 0 lies OFFSET bytes into dynamic shared memory. A word
// of all rows comes as BOXES boxes of BOX rows, more than ROWS where the first may be inside a box, and takes WORD_BYTES.
template <u32 OFFSET, u32 ROWS, u32 WORDS, u32 BLOCK, class From = Whole, u32 BOXES = 1, u32 BOX = ROWS,
          u32 WORD_BYTES = (ROWS + 127) / 128 * 512>
struct Scales {
  static constexpr u32 GROUPS = (ROWS + 127) / 128;
  static constexpr u32 ALL_GROUPS = WORDS * GROUPS;
  static constexpr u32 SLOT_BYTES = WORDS * WORD_BYTES;
  static constexpr u32 COLUMNS = GROUPS * 4;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // Where the 512 bytes of the group'th 128 rows lie, counted on through all words.
  DEVICE static constexpr u32 place(u32 group) { return group / GROUPS * WORD_BYTES + group % GROUPS * 512; }

  // From `row` on; where every group has a matrix, of `group`.
  template <class... Group>
  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 row, u32 word, u32 full, Group... group) {
#pragma unroll
    for (u32 i = 0; i < WORDS * BOXES; ++i) {
      const u32 w = i / BOXES, box = i % BOXES * BOX;
      From::load(address(slot) + w * WORD_BYTES + box * 4, map, row + box, word + w, full, group...);
    }
  }

  // Bytes of a word that belong to the `rest` elements of k from its first one on. The others may hold anything, NaN
  // too, and a product reaches past the end of k: they become 0.
  DEVICE static u32 meant(u32 rest, u32 word) {
    const u32 first = word * 4 * BLOCK;
    const u32 bytes = rest > first ? (rest - first + BLOCK - 1) / BLOCK : 0;
    return bytes >= 4 ? 0xffffffff : (1u << 8 * bytes) - 1;
  }

  // By a whole warp. Word r of a group goes to byte 16 (r % 32) + 4 (r / 32). `rest` elements of k begin in this slot, and its
  // first row is the `skipped`th of the first box.
  // The copy to tensor memory is that of CTAS CTAs, which read this CTA's shared memory, too.
  template <u32 CTAS>
  DEVICE static void transpose(u32 slot, u32 rest, u32 skipped = 0) {
    const u32 lane = ptx::lane_index();
#pragma unroll
    for (u32 group = 0; group < ALL_GROUPS; ++group) {
      const u32 at = address(slot) + place(group), mask = meant(rest, group / GROUPS);
      u32 x[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) x[i] = ptx::load_shared_word(at + (i * 32 + lane + skipped) * 4) & mask;
      ptx::sync_warp();
      ptx::store_shared_words(at + lane * 16, x[0], x[1], x[2], x[3]);
    }
    fence_for<CTAS>();
    ptx::sync_warp();
  }
};

// From the slots of a ring's PLACE to tensor memory, by the lane that issues the products.
template <class PLACE>
struct ScaleCopy {
  const UmmaSlots<PLACE> slots{0, 128, 0};

  // Word w of the rows goes to columns `to` + w * COLUMNS.
  template <u32 CTAS>
  DEVICE void copy(u32 slot, u32 to) const {
#pragma unroll
    for (u32 group = 0; group < PLACE::ALL_GROUPS; ++group)
      ptx::tmem_copy_scales<CTAS>(to + group * 4, slots.at(slot, PLACE::place(group)));
  }
};

}  // namespace gemmgen
