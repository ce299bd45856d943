// How an operand lies in a ring's slots, and how a producer fills one: boxes by TMA, or single scales by a warp's lanes.
#pragma once
#include "gemmgen/in_turn.cuh"
#include "gemmgen/schedule.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// BOXES boxes of ROWS x ELEMENTS, side by side along the contiguous axis. Slot 0 lies OFFSET bytes into dynamic shared
// memory. With SHARED CTAs this one fetches ROWS / SHARED rows of each box and sends them to every CTA of the cluster.
// Boxes lie PITCH rows apart.
template <u32 OFFSET, u32 BOXES, u32 ROWS, u32 ELEMENTS, u32 ELEMENT_BYTES, u32 SHARED = 1, class From = Whole,
          u32 PITCH = ROWS>
struct Boxes {
  enum : u32 { COUNT = BOXES, LINES = PITCH, ROW_BYTES = ELEMENTS * ELEMENT_BYTES };
  static constexpr u32 BOX_BYTES = PITCH * ROW_BYTES;
  static constexpr u32 SLOT_BYTES = (BOXES * BOX_BYTES + 127) / 128 * 128;
  static constexpr u32 SLOT_STEP = SLOT_BYTES / 16;  // in a matrix descriptor

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // Copies from (`inner`, `outer`), counted along the contiguous and the strided axis; bytes arrive at `full`, which may
  // lie in either CTA of a pair that multiplies together (CTAS 2). Where every group has a matrix, of `group`.
  template <u32 CTAS = 1, class... Group>
  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, Group... group) {
    const u32 rank = SHARED == 1 ? 0 : ptx::cluster_rank();
#pragma unroll
    for (u32 box = 0; box < BOXES; ++box) {
      const u32 to = address(slot) + box * BOX_BYTES + rank * (BOX_BYTES / SHARED);
      const u32 x = inner + box * ELEMENTS;
      const u32 y = outer + rank * (ROWS / SHARED);
      if constexpr (CTAS == 2)
        From::load_pair(to, map, x, y, full, group...);
      else if constexpr (SHARED == 1)
        From::load(to, map, x, y, full, group...);
      else
        From::load_multicast(to, map, x, y, full, u16((1 << SHARED) - 1), group...);
    }
  }

  // Parts of PART rows that have any of `rows`, and the bytes of a slot without the others.
  template <u32 PART>
  DEVICE static u32 parts_of(u32 rows) {
    return rows < ROWS ? ceil_div(rows, PART) : ROWS / PART;
  }
  template <u32 PART>
  DEVICE static u32 bytes_without(u32 parts) {
    return (ROWS / PART - parts) * PART * BOXES * ROW_BYTES;
  }
  // Which map they are copied by: `map` where they are all there.
  template <u32 PART>
  DEVICE static const ptx::TensorMap& map_of(const ptx::TensorMap& map, const ptx::TensorMap& map_of_part, u32 parts) {
    return parts == ROWS / PART ? map : map_of_part;
  }
  // Copies so many parts. It takes the copy engine longer to fill in a row of zeros than to copy one, so those without rows
  // stay away.
  template <u32 PART, class... Group>
  DEVICE static void load_parts(u32 slot, const ptx::TensorMap& map, const ptx::TensorMap& map_of_part, u32 inner, u32 outer,
                                u32 full, u32 parts, Group... group) {
    if (parts == ROWS / PART) return load(slot, map, inner, outer, full, group...);
#pragma unroll
    for (u32 part = 0; part + 1 < ROWS / PART; ++part)
      if (part < parts)
#pragma unroll
        for (u32 box = 0; box < BOXES; ++box)
          From::load(address(slot) + box * BOX_BYTES + part * PART * ROW_BYTES, map_of_part, inner + box * ELEMENTS,
                     outer + part * PART, full, group...);
  }

  // The same as `load` into a CTA that is in no cluster.
  template <class... Group>
  DEVICE static void load_own(u32 slot, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, Group... group) {
#pragma unroll
    for (u32 box = 0; box < BOXES; ++box)
      From::load_own(address(slot) + box * BOX_BYTES, map, inner + box * ELEMENTS, outer, full, group...);
  }
};

// A box of a tile's rows in PARTS boxes of ROWS x ELEMENTS, one below the other: a tile that is cut needs only the first.
template <u32 OFFSET, u32 PARTS, u32 ROWS, u32 ELEMENTS, u32 ELEMENT_BYTES>
struct Stack {
  static constexpr u32 BOX_BYTES = ROWS * ELEMENTS * ELEMENT_BYTES;
  static constexpr u32 SLOT_STEP = PARTS * BOX_BYTES / 16;  // in a matrix descriptor

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * PARTS * BOX_BYTES; }

  DEVICE static void load(u32 slot, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 parts) {
#pragma unroll
    for (u32 part = 0; part < PARTS; ++part)
      if (part < parts) ptx::tma_load_2d(address(slot) + part * BOX_BYTES, map, inner, outer + part * ROWS, full);
  }
};

// COUNT fp32 scales, one every STEP rows (or columns) of the tile, each standing for PER of them.
template <u32 OFFSET, u32 COUNT, u32 STEP, u32 PER, class From = Whole>
struct Gather {
  static constexpr u32 SLOT_BYTES = (COUNT * 4 + 15) / 16 * 16;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * SLOT_BYTES; }

  // Scales lie `stride` elements apart; the tile starts at row `first` of `extent`. Positions past the matrix repeat
  // the last scale: they meet zeros.
  DEVICE static void load(u32 slot, const float* from, u64 stride, u32 first, u32 extent) {
    const u32 last = (extent - 1) / PER;
    for (u32 i = ptx::lane_index(); i < COUNT; i += 32) {
      const u32 index = From::place(first + i * STEP, extent) / PER;
      ptx::cp_async_4(address(slot) + 4 * i, from + (index < last ? index : last) * stride);
    }
  }
};

// The same for each of BLOCKS K blocks of a tile, those of a block side by side: for a slot that serves so many turns.
template <u32 OFFSET, u32 COUNT, u32 STEP, u32 PER, u32 BLOCKS, class From = Whole>
struct GatherBlocks {
  static constexpr u32 EVERY = BLOCKS, BLOCK_BYTES = COUNT > 2 ? (COUNT * 4 + 15) / 16 * 16 : COUNT * 4;

  DEVICE static u32 address(u32 slot) { return ptx::smem_base() + OFFSET + slot * BLOCKS * BLOCK_BYTES; }
  // Those of the block at `from`.
  DEVICE static void read(float (&to)[COUNT], u32 from) {
    if constexpr (COUNT == 1) {
      to[0] = ptx::load_shared(from);
    } else if constexpr (COUNT == 2) {
      const float2 x = ptx::load_shared_pair(from);
      to[0] = x.x, to[1] = x.y;
    } else {
#pragma unroll
      for (u32 i = 0; i < COUNT; i += 4) {
        const float4 x = ptx::load_shared_quad(from + 4 * i);
        to[i] = x.x;
        if (i + 1 < COUNT) to[i + 1] = x.y;
        if (i + 2 < COUNT) to[i + 2] = x.z;
        if (i + 3 < COUNT) to[i + 3] = x.w;
      }
    }
  }

  // `blocks` are left of the tile; neighbours along k lie `along_k` elements apart. A lane has a K block.
  DEVICE static void load(u32 slot, const float* from, u64 along_k, u64 stride, u32 first, u32 extent, u32 blocks) {
    const u32 last = (extent - 1) / PER, end = blocks < BLOCKS ? blocks : BLOCKS;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
      const u32 index = From::place(first + i * STEP, extent) / PER;
      const float* row = from + (index < last ? index : last) * stride;
      for (u32 block = ptx::lane_index(); block < end; block += 32)
        ptx::cp_async_4(address(slot) + block * BLOCK_BYTES + 4 * i, row + block * along_k);
    }
  }
};

}  // namespace gemmgen
