// Where columns of a product lie in the output, and whether what they hold is added to.
#pragma once
#include "ptx/types.cuh"

namespace gemmgen {

struct SideBySide {
  static constexpr bool ADDS = false;
  DEVICE static u32 column(u32 n) { return n; }
};

// Heads of LEFT + RIGHT columns with a gap of MID between the two, which is not written.
template <u32 LEFT, u32 MID, u32 RIGHT>
struct HeadSplit {
  static constexpr bool ADDS = false;
  DEVICE static u32 column(u32 n) { return n + (n + RIGHT) / (LEFT + RIGHT) * MID; }
};

// Columns that lie there already, which lanes add to.
template <class Columns>
struct Adding : Columns {
  static constexpr bool ADDS = true;
};

}  // namespace gemmgen
