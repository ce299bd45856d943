// Values that the compiler must take as they are: results of instructions that end later than it thinks, and sums it
// would rather put together anew.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// No instruction: the compiler may move neither reads nor writes of these registers across this point.
template <u32 COUNT>
DEVICE void pin(float (&d)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <u32 COUNT>
DEVICE void pin(u32 (&x)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// No instruction: the compiler forgets what the value is made of, and adds to it instead of to its parts.
DEVICE void pin(u64& x) { asm("" : "+l"(x)); }

// Likewise, and what is made of it is worked out behind this point, every time.
DEVICE void pin(u32& x) { asm volatile("" : "+r"(x)); }

}  // namespace ptx
