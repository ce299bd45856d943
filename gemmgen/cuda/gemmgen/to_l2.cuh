// Tiles of what the epilogue meets in memory are fetched to L2 while products run.
#pragma once
#include "gemmgen/schedule.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// ROWS rows of boxes of BOX_ROWS x ELEMENTS, COLS columns wide, from row m and column n of a map, or of a `group`'s matrix.
// The last BESIDE K blocks of a tile, or all if there are fewer, fetch a share of them each: what is fetched sooner may
// be gone again, and at once they delay the ring's boxes. By the thread that fills it, for the K block that has `left`
// of `k_blocks`, itself among them.
template <u32 ROWS, u32 COLS, u32 BOX_ROWS, u32 ELEMENTS, u32 BESIDE = 16, class... Group>
DEVICE void to_l2(const ptx::TensorMap& map, u32 m, u32 n, u32 left, u32 k_blocks, Group... group) {
  constexpr u32 ACROSS = (COLS + ELEMENTS - 1) / ELEMENTS, BOXES = (ROWS + BOX_ROWS - 1) / BOX_ROWS * ACROSS;
  const u32 blocks = k_blocks < BESIDE ? k_blocks : BESIDE;
  if (left > blocks) return;
  const u32 share = k_blocks < BESIDE ? ceil_div(BOXES, k_blocks) : (BOXES + BESIDE - 1) / BESIDE;
  const u32 first = (blocks - left) * share, end = first + share < BOXES ? first + share : BOXES;
#pragma unroll 1
  for (u32 box = first; box < end; ++box)
    ptx::tma_to_l2(map, n + box % ACROSS * ELEMENTS, m + box / ACROSS * BOX_ROWS, group...);
}

}  // namespace gemmgen
