// Barriers of kernels in which one thread multiplies, for its own CTA or for a pair.
#pragma once
#include "gemmgen/ring.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// Barriers for SLOTS slots at each of two offsets of dynamic shared memory.
template <u32 SLOTS>
DEVICE void init_barriers(u32 first, u32 arrivals) {
  for (u32 slot = 0; slot < SLOTS; ++slot) ptx::mbarrier_init(bar(first, slot), arrivals);
}
template <u32 SLOTS>
DEVICE void init_barriers(u32 full, u32 filling, u32 empty, u32 draining) {
  init_barriers<SLOTS>(full, filling);
  init_barriers<SLOTS>(empty, draining);
}

// Waits until every slot that was filled is empty again: the arrivals of products that end late come to this CTA's
// shared memory, which may not go away before them.
template <u32 SLOTS>
DEVICE void drain(u32 empty, Cursor<SLOTS> at) {
  for (u32 slot = 0; slot < SLOTS; ++slot, at.advance()) ptx::mbarrier_wait(bar(empty, at.slot), at.phase ^ 1);
}

// What this CTA has done to shared memory comes before what copies and products of CTAS CTAs do to it next.
template <u32 CTAS>
DEVICE void fence_for() {
  if constexpr (CTAS == 1)
    ptx::fence_proxy_async();
  else
    ptx::fence_proxy_async_cluster();
}

// A whole warp waits and stays together, so that no lane falls a phase behind; its tcgen05 instructions come after.
DEVICE void warp_wait(u32 barrier, u32 phase) {
  ptx::mbarrier_wait(barrier, phase);
  ptx::sync_warp();
  ptx::tcgen05_fence_after();
}

// One arrival where the products are issued: in this CTA, or in the first CTA of the pair.
template <u32 CTAS>
DEVICE void arrive_at_leader(u32 barrier) {
  if constexpr (CTAS == 1)
    ptx::mbarrier_arrive(barrier);
  else
    ptx::mbarrier_arrive_remote(barrier, 0);
}

}  // namespace gemmgen
