// Schedules: which output tiles this CTA computes, in which order. Every role runs its own copy and sees the same tiles.
#pragma once
#include "ptx/special.cuh"

namespace gemmgen {

DEVICE u32 ceil_div(u32 x, u32 y) { return x / y + (x % y != 0); }

// Where tiles lie. Clusters are placed as units of CLUSTER_M x CLUSTER_N tiles; GROUP rows of units are walked together,
// column by column. A unit may stick out of the matrix: copies read zeros there and stores are clipped.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 CLUSTER_M, u32 CLUSTER_N>
class Raster {
  u32 rows_, cols_;
  u32 m_, n_;

 public:
  static constexpr u32 CLUSTER = CLUSTER_M * CLUSTER_N;

  DEVICE Raster(u32 m, u32 n) : rows_(ceil_div(m, TILE_M * CLUSTER_M)), cols_(ceil_div(n, TILE_N * CLUSTER_N)) {}
  DEVICE u32 units() const { return rows_ * cols_; }

  // Moves to this CTA's tile of the index'th unit.
  DEVICE void place(u32 index) {
    if constexpr (GROUP == 1 && CLUSTER == 1) {  // divisions are slow, and the first copies wait for them
      const u32 row = cols_ == 1 ? index : index / cols_;
      m_ = row * TILE_M;
      n_ = (index - row * cols_) * TILE_N;
      return;
    }
    const u32 group = index / (GROUP * cols_);
    const u32 first = group * GROUP;
    const u32 height = rows_ - first < GROUP ? rows_ - first : GROUP;
    const u32 inside = index - first * cols_;
    const u32 rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    m_ = ((first + inside % height) * CLUSTER_M + rank % CLUSTER_M) * TILE_M;
    n_ = (inside / height * CLUSTER_N + rank / CLUSTER_M) * TILE_N;
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
