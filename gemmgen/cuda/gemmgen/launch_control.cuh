// A schedule that takes over the tiles of CTAs that have not started yet.
#pragma once
#include "gemmgen/pair_barriers.cuh"
#include "gemmgen/schedule.cuh"
#include "ptx/control.cuh"
#include "ptx/launch_control.cuh"
#include "ptx/memory.cuh"

namespace gemmgen {

// Where the index'th unit of CLUSTER_M x CLUSTER_N tiles lies; GROUP rows of units are walked together.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 CLUSTER_M, u32 CLUSTER_N>
struct Raster {
  static constexpr u32 CLUSTER = CLUSTER_M * CLUSTER_N;
  u32 m = 0, n = 0;

  DEVICE void place(u32 index, u32 rows_of_output, u32 cols_of_output) {
    const u32 rows = ceil_div(rows_of_output, TILE_M * CLUSTER_M), cols = ceil_div(cols_of_output, TILE_N * CLUSTER_N);
    const u32 first = index / (GROUP * cols) * GROUP;
    const u32 height = rows - first < GROUP ? rows - first : GROUP;
    const u32 inside = index - first * cols;
    const u32 rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    m = ((first + inside % height) * CLUSTER_M + rank % CLUSTER_M) * TILE_M;
    n = (inside / height * CLUSTER_N + rank / CLUSTER_M) * TILE_N;
  }
};

// The launched tile first, then those that the ring brings, until an answer says that none is left. WARP: a whole warp
// walks, and one lane arrives for it.
template <class R, u32 SLOTS, u32 ANSWERS, u32 FULL, u32 EMPTY, bool WARP>
class LaunchControl {
  R raster_;
  u32 rows_, cols_;
  bool valid_ = true;
  Cursor<SLOTS> at_;

  DEVICE void release() {
    ptx::fence_proxy_async();
    if constexpr (WARP) ptx::sync_warp();
    if (!WARP || ptx::lane_index() == 0) arrive_at_leader<R::CLUSTER>(bar(EMPTY, at_.slot));
  }

 public:
  DEVICE LaunchControl(u32 m, u32 n) : rows_(m), cols_(n) { raster_.place(ptx::cta_index() / R::CLUSTER, m, n); }
  DEVICE bool valid() const { return valid_; }
  DEVICE void advance() {
    ptx::mbarrier_wait(bar(FULL, at_.slot), at_.phase);
    u32 cta;
    valid_ = ptx::was_cancelled(ptx::smem_base() + ANSWERS + at_.slot * 16, cta);
    release();
    at_.advance();
    if (valid_) raster_.place(cta / R::CLUSTER, rows_, cols_);
  }
  // First row and column of the tile.
  DEVICE u32 m() const { return raster_.m; }
  DEVICE u32 n() const { return raster_.n; }
};

}  // namespace gemmgen
