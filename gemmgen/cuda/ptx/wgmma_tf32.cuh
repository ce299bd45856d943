// wgmma on tf32 with its first factor in registers.
#pragma once
#include "ptx/wgmma.cuh"

namespace ptx {

// WgmmaTf32<N>: d[64 x N] += a * b, 8 of k. Lane l of the w'th warp holds a's rows 16 w + l / 4 and 8 further in a[0]
// and a[1] at k l % 4, in a[2] and a[3] 4 of k further; b is read from shared memory through a descriptor, k contiguous.
// Both are fp32 numbers, of which the low 13 bits do not count. a may change only when the product has ended.
template <u32 N>
struct WgmmaTf32;

// wgmma.mma_async.sync.aligned.m64nNk8.f32.tf32.tf32, PTX 8.0, sm_90a. A0, ... are the operand numbers after the N/2
// accumulators.
#define GEMMGEN_WGMMA_TF32(N, A0, A1, A2, A3, B, C)                                                                    \
  template <>                                                                                                          \
  struct WgmmaTf32<N> {                                                                                                \
    DEVICE static void from_registers(float (&d)[N / 2], const u32 (&a)[4], u64 b) {                                   \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" C ", 0;\n"                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" GEMMGEN_TEXT_##N "}, {%" A0 ", %" A1    \
                   ", %" A2 ", %" A3 "}, %" B ", p, 1, 1; }"                                                           \
                   : GEMMGEN_REGS_##N                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                                      \
    }                                                                                                                  \
  };

GEMMGEN_WGMMA_TF32(8, "4", "5", "6", "7", "8", "9")
GEMMGEN_WGMMA_TF32(16, "8", "9", "10", "11", "12", "13")
GEMMGEN_WGMMA_TF32(24, "12", "13", "14", "15", "16", "17")
GEMMGEN_WGMMA_TF32(32, "16", "17", "18", "19", "20", "21")
GEMMGEN_WGMMA_TF32(40, "20", "21", "22", "23", "24", "25")
GEMMGEN_WGMMA_TF32(48, "24", "25", "26", "27", "28", "29")
GEMMGEN_WGMMA_TF32(56, "28", "29", "30", "31", "32", "33")
GEMMGEN_WGMMA_TF32(64, "32", "33", "34", "35", "36", "37")

#undef GEMMGEN_WGMMA_TF32

}  // namespace ptx
