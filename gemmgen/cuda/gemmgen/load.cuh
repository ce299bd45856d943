// What a producer does for one slot: boxes by TMA, scales that TMA cannot fetch by the warp's lanes.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// ATOMS boxes of ATOM_BYTES, ATOM_ELEMENTS apart along the contiguous axis. With SHARED CTAs this one fetches
// ROWS / SHARED rows of each box and sends them to every CTA of the cluster.
template <u32 ATOMS, u32 ATOM_BYTES, u32 ATOM_ELEMENTS, u32 ROWS, u32 SHARED>
DEVICE void load_tile(u32 to, const ptx::TensorMap& map, u32 inner, u32 outer, u32 full) {
  const u32 rank = SHARED == 1 ? 0 : ptx::cluster_rank();
#pragma unroll
  for (u32 atom = 0; atom < ATOMS; ++atom) {
    const u32 at = to + atom * ATOM_BYTES + rank * (ATOM_BYTES / SHARED);
    const u32 x = inner + atom * ATOM_ELEMENTS;
    const u32 y = outer + rank * (ROWS / SHARED);
    if constexpr (SHARED == 1)
      ptx::tma_load_2d(at, map, x, y, full);
    else
      ptx::tma_load_2d_multicast(at, map, x, y, full, u16((1 << SHARED) - 1));
  }
}

// COUNT scales, one every STEP rows (or columns) from `first`, each standing for PER of them. Positions past the
// matrix repeat the last scale: they meet zeros. `stride` is the distance between scales, in elements.
template <u32 COUNT, u32 STEP, u32 PER>
DEVICE void gather_scales(u32 to, const float* from, u64 stride, u32 first, u32 extent) {
  const u32 last = (extent - 1) / PER;
#pragma unroll
  for (u32 i = ptx::lane_index(); i < COUNT; i += 32) {
    const u32 index = (first + i * STEP) / PER;
    ptx::cp_async_4(to + 4 * i, from + (index < last ? index : last) * stride);
  }
}

}  // namespace gemmgen
