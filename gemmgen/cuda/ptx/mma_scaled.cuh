// mma.sync with block scales, PTX 8.7, sm_120a: as mma_sync.cuh, each element times the scale of its block of k.
// Selectors are all 0: scales are the low bytes of a register. Of A, lanes 4 g hold row g and lanes 4 g + 1 row g + 8;
// of B, lanes 4 g hold column g. The other lanes of a quad may hold the same.
#pragma once
#include "ptx/mma_sync.cuh"

namespace ptx {

#define GEMMGEN_MMA_SCALES "r"(sfa), "r"(sfb), "h"(u16(0))

// kind::mxf8f6f4 m16n8k32: 8-bit operands, or 4-bit ones in bits 2 to 5 of a byte; one UE8M0 scale.
#define GEMMGEN_MMA_MXF8F6F4(A, B)                                                                            \
  DEVICE void mma_mxf8f6f4_##A##_##B(float* d, const u32 (&a)[4], const u32* b, u32 sfa, u32 sfb) {           \
    asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32." #A "." #B           \
        ".f32.ue8m0 " GEMMGEN_MMA_TEXT ", {%10}, {%12, %12}, {%11}, {%12, %12};"                              \
        : GEMMGEN_MMA_SUMS                                                                                    \
        : GEMMGEN_MMA_FACTORS, GEMMGEN_MMA_SCALES);                                                           \
  }

GEMMGEN_MMA_MXF8F6F4(e4m3, e4m3)
GEMMGEN_MMA_MXF8F6F4(e4m3, e5m2)
GEMMGEN_MMA_MXF8F6F4(e4m3, e2m1)
GEMMGEN_MMA_MXF8F6F4(e5m2, e4m3)
GEMMGEN_MMA_MXF8F6F4(e5m2, e5m2)
GEMMGEN_MMA_MXF8F6F4(e5m2, e2m1)
GEMMGEN_MMA_MXF8F6F4(e2m1, e4m3)
GEMMGEN_MMA_MXF8F6F4(e2m1, e5m2)
GEMMGEN_MMA_MXF8F6F4(e2m1, e2m1)

#undef GEMMGEN_MMA_MXF8F6F4

// kind::mxf4nvf4 m16n8k64: packed e2m1; two UE8M0 scales of 32 each.
DEVICE void mma_mxf4nvf4_2x(float* d, const u32 (&a)[4], const u32* b, u32 sfa, u32 sfb) {
  asm("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0 "  //
      GEMMGEN_MMA_TEXT ", {%10}, {%12, %12}, {%11}, {%12, %12};"
      : GEMMGEN_MMA_SUMS
      : GEMMGEN_MMA_FACTORS, GEMMGEN_MMA_SCALES);
}

// kind::mxf4nvf4 m16n8k64: packed e2m1; four UE4M3 scales of 16 each.
DEVICE void mma_mxf4nvf4_4x(float* d, const u32 (&a)[4], const u32* b, u32 sfa, u32 sfb) {
  asm("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "  //
      GEMMGEN_MMA_TEXT ", {%10}, {%12, %12}, {%11}, {%12, %12};"
      : GEMMGEN_MMA_SUMS
      : GEMMGEN_MMA_FACTORS, GEMMGEN_MMA_SCALES);
}

// prmt: two bytes of a word, in its two low bytes.
DEVICE u32 two_bytes(u32 word, u32 low, u32 high) { return __byte_perm(word, 0, low | high << 4); }

// prmt: a word whose bytes behind `last` repeat that one.
DEVICE u32 bytes_up_to(u32 word, u32 last) {
  const u32 second = last < 1 ? last : 1, third = last < 2 ? last : 2, fourth = last < 3 ? last : 3;
  return __byte_perm(word, 0, second << 4 | third << 8 | fourth << 12);
}

}  // namespace ptx
