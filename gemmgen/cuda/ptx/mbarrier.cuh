// mbarrier: arrival counts and transaction bytes in shared memory.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// mbarrier.init, PTX 7.0, sm_80
DEVICE void mbarrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// fence.mbarrier_init, PTX 8.0, sm_90: makes the initialisation visible to the copy engine and the cluster.
DEVICE void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// mbarrier.arrive.expect_tx, PTX 8.0, sm_90
DEVICE void mbarrier_arrive_expect_tx(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// mbarrier.arrive, PTX 7.0, sm_80
DEVICE void mbarrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// mapa + mbarrier.arrive on another CTA of the cluster, PTX 8.0, sm_90. Unqualified on purpose: `.release.cluster`
// becomes a memory barrier for the whole GPU at every call.
DEVICE void mbarrier_arrive_remote(u32 bar, u32 cta) {
  asm volatile(
      "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(bar),
      "r"(cta)
      : "memory");
}

// mapa, PTX 7.8, sm_90: the address of the same offset in another CTA of the cluster.
DEVICE u32 map_to_cta(u32 address, u32 cta) {
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(cta));
  return mapped;
}

// mbarrier.try_wait.parity, PTX 7.8, sm_90: false when the phase has not completed within a time the hardware chooses.
DEVICE bool mbarrier_try_wait(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

DEVICE void mbarrier_wait(u32 bar, u32 parity) {
  while (!mbarrier_try_wait(bar, parity)) {
  }
}

// mbarrier.try_wait.parity with the scope of a cluster, PTX 8.0, sm_90: for what its other CTAs have written here.
DEVICE void mbarrier_wait_cluster(u32 bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (!done);
}

// cp.async.mbarrier.arrive.noinc, PTX 7.0, sm_80: one arrival once this thread's earlier cp.async have landed.
DEVICE void cp_async_mbarrier_arrive(u32 bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

}  // namespace ptx
