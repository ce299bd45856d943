// Where columns of a product lie in the output.
#pragma once
#include "ptx/types.cuh"

namespace gemmgen {

struct SideBySide {
  DEVICE static u32 column(u32 n) { return n; }
};

// Heads of LEFT + RIGHT columns with a gap of MID between the two, which is not written.
template <u32 LEFT, u32 MID, u32 RIGHT>
struct HeadSplit {
  DEVICE static u32 column(u32 n) { return n + (n + RIGHT) / (LEFT + RIGHT) * MID; }
};

}  // namespace gemmgen
