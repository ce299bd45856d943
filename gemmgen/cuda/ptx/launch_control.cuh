// Cluster launch control: running CTAs take over launches that have not started (PTX 8.6, sm_100).
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// clusterlaunchcontrol.try_cancel: 16 bytes of answer and as many at the barrier, in each CTA of the pair.
template <u32 CTAS>
DEVICE void try_cancel(u32 answer, u32 bar) {
  if constexpr (CTAS == 1)
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(answer),
        "r"(bar)
        : "memory");
  else
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 "
        "[%0], [%1];" ::"r"(answer),
        "r"(bar)
        : "memory");
}

// clusterlaunchcontrol.query_cancel: whether a launch was taken over, and then the x index of its first CTA.
DEVICE bool was_cancelled(u32 answer, u32& cta) {
  u32 taken;
  asm volatile(
      "{ .reg .pred p; .reg .b128 r; ld.shared.b128 r, [%2];\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; selp.b32 %0, 1, 0, p; mov.b32 %1, 0;\n"
      "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, r; }"
      : "=r"(taken), "=r"(cta)
      : "r"(answer)
      : "memory");
  return taken != 0;
}

}  // namespace ptx
