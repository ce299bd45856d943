// Fragments of mma.sync from operand tiles in shared memory. A fragment of 16 rows (or columns of the product) and 32
// bytes of k is four 8x8 matrices; which lanes address which of them depends on the operand.
#pragma once
#include "gemmgen/swizzle.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// The instruction's a takes the halves of its 16 rows first, then those of k; its b, k first: two fragments of 8 columns.
enum class Side { A, B };

// Which half of 16 rows and which of 32 bytes of k this lane addresses a row of.
template <Side SIDE>
struct Halves {
  static_assert(SIDE == Side::A || SIDE == Side::B);
  DEVICE static u32 row() { return SIDE == Side::A ? ptx::lane_index() / 8 % 2 : ptx::lane_index() / 16; }
  DEVICE static u32 k() { return SIDE == Side::A ? ptx::lane_index() / 16 : ptx::lane_index() / 8 % 2; }
};

// k contiguous, rows of ROW_BYTES under the smem_swizzle of that width. SPREAD: 4-bit elements that take a byte each.
template <Side SIDE, u32 ROW_BYTES, bool SPREAD = false>
class KMajorFragments {
  u32 lane_;  // where this lane's row starts in a tile, at the first step

 public:
  // `first` is the warp's first row of the tile.
  DEVICE explicit KMajorFragments(u32 first)
      : lane_(staged<ROW_BYTES>(first + ptx::lane_index() % 8 + Halves<SIDE>::row() * 8, Halves<SIDE>::k() * 16)) {}

  // The step'th 32 bytes of k. The smem_swizzle exchanges 16-byte chunks by row, so a step forward is an exclusive or,
  // and 16 rows further, where the pattern repeats, a sum.
  template <u32 BLOCKS>
  DEVICE void load(u32 (&x)[BLOCKS][4], u32 tile, u32 step) const {
    const u32 from = tile + lane_ ^ step * 32;
#pragma unroll
    for (u32 i = 0; i < BLOCKS; ++i) {
      if constexpr (SPREAD) {
        ptx::ldmatrix_4bit_x4(x[i], from + i * 16 * ROW_BYTES);
#pragma unroll
        for (u32 r = 0; r < 4; ++r) x[i][r] <<= 2;  // the product reads 4-bit elements in bits 2 to 5 of a byte
      } else {
        ptx::ldmatrix_x4(x[i], from + i * 16 * ROW_BYTES);
      }
    }
  }
};

// m (or n) contiguous, 16-bit elements: atoms of TILE_K rows of k, 64 elements wide, transposed on the way.
template <Side SIDE, u32 TILE_K>
class MnMajorFragments {
  u32 lane_;

 public:
  DEVICE explicit MnMajorFragments(u32 first)
      : lane_(first / 64 * TILE_K * 128 + staged<128>(ptx::lane_index() % 8 + Halves<SIDE>::k() * 8,
                                                      (first % 64 + Halves<SIDE>::row() * 8) * 2)) {}

  // Here a step of 16 rows of k is a sum, and 16 elements further an exclusive or, up to the next atom.
  template <u32 BLOCKS>
  DEVICE void load(u32 (&x)[BLOCKS][4], u32 tile, u32 step) const {
#pragma unroll
    for (u32 i = 0; i < BLOCKS; ++i)
      ptx::ldmatrix_trans_x4(x[i], (tile + lane_ ^ i % 4 * 32) + i / 4 * TILE_K * 128 + step * 16 * 128);
  }
};

}  // namespace gemmgen
