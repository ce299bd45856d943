// Operand tiles in shared memory: atoms 128 bytes wide, and the matrix descriptors that address them.
#pragma once
#include "ptx/wgmma.cuh"

namespace gemmgen {

// k contiguous: each atom holds ROWS rows of 128 bytes of k.
template <u32 ROWS>
struct KMajor {
  static constexpr u32 TRANSPOSE = 0;
  // The tile at `address` from a row on, a multiple of 8: 8-row groups are 1024 bytes apart.
  DEVICE static u64 descriptor(u32 address, u32 row = 0) {
    return ptx::smem_descriptor(address + row * 128, 16, 1024);
  }
  // Advance to `row` and to the step'th 32 bytes of k. Inside an atom the hardware applies the smem_swizzle to the sum.
  DEVICE static u64 at(u64 tile, u32 row, u32 step) {
    return tile + (step / 4 * ROWS * 128 + row * 128 + step % 4 * 32) / 16;
  }
};

// m (or n) contiguous, 16-bit elements: each atom holds K rows of k, 64 elements of m wide. In a cluster an address has
// the CTA's rank in bits that no descriptor has room for.
template <u32 K, bool CLUSTERED = false>
struct MnMajor {
  static constexpr u32 TRANSPOSE = 1;
  // Atoms are K * 128 bytes apart along m, 8-k groups 1024 bytes apart.
  DEVICE static u64 descriptor(u32 address) {
    return ptx::smem_descriptor(CLUSTERED ? address & 0x3ffff : address, K * 128, 1024);
  }
  // Advance to `row` (a multiple of 64) and to the step'th 16 of k.
  DEVICE static u64 at(u64 tile, u32 row, u32 step) { return tile + (row / 64 * K * 128 + step * 16 * 128) / 16; }
};

}  // namespace gemmgen
