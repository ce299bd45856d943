// Operand tiles in shared memory as tcgen05 reads them: atoms 128 bytes wide under the 128-byte smem_swizzle.
#pragma once
#include "ptx/pin.cuh"
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// The matrix descriptors of all slots of a ring's PLACE: the first one's, and what others add to it.
template <class PLACE>
class UmmaSlots {
  u64 first_;

 public:
  DEVICE UmmaSlots(u32 leading_bytes, u32 stride_bytes, u32 smem_swizzle)
      : first_(ptx::tcgen05_descriptor(PLACE::address(0), leading_bytes, stride_bytes, smem_swizzle)) {
    ptx::pin(first_);
  }
  DEVICE u64 at(u32 slot, u32 bytes) const { return first_ + slot * u64(PLACE::SLOT_BYTES / 16) + bytes / 16; }
};

// k contiguous: 8-row groups are 1024 bytes apart; a step of the product is 32 bytes of k, four an atom. Inside one the hardware
// applies the smem_swizzle to the sum of start address and advance.
template <class PLACE>
struct UmmaKMajor {
  const UmmaSlots<PLACE> slots{0, 1024, 2};
  DEVICE u64 at(u32 slot, u32 step) const { return slots.at(slot, step / 4 * PLACE::BOX_BYTES + step % 4 * 32); }
};

// m (or n) contiguous: atoms of K rows of k are K * 128 bytes apart, 8-k groups 1024 bytes. STEP rows of k a product.
template <class PLACE, u32 K, u32 STEP>
struct UmmaMnMajor {
  const UmmaSlots<PLACE> slots{K * 128, 1024, 2};
  DEVICE u64 at(u32 slot, u32 step) const { return slots.at(slot, step * STEP * 128); }
};

}  // namespace gemmgen
