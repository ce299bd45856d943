// Tensor maps that a kernel edits in shared memory: their fields, the copy to global memory, the fences of their proxy.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// tensormap.replace.tile.global_address, PTX 8.3, sm_90a
DEVICE void replace_map_address(u32 map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map), "l"(address) : "memory");
}

// tensormap.replace.tile.global_dim, PTX 8.3, sm_90a: elements along dimension D, the innermost one being 0.
template <u32 D>
DEVICE void replace_map_extent(u32 map, u32 elements) {
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], %1, %2;" ::"r"(map), "n"(D), "r"(elements)
               : "memory");
}

// tensormap.replace.tile.global_stride, PTX 8.3, sm_90a: bytes between elements of dimension D + 1, a multiple of 16.
template <u32 D>
DEVICE void replace_map_pitch(u32 map, u64 bytes) {
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], %1, %2;" ::"r"(map), "n"(D), "l"(bytes)
               : "memory");
}

// tensormap.cp_fenceproxy, PTX 8.3, sm_90: the whole warp copies a map, edited before a warp synchronisation, to global
// memory and releases it; both addresses are multiples of 128.
DEVICE void publish_map(TensorMap* to, u32 map) {
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(
          __cvta_generic_to_global(to)),
      "r"(map)
      : "memory");
}

// fence.proxy.tensormap::generic.release, PTX 8.3, sm_90: releases maps that ordinary stores wrote to global memory.
DEVICE void release_maps() { asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); }

// fence.proxy.tensormap::generic.acquire, PTX 8.3, sm_90: copies that follow in this CTA see the map released last.
DEVICE void acquire_map(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

}  // namespace ptx
