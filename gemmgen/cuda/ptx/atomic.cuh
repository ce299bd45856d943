// Atomic operations on global memory.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// atom.acq_rel.gpu.inc, PTX 6.0, sm_70: counts from 0 to `last` and then from 0 again; returns the count before. What
// this thread and those it has synchronised with wrote comes before it, what they read after it.
DEVICE u32 atomic_count(u32* count, u32 last) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(count)), "r"(last)
               : "memory");
  return before;
}

}  // namespace ptx
