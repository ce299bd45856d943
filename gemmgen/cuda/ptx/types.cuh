// Fixed-width names and the few language marks that every header needs. Works with NVRTC and nvcc alike.
#pragma once

#define DEVICE __device__ __forceinline__
#define GEMMGEN_KERNEL(THREADS, CTAS_PER_SM) __global__ __launch_bounds__(THREADS, CTAS_PER_SM)

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;

namespace ptx {

// What cuTensorMapEncodeTiled writes; the kernel only passes its address on.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// One bfloat16, and two neighbours in one register (the first in the low half).
struct bf16 {
  u16 bits;
};
struct bf16x2 {
  u32 bits;
};

// The same of the other types that an epilogue reads and writes.
struct f16 {
  u16 bits;
};
struct f16x2 {
  u32 bits;
};
struct e4m3 {
  u8 bits;
};
struct e4m3x2 {
  u16 bits;
};
struct e5m2 {
  u8 bits;
};
struct e5m2x2 {
  u16 bits;
};

}  // namespace ptx

using ptx::bf16;
using ptx::bf16x2;
using ptx::e4m3;
using ptx::e4m3x2;
using ptx::e5m2;
using ptx::e5m2x2;
using ptx::f16;
using ptx::f16x2;
