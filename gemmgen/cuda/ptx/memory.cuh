// Shared-memory loads and stores by 32-bit address, small asynchronous copies, the proxy fence.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// prefetch.global.L1: the line at an address, which may be gone again when it is read.
DEVICE void prefetch(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// prefetch.global.L2: likewise from device memory to L2.
DEVICE void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// ld.shared.f32
DEVICE float load_shared(u32 from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// ld.shared.v2.f32
DEVICE float2 load_shared_pair(u32 from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

// st.shared.v2.f32
DEVICE void store_shared(u32 to, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
}

// ld.shared.v4.f32
DEVICE float4 load_shared_quad(u32 from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from) : "memory");
  return x;
}

// st.shared.v4.f32
DEVICE void store_shared_quad(u32 to, const float* x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}

// st.async.v4, PTX 8.1, sm_90: four numbers to shared memory of a CTA of the cluster, 16 bytes counted at a barrier there.
DEVICE void store_async(u32 to, const float* x, u32 bar) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(bar)
      : "memory");
}

// ld.shared.v2.u32, st.shared.v2.u32
DEVICE void load_shared_word_pair(u32 from, u32& x0, u32& x1) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x0), "=r"(x1) : "r"(from) : "memory");
}
DEVICE void store_shared_word_pair(u32 to, u32 x0, u32 x1) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x0), "r"(x1) : "memory");
}

// ld.shared.u32, st.shared.u32, st.shared.v4
DEVICE u32 load_shared_word(u32 from) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
DEVICE void store_shared_word(u32 to, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
DEVICE void store_shared_byte(u32 to, u8 x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(u32(x)) : "memory");
}
DEVICE void store_shared_half(u32 to, u16 x) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory"); }
DEVICE void store_shared_words(u32 to, u32 x0, u32 x1, u32 x2, u32 x3) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
}

// stmatrix.x4, PTX 7.8, sm_90: four 8x8 matrices of 16-bit elements; lane l gives the row address of matrix l/8.
DEVICE void load_shared_words(u32 from, u32& x0, u32& x1, u32& x2, u32& x3) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3)
               : "r"(from)
               : "memory");
}
DEVICE void stmatrix_x4(u32 to, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r0), "r"(r1), "r"(r2),
               "r"(r3)
               : "memory");
}

// stmatrix.x2, PTX 7.8, sm_90
DEVICE void stmatrix_x2(u32 to, u32 r0, u32 r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(r0), "r"(r1) : "memory");
}

// cp.async.ca 4 bytes, PTX 7.0, sm_80
DEVICE void cp_async_4(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// st.shared::cluster.v4, PTX 7.8, sm_90: to an address that mapa gave.
DEVICE void store_cluster_words(u32 to, u32 x0, u32 x1, u32 x2, u32 x3) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
}

// fence.proxy.async.shared::cta, PTX 8.0, sm_90: what ordinary stores wrote, the copy engine may now read; what ordinary
// loads have read, it may overwrite.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// fence.proxy.async.shared::cluster, PTX 8.0, sm_90: the same of the shared memory of all CTAs of the cluster.
DEVICE void fence_proxy_async_cluster() { asm volatile("fence.proxy.async.shared::cluster;" ::: "memory"); }

// fence.acq_rel.cluster, PTX 7.8, sm_90: stores to other CTAs of the cluster come before what follows.
DEVICE void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

}  // namespace ptx
