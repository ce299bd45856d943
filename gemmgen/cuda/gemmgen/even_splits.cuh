// A schedule in which as many CTAs as the launch says share the K blocks of a tile, and how their sums meet.
#pragma once
#include "gemmgen/schedule.cuh"
#include "ptx/atomic.cuh"
#include "ptx/control.cuh"

namespace gemmgen {

// Tiles times splits, a grid's stride apart; splits of a tile are neighbours. GROUP rows of tiles are walked together.
template <u32 TILE_M, u32 TILE_N, u32 GROUP>
class EvenSplits {
  Raster<TILE_M, TILE_N, GROUP, 1, 1> raster_;
  u32 splits_, index_;

 public:
  DEVICE EvenSplits(u32 m, u32 n, u32 splits) : raster_(m, n), splits_(splits), index_(ptx::cta_index()) {
    if (valid()) raster_.place(tile());
  }
  DEVICE bool valid() const { return tile() < raster_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count();
    if (valid()) raster_.place(tile());
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 tile() const { return index_ / splits_; }
  DEVICE u32 split() const { return index_ % splits_; }
  DEVICE u32 splits() const { return splits_; }

  // The K blocks of this split: what is left over goes one each to the first ones, and some may have none.
  DEVICE u32 first(u32 k_blocks) const {
    const u32 more = k_blocks % splits_;
    return k_blocks / splits_ * split() + (split() < more ? split() : more);
  }
  DEVICE u32 last(u32 k_blocks) const { return first(k_blocks) + k_blocks / splits_ + (split() < k_blocks % splits_); }
};

// Registers of a lane to the workspace and back, 16 bytes at a time; those of one split are `pitch` quads apart.
template <class Registers>
DEVICE void leave(float4*& to, const Registers& registers) {
  const float* x = reinterpret_cast<const float*>(&registers);
#pragma unroll
  for (u32 i = 0; i < sizeof(Registers) / 4; i += 4, to += 32) *to = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}
template <class Registers>
DEVICE void add_up(const float4*& from, u64 pitch, u32 splits, Registers& registers) {
  float* x = reinterpret_cast<float*>(&registers);
#pragma unroll
  for (u32 i = 0; i < sizeof(Registers) / 4; i += 4, from += 32) {
    float4 sum = *from;
#pragma unroll 4
    for (u32 s = 1; s < splits; ++s) {
      const float4 y = from[s * pitch];
      sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
    }
    x[i] = sum.x, x[i + 1] = sum.y, x[i + 2] = sum.z, x[i + 3] = sum.w;
  }
}

// A warp's sums go to the workspace, in the order of its registers; of the warps at the same `place` of a tile's CTAs, the
// one that arrives last adds them up, first split first, and is told so. The counter ends as it began, at 0.
template <class... Sums>
DEVICE bool meet(float* partials, u32* arrivals, u32 place, u32 split, u32 splits, Sums&... sums) {
  if (splits == 1) return true;
  constexpr u64 PITCH = (sizeof(Sums) + ...) / 16 * 32;
  float4* first = reinterpret_cast<float4*>(partials) + place * splits * PITCH + ptx::lane_index();
  float4* to = first + split * PITCH;
  (leave(to, sums), ...);
  ptx::sync_warp();
  u32 before = 0;
  if (ptx::lane_index() == 0) before = ptx::atomic_count(arrivals + place, splits - 1);
  if (ptx::first_lanes(before) != splits - 1) return false;
  ptx::sync_warp();
  const float4* from = first;
  (add_up(from, PITCH, splits, sums), ...);
  return true;
}

}  // namespace gemmgen
