// A prologue on workstation Blackwell: A's elements from ldmatrix in bf16, and on to the fragments of tf32 mma.sync.
#pragma once
#include "gemmgen/swizzle.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// A lane has two neighbours along k in a word, and a fragment two elements 4 of k apart. The order of k within a product
// is free, so they are one another's: the first becomes the one, the second the other, and b's lanes read pairs as well.
// `words` are those of 16 rows and 16 of k, of which `half` says which 8.
DEVICE void cast_fragment(u32 (&a)[1][4], const u32 (&words)[4], u32 half) {
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    a[0][r] = words[2 * half + r] << 16;
    a[0][r + 2] = words[2 * half + r] & 0xffff0000u;
  }
}

// b in fp32, k contiguous: atoms of ROWS rows of 128 bytes under the smem_swizzle of that width, side by side along k.
template <u32 ROWS>
class PairFragments {
  u32 lane_;  // where this lane's first pair lies in a tile

 public:
  // `first` is the warp's first row of the tile.
  DEVICE explicit PairFragments(u32 first)
      : lane_(staged<128>(first + ptx::lane_index() / 4, ptx::lane_index() % 4 * 8)) {}

  // The step'th 8 of k of blocks of 8 rows. A step forward is an exclusive or up to the next atom, 8 rows further a sum.
  template <u32 BLOCKS>
  DEVICE void load(u32 (&x)[BLOCKS][2], u32 tile, u32 step) const {
    const u32 from = (tile + step / 4 * ROWS * 128 + lane_) ^ step % 4 * 32;
#pragma unroll
    for (u32 i = 0; i < BLOCKS; ++i) {
      const float2 pair = ptx::load_shared_pair(from + i * 8 * 128);
      x[i][0] = __float_as_uint(pair.x), x[i][1] = __float_as_uint(pair.y);
    }
  }
};

}  // namespace gemmgen
