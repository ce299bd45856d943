// A schedule in which several CTAs share the K blocks of a tile, and how their sums meet in a fixed order.
#pragma once
#include "gemmgen/arrivals.cuh"
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Tiles times SPLITS, a grid's stride apart; splits of a tile are neighbours. GROUP rows of tiles are walked together.
// A split starts at a multiple of UNIT K blocks, where words of block scales start.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 SPLITS, u32 UNIT>
class SplitK {
  Raster<TILE_M, TILE_N, GROUP, 1, 1> raster_;
  u32 index_;

 public:
  DEVICE SplitK(u32 m, u32 n) : raster_(m, n), index_(ptx::cta_index()) {
    if (valid()) raster_.place(tile());
  }
  DEVICE bool valid() const { return tile() < raster_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count();
    if (valid()) raster_.place(tile());
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 tile() const { return index_ / SPLITS; }
  DEVICE u32 split() const { return index_ % SPLITS; }

  // The K blocks of this split: some splits have fewer, or none.
  DEVICE u32 first(u32 k_blocks) const {
    const u32 share = ceil_div(ceil_div(k_blocks, UNIT), SPLITS) * UNIT;
    return share * split() < k_blocks ? share * split() : k_blocks;
  }
  DEVICE u32 last(u32 k_blocks) const {
    const u32 end = first(k_blocks) + ceil_div(ceil_div(k_blocks, UNIT), SPLITS) * UNIT;
    return end < k_blocks ? end : k_blocks;
  }
};

// A warp's sums go to the workspace, in the order of its registers; of the warps that have the same place in the tile's
// CTAs, the one that arrives last adds them up, first split first, and is told so. The counter ends as it began, at 0.
template <u32 SPLITS, u32 WARPS, u32 BLOCKS, u32 REGS>
DEVICE bool meet(float (&acc)[BLOCKS][REGS], float* partials, u32* arrivals, u32 tile, u32 split, u32 warp) {
  constexpr u32 QUADS = BLOCKS * REGS / 4;
  const u32 place = tile * WARPS + warp, lane = ptx::lane_index();
  float4* all = reinterpret_cast<float4*>(partials) + u64(place) * SPLITS * QUADS * 32 + lane;
#pragma unroll
  for (u32 q = 0; q < QUADS; ++q) {
    const float* x = acc[q * 4 / REGS] + q * 4 % REGS;
    all[(split * QUADS + q) * 32] = make_float4(x[0], x[1], x[2], x[3]);
  }
  if (!last_to_arrive(arrivals + place, SPLITS - 1)) return false;
#pragma unroll
  for (u32 q = 0; q < QUADS; ++q) {
    float4 sum = all[q * 32];
#pragma unroll
    for (u32 s = 1; s < SPLITS; ++s) {
      const float4 x = all[(s * QUADS + q) * 32];
      sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    float* to = acc[q * 4 / REGS] + q * 4 % REGS;
    to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
  }
  return true;
}

}  // namespace gemmgen
