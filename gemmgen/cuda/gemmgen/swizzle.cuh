// The smem_swizzle that the copy engine applies, as an address: for lanes that read or write what it copies.
#pragma once
#include "ptx/types.cuh"

namespace gemmgen {

// Byte offset in rows ROW_BYTES wide, under the smem_swizzle of that width: 16-byte chunks are exchanged by the low bits
// of the 128-byte line they lie in.
template <u32 ROW_BYTES>
DEVICE u32 staged(u32 row, u32 byte) {
  const u32 at = row * ROW_BYTES + byte;
  return at ^ ((at >> 7) % (ROW_BYTES / 16)) << 4;
}

// One such row, which starts at a multiple of 16 bytes: what depends on the row alone is worked out once.
template <u32 ROW_BYTES>
struct StagedRow {
  u32 start, exchange;
  DEVICE StagedRow(u32 base, u32 row)
      : start(base + row * ROW_BYTES), exchange((row * ROW_BYTES >> 7) % (ROW_BYTES / 16) << 4) {}
  DEVICE u32 at(u32 chunk, u32 byte) const { return start + byte + (chunk << 4 ^ exchange); }
};

}  // namespace gemmgen
