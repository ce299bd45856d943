// Results of instructions that end later than the compiler thinks.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// No instruction: the compiler may move neither reads nor writes of these registers across this point.
template <u32 COUNT>
DEVICE void pin(float (&d)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace ptx
