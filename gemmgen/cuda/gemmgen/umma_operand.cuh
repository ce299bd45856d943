// Operand tiles in shared memory as tcgen05 reads them: atoms 128 bytes wide under the 128-byte smem_swizzle.
#pragma once
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// k contiguous: 8-row groups are 1024 bytes apart; a step of the product is 32 bytes of k. Inside an atom the hardware
// applies the smem_swizzle to the sum of start address and advance.
struct UmmaKMajor {
  DEVICE static u64 descriptor(u32 address) { return ptx::tcgen05_descriptor(address, 0, 1024, 2); }
  DEVICE static u64 at(u64 tile, u32 step) { return tile + step * 32 / 16; }
};

// m (or n) contiguous: atoms of K rows of k are K * 128 bytes apart, 8-k groups 1024 bytes. STEP rows of k a product.
template <u32 K, u32 STEP>
struct UmmaMnMajor {
  DEVICE static u64 descriptor(u32 address) { return ptx::tcgen05_descriptor(address, K * 128, 1024, 2); }
  DEVICE static u64 at(u64 tile, u32 step) { return tile + step * STEP * 128 / 16; }
};

}  // namespace gemmgen
