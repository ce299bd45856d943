// A schedule that takes over the tiles of CTAs that have not started yet.
#pragma once
#include "gemmgen/pair_barriers.cuh"
#include "gemmgen/schedule.cuh"
#include "ptx/control.cuh"
#include "ptx/launch_control.cuh"
#include "ptx/memory.cuh"

namespace gemmgen {

// An answer to CTAS CTAs is written by what one of them asked for.
template <u32 CTAS>
DEVICE void wait_for_answer(u32 full, u32 phase) {
  if constexpr (CTAS == 1)
    ptx::mbarrier_wait(full, phase);
  else
    ptx::mbarrier_wait_cluster(full, phase);
}

// The launched tile first, then those that the ring brings, until an answer says that none is left. WARP: a whole warp
// walks, and one lane arrives for it.
template <class R, u32 SLOTS, u32 ANSWERS, u32 FULL, u32 EMPTY, bool WARP>
class LaunchControl {
  R raster_;
  bool valid_ = true;
  Cursor<SLOTS> at_;

  DEVICE void release() {
    fence_for<R::CLUSTER>();
    if constexpr (WARP) ptx::sync_warp();
    if (!WARP || ptx::lane_index() == 0) arrive_at_leader<R::CLUSTER>(bar(EMPTY, at_.slot));
  }

 public:
  DEVICE LaunchControl(u32 m, u32 n) : raster_(m, n) { raster_.place(ptx::cta_index() / R::CLUSTER); }
  DEVICE bool valid() const { return valid_; }
  DEVICE void advance() {
    wait_for_answer<R::CLUSTER>(bar(FULL, at_.slot), at_.phase);
    u32 cta;
    valid_ = ptx::was_cancelled(ptx::smem_base() + ANSWERS + at_.slot * 16, cta);
    release();
    at_.advance();
    if (valid_) raster_.place(cta / R::CLUSTER);
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
};

}  // namespace gemmgen
