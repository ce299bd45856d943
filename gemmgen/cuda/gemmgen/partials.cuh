// K loops in which a product runs while sums of the one before it are scaled, across K blocks too.
#pragma once
#include "gemmgen/ring.cuh"

namespace gemmgen {

// As `rounds`, for blocks whose last product may end behind the first one of the next: `block` is also told whether it is
// the first and the last of those that nothing else is in flight around, a whole round or one block outside of them. A
// product in flight round a loop would make ptxas wait behind every one of the kernel's.
template <u32 SLOTS, class Block>
DEVICE void drained_rounds(Cursor<SLOTS>& at, u32 first, u32 last, const Block& block) {
  for (u32 kb = first; kb < last;) {
    if (at.slot == 0 && kb + SLOTS <= last) {
      do {
#pragma unroll
        for (u32 i = 0; i < SLOTS; ++i) {
          at.slot = i;
          block(kb + i, i == 0, i + 1 == SLOTS, i + 1 < SLOTS || kb + SLOTS < last);
        }
        kb += SLOTS;
      } while (kb + SLOTS <= last);
    } else {
      block(kb, true, true, kb + 1 < last);
      ++kb;
    }
  }
}

}  // namespace gemmgen
