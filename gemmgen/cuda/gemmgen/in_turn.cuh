// What a box of an operand is of: the matrix as it lies, or the two halves of an axis in turn, 8 elements of each.
#pragma once
#include "ptx/tma.cuh"

namespace gemmgen {

// As it lies. Boxes start at (`inner`, `outer`), counted along the contiguous and the strided axis.
struct Whole {
  template <class... Policy>
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, Policy... policy) {
    ptx::tma_load_2d(to, map, inner, outer, full, policy...);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_2d_own(to, map, inner, outer, full);
  }
  DEVICE static void load_pair(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_2d_pair(to, map, inner, outer, full);
  }
  DEVICE static void load_multicast(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u16 ctas) {
    ptx::tma_load_2d_multicast(to, map, inner, outer, full, ctas);
  }
  // Where element `at` of the operand in shared memory lies in one of `extent`.
  DEVICE static u32 place(u32 at, u32 extent) { return at; }
};

// As it lies in a group's own matrix: maps have a third dimension of groups.
struct OfGroup {
  template <class... Policy>
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group, Policy... policy) {
    ptx::tma_load_3d(to, map, inner, outer, group, full, policy...);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_3d_own(to, map, inner, outer, group, full);
  }
  DEVICE static void load_pair(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_3d_pair(to, map, inner, outer, group, full);
  }
  DEVICE static void load_multicast(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u16 ctas,
                                    u32 group) {
    ptx::tma_load_3d_multicast(to, map, inner, outer, group, full, ctas);
  }
};

// Halves of the strided axis: maps have dimensions of 8 rows, 2 halves and groups of both. `outer` is a multiple of 16.
struct RowsInTurn {
  template <class... Policy>
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, Policy... policy) {
    ptx::tma_load_4d(to, map, inner, 0, 0, outer / 16, full, policy...);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_4d_own(to, map, inner, 0, 0, outer / 16, full);
  }
  DEVICE static void load_pair(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_4d_pair(to, map, inner, 0, 0, outer / 16, full);
  }
  DEVICE static void load_multicast(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u16 ctas) {
    ptx::tma_load_4d_multicast(to, map, inner, 0, 0, outer / 16, full, ctas);
  }
  DEVICE static u32 place(u32 at, u32 extent) { return at / 16 * 8 + at % 8 + at / 8 % 2 * (extent / 2); }
};

// Halves of the contiguous axis.
struct WordsInTurn {
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_4d(to, map, 0, 0, inner / 16, outer, full);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
    ptx::tma_load_4d_own(to, map, 0, 0, inner / 16, outer, full);
  }
};

// Halves of an axis of a group's own matrix: maps have a fifth dimension of groups.
struct RowsInTurnOfGroup : RowsInTurn {
  template <class... Policy>
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group, Policy... policy) {
    ptx::tma_load_5d(to, map, inner, 0, 0, outer / 16, group, full, policy...);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_5d_own(to, map, inner, 0, 0, outer / 16, group, full);
  }
  DEVICE static void load_pair(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_5d_pair(to, map, inner, 0, 0, outer / 16, group, full);
  }
  DEVICE static void load_multicast(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u16 ctas,
                                    u32 group) {
    ptx::tma_load_5d_multicast(to, map, inner, 0, 0, outer / 16, group, full, ctas);
  }
};
struct WordsInTurnOfGroup {
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_5d(to, map, 0, 0, inner / 16, outer, group, full);
  }
  DEVICE static void load_own(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, u32 group) {
    ptx::tma_load_5d_own(to, map, 0, 0, inner / 16, outer, group, full);
  }
};

// Of any kind, read once in a launch. With `first`, L2 drops it before other lines.
template <class From>
struct ReadOnce : From {
  template <class... Group>
  DEVICE static void load(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full, bool first, Group... group) {
    if (first)
      From::load(to, map, inner, outer, full, group..., ptx::evict_first());
    else
      From::load(to, map, inner, outer, full, group...);
  }
};

// Whether L2 is to drop so many bytes first: that saves other lines, perhaps written ones, which would have to go to memory.
// But copies with any policy are slower, and beyond four times the L2 of an H200 that costs more: 10 % of a launch there.
DEVICE bool drop_first(u64 bytes) { return bytes <= u64(240) << 20; }

}  // namespace gemmgen
