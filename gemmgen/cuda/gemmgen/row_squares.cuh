// Sums of squares of A's rows, in the registers of the lanes that hold its fragments: 16 rows a warp.
#pragma once
#include "ptx/special.cuh"

namespace gemmgen {

// Registers 0 and 2 of a fragment hold elements of row l / 4 of the 16, 1 and 3 of the row 8 further.
template <u32 STEPS>
DEVICE void add_squares(float (&squares)[4], const u32 (&a)[STEPS][4]) {
#pragma unroll
  for (u32 step = 0; step < STEPS; ++step)
#pragma unroll
    for (u32 r = 0; r < 4; ++r) squares[r] = fmaf(__uint_as_float(a[step][r]), __uint_as_float(a[step][r]), squares[r]);
}

// The four lanes of a row add up what each has of it; one writes the sums of those rows, from m, that the matrix has.
DEVICE void store_squares(float* to, const float (&squares)[4], u32 m, u32 rows) {
  float low = squares[0] + squares[2], high = squares[1] + squares[3];
  low += ptx::exchange<1>(low), high += ptx::exchange<1>(high);
  low += ptx::exchange<2>(low), high += ptx::exchange<2>(high);
  const u32 row = m + ptx::lane_index() / 4;
  if (ptx::lane_index() % 4) return;
  if (row < rows) to[row] = low;
  if (row + 8 < rows) to[row + 8] = high;
}

}  // namespace gemmgen
