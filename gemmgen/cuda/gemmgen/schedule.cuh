// Schedules: which output tiles this CTA computes, in which order. Every role runs its own copy and sees the same tiles.
#pragma once
#include "ptx/special.cuh"

namespace gemmgen {

DEVICE u32 ceil_div(u32 x, u32 y) { return x / y + (x % y != 0); }

// Tiles a grid's stride apart. Clusters are placed as units of CLUSTER_M x CLUSTER_N tiles; GROUP rows of units are
// walked together, column by column. A unit may stick out of the matrix: copies read zeros there and stores are clipped.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 CLUSTER_M, u32 CLUSTER_N>
class Persistent {
  static constexpr u32 CLUSTER = CLUSTER_M * CLUSTER_N;
  u32 rows_, cols_, index_;
  u32 m_, n_;

  DEVICE void place() {
    const u32 group = index_ / (GROUP * cols_);
    const u32 first = group * GROUP;
    const u32 height = rows_ - first < GROUP ? rows_ - first : GROUP;
    const u32 inside = index_ - first * cols_;
    const u32 rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    m_ = ((first + inside % height) * CLUSTER_M + rank % CLUSTER_M) * TILE_M;
    n_ = (inside / height * CLUSTER_N + rank / CLUSTER_M) * TILE_N;
  }

 public:
  DEVICE Persistent(u32 m, u32 n)
      : rows_(ceil_div(m, TILE_M * CLUSTER_M)), cols_(ceil_div(n, TILE_N * CLUSTER_N)), index_(ptx::cta_index() / CLUSTER) {
    if (valid()) place();
  }
  DEVICE bool valid() const { return index_ < rows_ * cols_; }
  DEVICE void advance() {
    index_ += ptx::cta_count() / CLUSTER;
    if (valid()) place();
  }
  // First row and column of the tile.
  DEVICE u32 m() const { return m_; }
  DEVICE u32 n() const { return n_; }
};

}  // namespace gemmgen
