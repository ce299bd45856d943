// tcgen05: the fifth-generation tensor core of datacenter Blackwell and its tensor memory (PTX 8.6, sm_100a).
// CTAS is the cta_group: 1, or 2 for a pair of CTAs that share a product.
#pragma once
#include "ptx/pin.cuh"
#include "ptx/types.cuh"

namespace ptx {

// tcgen05.alloc: COLUMNS of tensor memory (a power of two, 32 at least); the address is written to shared memory.
template <u32 CTAS, u32 COLUMNS>
DEVICE void tmem_allocate(u32 to) {
  asm volatile("tcgen05.alloc.cta_group::%1.sync.aligned.shared::cta.b32 [%0], %2;" ::"r"(to), "n"(CTAS), "n"(COLUMNS)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(CTAS) : "memory");
}

// tcgen05.dealloc: by the warp that allocated, after everybody is done.
template <u32 CTAS, u32 COLUMNS>
DEVICE void tmem_free(u32 address) {
  asm volatile("tcgen05.dealloc.cta_group::%1.sync.aligned.b32 %0, %2;" ::"r"(address), "n"(CTAS), "n"(COLUMNS)
               : "memory");
}

// tcgen05.fence::before_thread_sync: what this thread did comes before the arrival that follows.
DEVICE void tcgen05_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }

// tcgen05.fence::after_thread_sync: what others did before the barrier just waited for is visible.
DEVICE void tcgen05_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// tcgen05.commit: one arrival at the barrier once all products and copies this thread has issued have ended.
// For a pair, at the same offset in both CTAs.
template <u32 CTAS>
DEVICE void tcgen05_commit(u32 bar) {
  if constexpr (CTAS == 1)
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
  else
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(bar),
        "h"(u16(3))
        : "memory");
}

// tcgen05.cp 32x128b.warpx4: 32 rows of 16 bytes, to four columns of each of the four lane quadrants.
template <u32 CTAS>
DEVICE void tmem_copy_scales(u32 to, u64 from) {
  asm volatile("tcgen05.cp.cta_group::%2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from), "n"(CTAS) : "memory");
}

// tcgen05.wait::ld
DEVICE void tmem_wait_load() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

// Shared-memory descriptor, PTX ISA "tcgen05 matrix descriptor": start address, leading and stride byte offsets in
// units of 16 bytes, version 1, and the smem_swizzle: 2 for 128 bytes, 0 for none.
DEVICE u64 tcgen05_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes, u32 smem_swizzle) {
  return u64(address >> 4) | u64(leading_bytes >> 4) << 16 | u64(stride_bytes >> 4) << 32 | u64(1) << 46 |
         u64(smem_swizzle) << 61;
}

// tcgen05.mma: d[m x n] in tensor memory (+)= a * b; `accumulate` 0 overwrites d. a and b are shared-memory
// descriptors, `shape` is the instruction descriptor.

// kind::f16: bf16 or fp16 operands.
template <u32 CTAS>
DEVICE void tcgen05_mma_f16(u32 d, u64 a, u64 b, u32 shape, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(shape), "r"(accumulate), "n"(CTAS)
      : "memory");
}

// kind::tf32: tf32 operands.
template <u32 CTAS>
DEVICE void tcgen05_mma_tf32(u32 d, u64 a, u64 b, u32 shape, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::%5.kind::tf32 [%0], %1, %2, %3, p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(shape), "r"(accumulate), "n"(CTAS)
      : "memory");
}

// kind::mxf8f6f4: 8-, 6- and 4-bit operands in bytes, one scale per 32 of k, scales in tensor memory.
template <u32 CTAS>
DEVICE void tcgen05_mma_mxf8f6f4(u32 d, u64 a, u64 b, u32 shape, u32 sfa, u32 sfb, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::%7.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(shape), "r"(sfa), "r"(sfb), "r"(accumulate), "n"(CTAS)
      : "memory");
}

// kind::mxf4: packed e2m1, one UE8M0 scale per 32 of k, scales in tensor memory.
template <u32 CTAS>
DEVICE void tcgen05_mma_mxf4(u32 d, u64 a, u64 b, u32 shape, u32 sfa, u32 sfb, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::%7.kind::mxf4.block_scale.scale_vec::2X [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(shape), "r"(sfa), "r"(sfb), "r"(accumulate), "n"(CTAS)
      : "memory");
}

// kind::mxf4nvf4: packed e2m1, one UE4M3 scale per 16 of k, scales in tensor memory.
template <u32 CTAS>
DEVICE void tcgen05_mma_mxf4nvf4(u32 d, u64 a, u64 b, u32 shape, u32 sfa, u32 sfb, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::%7.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(shape), "r"(sfa), "r"(sfb), "r"(accumulate), "n"(CTAS)
      : "memory");
}

// tcgen05.ld 32x32b: COLUMNS columns of this lane's row, one register each, valid after tmem_wait_load.
template <u32 COLUMNS>
struct TmemLoad;

#define GEMMGEN_OUT_8(x, i)                                                                                        \
  "=f"(x[i]), "=f"(x[i + 1]), "=f"(x[i + 2]), "=f"(x[i + 3]), "=f"(x[i + 4]), "=f"(x[i + 5]), "=f"(x[i + 6]), \
      "=f"(x[i + 7])
#define GEMMGEN_OUT_16(x, i) GEMMGEN_OUT_8(x, i), GEMMGEN_OUT_8(x, i + 8)
#define GEMMGEN_OUT_32(x, i) GEMMGEN_OUT_16(x, i), GEMMGEN_OUT_16(x, i + 16)
#define GEMMGEN_OUT_64(x, i) GEMMGEN_OUT_32(x, i), GEMMGEN_OUT_32(x, i + 32)

#define GEMMGEN_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GEMMGEN_LIST_16 GEMMGEN_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GEMMGEN_LIST_32 GEMMGEN_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GEMMGEN_LIST_64 GEMMGEN_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define GEMMGEN_TMEM_LOAD(N, ADDRESS)                                                                          \
  template <>                                                                                                  \
  struct TmemLoad<N> {                                                                                         \
    DEVICE static void to(float (&x)[N], u32 from) {                                                           \
      asm volatile("tcgen05.ld.sync.aligned.32x32b.x" #N ".b32 {" GEMMGEN_LIST_##N "}, [%" ADDRESS "];"        \
                   : GEMMGEN_OUT_##N(x, 0)                                                                     \
                   : "r"(from));                                                                               \
    }                                                                                                          \
  };

GEMMGEN_TMEM_LOAD(8, "8")
GEMMGEN_TMEM_LOAD(16, "16")
GEMMGEN_TMEM_LOAD(32, "32")
GEMMGEN_TMEM_LOAD(64, "64")

#undef GEMMGEN_TMEM_LOAD

// In two instructions: a thread has no registers for twice as many operands.
template <>
struct TmemLoad<128> {
  DEVICE static void to(float (&x)[128], u32 from) {
    TmemLoad<64>::to(reinterpret_cast<float(&)[64]>(x[0]), from);
    TmemLoad<64>::to(reinterpret_cast<float(&)[64]>(x[64]), from + 64);
  }
};

}  // namespace ptx
