// Rings: a cursor that walks the slots, and what filling and draining roles do at a slot's barriers.
#pragma once
#include "ptx/control.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Walks SLOTS slots round and round; `phase` flips each time round, which is what mbarrier parities follow.
template <u32 SLOTS>
struct Cursor {
  u32 slot = 0;
  u32 phase = 0;
  DEVICE void advance() {
    if (++slot == SLOTS) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Address of a slot's barrier in an array of barriers at offset `first` of dynamic shared memory.
DEVICE u32 bar(u32 first, u32 slot) { return ptx::smem_base() + first + slot * 8; }

// One arrival of this warp at the barrier, in every CTA of the cluster that fills the slot.
template <u32 CLUSTER>
DEVICE void release(u32 barrier) {
  if constexpr (CLUSTER == 1) {
    if (ptx::lane_index() == 0) ptx::mbarrier_arrive(barrier);
  } else {
    if (ptx::lane_index() < CLUSTER) ptx::mbarrier_arrive_remote(barrier, ptx::lane_index());
  }
}

// Likewise for a slot that the warp's lanes have read themselves. Loads may still be in flight when the barrier is
// arrived at, and are not ordered before what the copy engine writes next unless a proxy fence stands between: an H100
// does overwrite what ldmatrix has yet to read.
template <u32 CLUSTER>
DEVICE void release_read(u32 barrier) {
  ptx::fence_proxy_async();
  ptx::sync_warp();
  release<CLUSTER>(barrier);
}

}  // namespace gemmgen
