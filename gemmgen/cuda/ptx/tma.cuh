// The bulk tensor copy engine (TMA).
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// prefetch.tensormap, PTX 8.0, sm_90
DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<u64>(&map)) : "memory");
}

// cp.async.bulk.tensor.2d, global to shared, PTX 8.0, sm_90
DEVICE void tma_load_2d(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(inner), "r"(outer), "r"(bar)
      : "memory");
}

// cp.async.bulk.prefetch.tensor.2d, PTX 8.0, sm_90: from device memory to L2.
DEVICE void tma_to_l2(const TensorMap& map, u32 inner, u32 outer) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(reinterpret_cast<u64>(&map)), "r"(inner),
               "r"(outer)
               : "memory");
}

// cp.async.bulk.prefetch.tensor.3d, PTX 8.0, sm_90
DEVICE void tma_to_l2(const TensorMap& map, u32 c0, u32 c1, u32 c2) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(reinterpret_cast<u64>(&map)),
               "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

// createpolicy.fractional, PTX 7.4, sm_80: lines that L2 drops before others.
DEVICE u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same with a policy of L2 for what is read, PTX 8.0, sm_90
DEVICE void tma_load_2d(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(inner), "r"(outer), "r"(bar), "l"(policy)
      : "memory");
}

// The same for a CTA that is in no cluster, PTX 8.6, sm_90. On sm_120 the form above becomes a call, this one does not.
DEVICE void tma_load_2d_own(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(inner), "r"(outer), "r"(bar)
      : "memory");
}

// cp.async.bulk.tensor.2d of a CTA pair, PTX 8.6, sm_100a: into this CTA, bytes counted at a barrier of either one.
DEVICE void tma_load_2d_pair(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(inner), "r"(outer), "r"(bar)
      : "memory");
}

// cp.async.bulk.tensor.2d with multicast, PTX 8.0, sm_90: to the same offset in every CTA of `ctas` (one bit each).
DEVICE void tma_load_2d_multicast(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 bar, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(inner), "r"(outer), "r"(bar), "h"(ctas)
      : "memory");
}

// cp.async.bulk.tensor.3d, global to shared, PTX 8.0, sm_90
DEVICE void tma_load_3d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(bar)
      : "memory");
}

// The same with a policy of L2 for what is read.
DEVICE void tma_load_3d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "l"(policy)
      : "memory");
}

// The same into a CTA that is in no cluster, PTX 8.6, sm_90
DEVICE void tma_load_3d_own(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(bar)
      : "memory");
}

// The same with a barrier that may lie in the pair's other CTA, PTX 8.6, sm_100a
DEVICE void tma_load_3d_pair(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(bar)
      : "memory");
}

// The same into every CTA of the cluster in `ctas`.
DEVICE void tma_load_3d_multicast(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 bar, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "h"(ctas)
      : "memory");
}

// cp.async.bulk.tensor.4d, global to shared, PTX 8.0, sm_90
DEVICE void tma_load_4d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
          to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar)
      : "memory");
}

// The same with a policy of L2 for what is read, PTX 8.0, sm_90
DEVICE void tma_load_4d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "l"(policy)
      : "memory");
}

// The same for a CTA that is in no cluster, PTX 8.6, sm_90.
DEVICE void tma_load_4d_own(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar)
      : "memory");
}

// cp.async.bulk.tensor.4d of a CTA pair, PTX 8.6, sm_100a
DEVICE void tma_load_4d_pair(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar)
      : "memory");
}

// cp.async.bulk.tensor.4d with multicast, PTX 8.0, sm_90
DEVICE void tma_load_4d_multicast(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 bar, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "h"(ctas)
      : "memory");
}

// cp.async.bulk.tensor.5d, global to shared, PTX 8.0, sm_90
DEVICE void tma_load_5d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 c4, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar)
      : "memory");
}

// The same with a policy of L2 for what is read.
DEVICE void tma_load_5d(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 c4, u32 bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar), "l"(policy)
      : "memory");
}

// The same into a CTA that is in no cluster, PTX 8.6, sm_90
DEVICE void tma_load_5d_own(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 c4, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cta.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar)
      : "memory");
}

// The same with a barrier that may lie in the pair's other CTA, PTX 8.6, sm_100a
DEVICE void tma_load_5d_pair(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 c4, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.5d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar)
      : "memory");
}

// The same into every CTA of the cluster in `ctas`.
DEVICE void tma_load_5d_multicast(u32 to, const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 c3, u32 c4, u32 bar, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(reinterpret_cast<u64>(&map)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar), "h"(ctas)
      : "memory");
}

// cp.async.bulk.tensor.2d, shared to global, PTX 8.0, sm_90
DEVICE void tma_store_2d(const TensorMap& map, u32 inner, u32 outer, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   reinterpret_cast<u64>(&map)),
               "r"(inner), "r"(outer), "r"(from)
               : "memory");
}

// cp.async.bulk.tensor.3d, shared to global, PTX 8.0, sm_90
DEVICE void tma_store_3d(const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
                   reinterpret_cast<u64>(&map)),
               "r"(c0), "r"(c1), "r"(c2), "r"(from)
               : "memory");
}

// cp.reduce.async.bulk.tensor.2d, shared to global, PTX 8.0, sm_90: memory adds what is written to what it holds.
DEVICE void tma_add_2d(const TensorMap& map, u32 inner, u32 outer, u32 from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   reinterpret_cast<u64>(&map)),
               "r"(inner), "r"(outer), "r"(from)
               : "memory");
}

// cp.reduce.async.bulk.tensor.3d, shared to global, PTX 8.0, sm_90
DEVICE void tma_add_3d(const TensorMap& map, u32 c0, u32 c1, u32 c2, u32 from) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
                   reinterpret_cast<u64>(&map)),
               "r"(c0), "r"(c1), "r"(c2), "r"(from)
               : "memory");
}

// cp.async.bulk.commit_group, PTX 8.0, sm_90
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read, PTX 8.0, sm_90: at most PENDING of this thread's groups still read shared memory.
template <u32 PENDING>
DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
