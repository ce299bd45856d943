// mma.sync: a warp multiplies fragments in registers, d[16 x 8] += a[16 x k] * b[k x 8], 32 bytes of k a row.
// Lane l holds d rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

#define GEMMGEN_MMA_TEXT "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}"
#define GEMMGEN_MMA_SUMS "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define GEMMGEN_MMA_FACTORS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])

// m16n8k16 bf16, PTX 7.0, sm_80
DEVICE void mma_bf16(float* d, const u32 (&a)[4], const u32* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " GEMMGEN_MMA_TEXT ";"
      : GEMMGEN_MMA_SUMS
      : GEMMGEN_MMA_FACTORS);
}

// m16n8k8 tf32, PTX 7.0, sm_80: fp32 numbers, of which the low 13 bits do not count
DEVICE void mma_tf32(float* d, const u32 (&a)[4], const u32* b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " GEMMGEN_MMA_TEXT ";"
      : GEMMGEN_MMA_SUMS
      : GEMMGEN_MMA_FACTORS);
}

// m16n8k32 e4m3, PTX 8.4, sm_89
DEVICE void mma_e4m3(float* d, const u32 (&a)[4], const u32* b) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 " GEMMGEN_MMA_TEXT ";"
      : GEMMGEN_MMA_SUMS
      : GEMMGEN_MMA_FACTORS);
}

}  // namespace ptx
