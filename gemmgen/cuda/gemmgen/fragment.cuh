// Where a thread's wgmma accumulators lie in the 64 x N block: register 4j + 2h + e is row h * 8 + fragment_row(),
// column 8j + e + fragment_col().
#pragma once
#include "ptx/special.cuh"

namespace gemmgen {

// Sums of products side by side, as those of one product that is as wide as all of them.
template <u32 PRODUCTS, u32 REGS>
DEVICE float (&side_by_side(float (&acc)[PRODUCTS][REGS]))[PRODUCTS * REGS] {
  return reinterpret_cast<float (&)[PRODUCTS * REGS]>(acc);
}

DEVICE u32 fragment_row() { return ptx::warp_index() % 4 * 16 + ptx::lane_index() / 4; }
DEVICE u32 fragment_col() { return ptx::lane_index() % 4 * 2; }

}  // namespace gemmgen
