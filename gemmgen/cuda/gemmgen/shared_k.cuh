// Two warpgroups that have the same rows of a tile and each a part of its K: the first adds up what both have.
#pragma once
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Sums meet OFFSET bytes into dynamic shared memory, 16 bytes a lane at a time. Two barriers of the CTA are theirs. One
// warpgroup arrives and the other waits: synccheck does not want both to wait in code of their own.
template <u32 OFFSET>
class SharedK {
  enum : u32 { THREADS = 128 };  // of a warpgroup
  enum : u32 { WRITTEN = 1, READ = 2 };
  u32 share_;
  bool taken_ = false;  // whether the sums of another tile may still be read there

  DEVICE static void arrive(u32 barrier) { ptx::arrive_threads(barrier, 2 * THREADS); }
  DEVICE static void wait(u32 barrier) { ptx::sync_threads(barrier, 2 * THREADS); }

  template <class Registers>
  DEVICE static void write(u32& to, const Registers& from) {
    const float* x = reinterpret_cast<const float*>(&from);
#pragma unroll
    for (u32 i = 0; i < sizeof(Registers) / 4; i += 4, to += THREADS * 16)
      ptx::store_shared_words(to, __float_as_uint(x[i]), __float_as_uint(x[i + 1]), __float_as_uint(x[i + 2]),
                              __float_as_uint(x[i + 3]));
  }
  template <class Registers>
  DEVICE static void add(u32& from, Registers& to) {
    float* x = reinterpret_cast<float*>(&to);
#pragma unroll
    for (u32 i = 0; i < sizeof(Registers) / 4; i += 4, from += THREADS * 16) {
      u32 y[4];
      ptx::load_shared_words(from, y[0], y[1], y[2], y[3]);
#pragma unroll
      for (u32 j = 0; j < 4; ++j) x[i + j] += __uint_as_float(y[j]);
    }
  }

 public:
  DEVICE explicit SharedK(u32 share) : share_(share) {}

  // All warps of both come here with their sums of a tile; those that end up with whole ones are told so.
  template <class... Sums>
  DEVICE bool meet(Sums&... sums) {
    u32 at = ptx::smem_base() + OFFSET + (ptx::warp_index() % 4 * 32 + ptx::lane_index()) * 16;
    const bool again = taken_;
    taken_ = true;
    if (share_ > 0) {
      if (again) wait(READ);
      (write(at, sums), ...);
      arrive(WRITTEN);
      return false;
    }
    if (again) arrive(READ);
    wait(WRITTEN);
    (add(at, sums), ...);
    return true;
  }
};

}  // namespace gemmgen
