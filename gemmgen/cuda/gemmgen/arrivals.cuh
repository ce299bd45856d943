// How warps of several CTAs meet without waiting: each leaves what it has and counts itself; the last one finds all of it.
#pragma once
#include "ptx/atomic.cuh"
#include "ptx/control.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Whether `last` warps have come to the counter before this one, whose lanes then see what all of them wrote. The counter
// ends as it began, at 0.
DEVICE bool last_to_arrive(u32* counter, u32 last) {
  ptx::sync_warp();
  u32 before = 0;
  if (ptx::lane_index() == 0) before = ptx::atomic_count(counter, last);
  if (ptx::first_lanes(before) != last) return false;
  ptx::sync_warp();
  return true;
}

}  // namespace gemmgen
