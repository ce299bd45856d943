// ldmatrix: a warp loads four 8x8 matrices from shared memory; lane l gives the row address of matrix l / 8.
#pragma once
#include "ptx/types.cuh"

namespace ptx {

// ldmatrix.m8n8.x4.b16, PTX 6.5, sm_75: lane l has bytes 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 of each matrix.
DEVICE void ldmatrix_x4(u32 (&x)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

// ldmatrix.m8n8.x4.trans.b16, PTX 6.5, sm_75: likewise of the transposed matrices of 16-bit elements.
DEVICE void ldmatrix_trans_x4(u32 (&x)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

// ldmatrix.m8n16.x4.b8x16.b4x16_p64, PTX 8.6, sm_120a: rows of 16 4-bit elements in 8 bytes and 8 of padding; each
// element becomes the low half of a byte.
DEVICE void ldmatrix_4bit_x4(u32 (&x)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

}  // namespace ptx
