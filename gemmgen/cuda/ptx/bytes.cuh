// Bytes within words, and 16 bytes at a time.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// prmt.b32, PTX 2.0: byte i of the result is byte number `select >> 4 * i & 7` of y and x, those of x first.
DEVICE u32 permute_bytes(u32 x, u32 y, u32 select) { return __byte_perm(x, y, select); }

// ld.global.v4.u32 and st.global.v4.u32, at addresses that are multiples of 16
DEVICE uint4 load_16(const u8* from) { return *reinterpret_cast<const uint4*>(from); }
DEVICE void store_16(u8* to, uint4 x) { *reinterpret_cast<uint4*>(to) = x; }

// ld.shared.v4.u32
DEVICE uint4 load_shared_16(u32 from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

}  // namespace ptx
