// Schedules: which output tiles this CTA computes, in which order. Every role runs its own copy and sees the same tiles.
#pragma once
#include "ptx/special.cuh"

namespace gemmgen {

DEVICE u32 ceil_div(u32 x, u32 y) { return x / y + (x % y != 0); }

// A warp's place along m among those that have tiles of its group, `warps` of them, of which `part` is its number; `ahead`
// of them are of the groups before.
struct Share {
  u32 group, ahead, warps, part;
};

// Where tiles lie. Clusters are placed as units of CLUSTER_M x CLUSTER_N tiles; GROUP rows of units are walked together,
// column by column. A unit may stick out of the matrix: copies read zeros there and stores are clipped.
// Whoever waits for a tile waits for this, and a division by a number that is not constant takes as long as 50 sums: so
// groups are counted on from where the tile before was, and only the last one may have another height.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 CLUSTER_M, u32 CLUSTER_N>
class Raster {
  u32 rows_, cols_;
  u32 start_ = 0, first_ = 0;  // the group's first unit and row of units
  u32 m_, n_;

 public:
  static constexpr u32 CLUSTER = CLUSTER_M * CLUSTER_N, TILE_ROWS = TILE_M, ROWS = TILE_M * CLUSTER_M;

  DEVICE Raster(u32 m, u32 n) : rows_(ceil_div(m, TILE_M * CLUSTER_M)), cols_(ceil_div(n, TILE_N * CLUSTER_N)) {}
  DEVICE u32 units() const { return rows_ * cols_; }

  // Moves to this CTA's tile of the index'th unit.
  DEVICE void place(u32 index) {
    if constexpr (GROUP == 1 && CLUSTER == 1) {
      const u32 row = cols_ == 1 ? index : index / cols_;
      m_ = row * TILE_M;
      n_ = (index - row * cols_) * TILE_N;
      return;
    }
    if (index < start_) start_ = first_ = 0;
    for (; index - start_ >= GROUP * cols_; first_ += GROUP) start_ += GROUP * cols_;
    const u32 inside = index - start_, left = rows_ - first_;
    u32 row = inside % GROUP, col = inside / GROUP;
    if (left < GROUP) {
      col = inside / left;
      row = inside - col * left;
    }
    const u32 rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    m_ = ((first_ + row) * CLUSTER_M + rank % CLUSTER_M) * TILE_M;
    n_ = (col * CLUSTER_N + rank / CLUSTER_M) * TILE_N;
  }
  // First row and column of the tile.
  DEVICE u32 m() const { return m_; }
  DEVICE u32 n() const { return n_; }
};

// Tiles a grid's stride apart.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 CLUSTER_M, u32 CLUSTER_N>
class Persistent {
  Raster<TILE_M, TILE_N, GROUP, CLUSTER_M, CLUSTER_N> raster_;
  u32 index_;

 public:
  DEVICE Persistent(u32 m, u32 n) : raster_(m, n), index_(ptx::cta_index() / raster_.CLUSTER) {
    if (valid()) raster_.place(index_);
  }
  DEVICE bool valid() const { return index_ < raster_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count() / raster_.CLUSTER;
    if (valid()) raster_.place(index_);
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
};

}  // namespace gemmgen
