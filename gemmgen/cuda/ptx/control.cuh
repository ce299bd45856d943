// Register budgets, CTA and cluster barriers, dependent launches.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// setmaxnreg.dec, PTX 8.0, sm_90a: gives registers back to the SM's pool; whole warpgroups only.
template <u32 COUNT>
DEVICE void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// setmaxnreg.inc, PTX 8.0, sm_90a: waits until the pool has enough.
template <u32 COUNT>
DEVICE void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// bar.sync 0, where all threads of the CTA are in the same place
DEVICE void sync_cta() { __syncthreads(); }

// bar.sync, PTX 2.0: at one of 15 other barriers of the CTA, until so many threads have come; whole warps.
DEVICE void sync_threads(u32 barrier, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// bar.arrive, PTX 2.0: comes there and goes on; what was written before, those that wait see.
DEVICE void arrive_threads(u32 barrier, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// bar.warp.sync
DEVICE void sync_warp() { __syncwarp(); }

// barrier.cluster, PTX 7.8, sm_90
DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// barrier.cluster.arrive.relaxed and barrier.cluster.wait, PTX 8.0, sm_90: what was fenced before the arrival, mbarriers that
// were initialised, those that have waited see. Other work may stand between the two. `.release` would become a memory
// barrier for the whole GPU and wait for every load in flight.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// griddepcontrol.launch_dependents, PTX 7.8, sm_90: the next kernel in the stream may start.
DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// griddepcontrol.wait, PTX 7.8, sm_90: the kernels this one depends on have ended and their writes are visible.
DEVICE void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace ptx
