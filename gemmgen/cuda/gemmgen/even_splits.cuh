// A schedule in which as many CTAs as the launch says share the K blocks of a tile, and how their sums meet.
#pragma once
#include "gemmgen/arrivals.cuh"
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Tiles times splits, a grid's stride apart; splits of a tile are neighbours. GROUP rows of tiles are walked together. With
// WHOLE_WAVES tiles of full waves have a CTA each, and only those behind them are shared.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, bool WHOLE_WAVES = false>
class EvenSplits {
  Raster<TILE_M, TILE_N, GROUP, 1, 1> raster_;
  u32 splits_, index_, tile_, split_;

  // Tiles of full waves. It is no member, and 0 is added nowhere: either changed the machine code of kernels that have no
  // such tiles, which then took 5 to 9 % longer where a launch is short.
  DEVICE u32 whole() const { return raster_.units() - raster_.units() % ptx::cta_count(); }
  DEVICE bool alone() const { return index_ < whole(); }
  DEVICE void place() {
    if constexpr (WHOLE_WAVES) {
      const u32 first = whole(), shared = index_ - first;
      tile_ = alone() ? index_ : first + shared / splits_;
      split_ = alone() ? 0 : shared - (tile_ - first) * splits_;
    } else {
      tile_ = index_ / splits_;
      split_ = index_ - tile_ * splits_;
    }
    if (valid()) raster_.place(tile_);
  }

 public:
  DEVICE EvenSplits(u32 m, u32 n, u32 splits) : raster_(m, n), splits_(splits), index_(ptx::cta_index()) { place(); }
  DEVICE bool valid() const { return tile_ < raster_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count();
    place();
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  // Its place among tiles that are shared.
  DEVICE u32 tile() const {
    if constexpr (WHOLE_WAVES) return tile_ - whole();
    return tile_;
  }
  DEVICE u32 split() const { return split_; }
  DEVICE u32 splits() const {
    if constexpr (WHOLE_WAVES) return alone() ? 1 : splits_;
    return splits_;
  }

  // The K blocks of this split: what is left over goes one each to the first ones, and some may have none.
  DEVICE u32 first(u32 k_blocks) const {
    const u32 share = k_blocks / splits(), more = k_blocks - share * splits();
    return share * split_ + (split_ < more ? split_ : more);
  }
  DEVICE u32 last(u32 k_blocks) const {
    const u32 share = k_blocks / splits();
    return first(k_blocks) + share + (split_ < k_blocks - share * splits());
  }
};

// Registers of several arrays one behind the other, and back.
template <class Registers>
DEVICE void append(float*& to, const Registers& from) {
#pragma unroll
  for (u32 i = 0; i < sizeof(Registers) / 4; ++i) *to++ = reinterpret_cast<const float*>(&from)[i];
}
template <class Registers>
DEVICE void take(const float*& from, Registers& to) {
#pragma unroll
  for (u32 i = 0; i < sizeof(Registers) / 4; ++i) reinterpret_cast<float*>(&to)[i] = *from++;
}

// A warp's sums go to the workspace, 16 bytes a lane at a time; of the warps at the same `place` of a tile's CTAs, the one
// that arrives last adds them up, first split first, and is told so. The counter ends as it began, at 0.
template <class... Sums>
DEVICE bool meet(float* partials, u32* arrivals, u32 place, u32 split, u32 splits, Sums&... sums) {
  if (splits == 1) return true;
  constexpr u32 COUNT = (sizeof(Sums) + ...) / 4;
  constexpr u64 PITCH = COUNT / 4 * 32;
  float x[COUNT], *end = x;
  (append(end, sums), ...);
  float4* first = reinterpret_cast<float4*>(partials) + place * splits * PITCH + ptx::lane_index();
#pragma unroll
  for (u32 i = 0; i < COUNT; i += 4)
    first[split * PITCH + i / 4 * 32] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  if (!last_to_arrive(arrivals + place, splits - 1)) return false;
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) x[i] = 0;
#pragma unroll COUNT > 64 ? 1 : 4
  for (u32 s = 0; s < splits; ++s) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 4) {
      const float4 y = first[s * PITCH + i / 4 * 32];
      x[i] += y.x, x[i + 1] += y.y, x[i + 2] += y.z, x[i + 3] += y.w;
    }
  }
  const float* from = x;
  (take(from, sums), ...);
  return true;
}

}  // namespace gemmgen
