// Special registers: who am I, where is shared memory.
#pragma once
#include "ptx/types.cuh"

extern __shared__ __align__(1024) u8 gemmgen_shared[];

namespace ptx {

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 thread_count() { return blockDim.x; }
DEVICE u32 lane_index() { return threadIdx.x % 32; }
// The same in every lane, told to the compiler by a broadcast.
DEVICE u32 warp_index() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }
DEVICE u32 cta_index() { return blockIdx.x; }
DEVICE u32 cta_count() { return gridDim.x; }

// mov %cluster_ctarank, PTX 7.8, sm_90
DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// shfl.sync.bfly: what the lane beside this one has.
DEVICE float exchange_with_neighbour(float x) { return __shfl_xor_sync(0xffffffff, x, 1); }
DEVICE u32 exchange_with_neighbour(u32 x) { return __shfl_xor_sync(0xffffffff, x, 1); }

// shfl.sync.bfly: what the lane has whose index differs from this one's in the bits of MASK.
template <u32 MASK>
DEVICE float exchange(float x) {
  return __shfl_xor_sync(0xffffffff, x, MASK);
}

// shfl.sync.idx: what lane `place` of this lane's four has.
DEVICE float from_quad(float x, u32 place) { return __shfl_sync(0xffffffff, x, place, 4); }

// shfl.sync.idx: what one lane has.
DEVICE float from_lane(float x, u32 lane) { return __shfl_sync(0xffffffff, x, lane); }

// shfl.sync.idx, PTX 6.0, sm_30: the same, but not before what the text has before it.
DEVICE float from_lane_now(float x, u32 lane) {
  float y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lane) : "memory");
  return y;
}

// The same of two numbers in one word, widened in here, or the compiler would hold words of many shuffles beside the numbers.
DEVICE float2 pair_from_lane_now(bf16x2 x, u32 lane) {
  float2 y;
  asm volatile(
      "{ .reg .b32 t; shfl.sync.idx.b32 t, %2, %3, 31, 0xffffffff; shl.b32 %0, t, 16; and.b32 %1, t, 0xffff0000; }"
      : "=f"(y.x), "=f"(y.y)
      : "r"(x.bits), "r"(lane)
      : "memory");
  return y;
}

// shfl.sync.idx: what lane 0 has.
DEVICE u32 first_lanes(u32 x) { return __shfl_sync(0xffffffff, x, 0); }

// vote.sync.ballot, PTX 6.0, sm_30: a bit for every lane, popc and clz of them: how many are set, and the place of the highest.
DEVICE u32 lanes_where(bool x) { return __ballot_sync(0xffffffff, x); }
DEVICE u32 count_bits(u32 x) { return __popc(x); }
DEVICE u32 highest_bit(u32 x) { return 31 - __clz(x); }

// redux.sync.max.u32, PTX 7.0, sm_80: the largest of what the lanes have.
DEVICE u32 largest_of_warp(u32 x) { return __reduce_max_sync(0xffffffff, x); }

// redux.sync.add.u32, PTX 7.0, sm_80: the sum of what the lanes have.
DEVICE u32 sum_of_warp(u32 x) { return __reduce_add_sync(0xffffffff, x); }

// Dynamic shared memory as the 32-bit address that shared-memory instructions take.
DEVICE u32 smem_base() { return static_cast<u32>(__cvta_generic_to_shared(gemmgen_shared)); }

// elect.sync, PTX 8.0, sm_90: true in one lane of a converged warp.
DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(elected));
  return elected != 0;
}

}  // namespace ptx
