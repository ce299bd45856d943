// Block scales on their way to tensor memory: words of four scale bytes come by TMA, one word a row, are transposed in
// place to the 32 rows of 16 bytes that the copy to tensor memory wants, and land in four columns per 128 rows.
#pragma once
#include "gemmgen/in_turn.cuh"
#include "gemmgen/umma_operand.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// The fields of the instruction descriptor that say which byte of its word is an operand's scale.
DEVICE constexpr u32 scale_ids(u32 a, u32 b) { return a << 29 | b << 4; }

// WORDS words for each of ROWS rows, a byte for every BLOCK of k. Slot 0 lies OFFSET bytes into dynamic shared memory.
template <u32 OFFSET, u32 ROWS, u32 WORDS, u32 BLOCK, class From = Whole>
struct Scales {
  static constexpr u32 GROUPS = (ROWS + 127) / 128;
  static constexpr u32 GROUP_BYTES = 512;
  static constexpr u32 SLOT_BYTES = WORDS * GROUPS * GROUP_BYTES;
  static constexpr u32 COLUMNS = GROUPS * 4;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 row, u32 word, u32 full) {
#pragma unroll
    for (u32 w = 0; w < WORDS; ++w) From::load(address(slot) + w * GROUPS * GROUP_BYTES, map, row, word + w, full);
  }

  // Bytes of a word that belong to the `rest` elements of k from its first one on. The others may hold anything, NaN
  // too, and a product reaches past the end of k: they become 0.
  DEVICE static u32 meant(u32 rest, u32 word) {
    const u32 first = word * 4 * BLOCK;
    const u32 bytes = rest > first ? (rest - first + BLOCK - 1) / BLOCK : 0;
    return bytes >= 4 ? 0xffffffff : (1u << 8 * bytes) - 1;
  }

  // By a whole warp. Word r of a group goes to byte 16 (r % 32) + 4 (r / 32). `rest` elements of k begin in this slot.
  DEVICE static void transpose(u32 slot, u32 rest) {
    const u32 lane = ptx::lane_index();
#pragma unroll
    for (u32 group = 0; group < WORDS * GROUPS; ++group) {
      const u32 at = address(slot) + group * GROUP_BYTES, mask = meant(rest, group / GROUPS);
      u32 x[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) x[i] = ptx::load_shared_word(at + (i * 32 + lane) * 4) & mask;
      ptx::sync_warp();
      ptx::store_shared_words(at + lane * 16, x[0], x[1], x[2], x[3]);
    }
    ptx::fence_proxy_async();
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
    for (u32 group = 0; group < PLACE::SLOT_BYTES / PLACE::GROUP_BYTES; ++group)
      ptx::tmem_copy_scales<CTAS>(to + group * 4, slots.at(slot, group * PLACE::GROUP_BYTES));
  }
};

}  // namespace gemmgen
