// How a warp's staged box of 16 rows, or more, goes to memory: whole, by the copy engine, or where other rows follow, row
// by row.
#pragma once
#include "gemmgen/swizzle.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// The copy engine clips boxes at the matrix's edge, and nothing else ends rows. With ADDS memory adds them to what it holds.
template <bool ADDS>
struct ClippedBoxes {
  enum : bool { BY_LANES = false };  // whether others than the lane that leads have to call
  // The box that lies at `from` goes to column `x` of `cols` and row `m` of `rows`. One lane `leads`: it talks to the copy
  // engine, always the same.
  template <u32 ROW_BYTES, u32 ROWS = 16, bool ENDS = true>
  DEVICE void store(const ptx::TensorMap& map, u32 x, u32 m, u32 rows, u32 cols, u32 from,
                    bool leads = ptx::lane_index() == 0) const {
    if (leads) {
      if constexpr (ADDS)
        ptx::tma_add_2d(map, x, m, from);
      else
        ptx::tma_store_2d(map, x, m, from);
      if constexpr (ENDS) ptx::bulk_commit();
    }
  }
};
using Clipped = ClippedBoxes<false>;
using Added = ClippedBoxes<true>;

// Every group has a matrix of its own, and nothing but its edge ends rows.
template <bool ADDS>
class GroupBoxes {
  u32 group_ = 0;

 public:
  enum : bool { BY_LANES = false };
  DEVICE void of(u32 group) { group_ = group; }

  template <u32 ROW_BYTES, u32 ROWS = 16, bool ENDS = true>
  DEVICE void store(const ptx::TensorMap& map, u32 x, u32 m, u32 rows, u32 cols, u32 from,
                    bool leads = ptx::lane_index() == 0) const {
    if (leads) {
      if constexpr (ADDS)
        ptx::tma_add_3d(map, x, m, group_, from);
      else
        ptx::tma_store_3d(map, x, m, group_, from);
      if constexpr (ENDS) ptx::bulk_commit();
    }
  }
};
using GroupClipped = GroupBoxes<false>;
using GroupAdded = GroupBoxes<true>;

// Lanes copy the first `bytes` of those of the box's ROWS rows that are above `rows`, 16 bytes at a time. `rows` is less than
// ROWS, so where a box has fewer pieces than a warp has lanes, those left over find no row. A row of the
// output begins at `to`, `pitch` bytes behind the one before.
template <u32 ROW_BYTES, u32 ROWS>
DEVICE void copy_rows(u8* to, u64 pitch, u32 rows, u32 bytes, u32 from) {
  constexpr u32 CHUNKS = ROW_BYTES / 16;
#pragma unroll
  for (u32 i = 0; i < (CHUNKS * ROWS + 31) / 32; ++i) {
    const u32 at = i * 32 + ptx::lane_index(), row = at / CHUNKS, byte = at % CHUNKS * 16;
    if (row >= rows || byte >= bytes) continue;
    uint4 x;
    ptx::load_shared_words(from + staged<ROW_BYTES>(row, byte), x.x, x.y, x.z, x.w);
    *reinterpret_cast<uint4*>(to + row * pitch + byte) = x;
  }
}

// Rows of groups that lie one behind the other: a box that the end of its group cuts may not touch what follows.
template <class T>
class NextRows {
  T* to_;
  u64 stride_;

 public:
  enum : bool { BY_LANES = true };
  DEVICE NextRows(T* to, u64 stride) : to_(to), stride_(stride) {}

  template <u32 ROW_BYTES, u32 ROWS = 16, bool ENDS = true>
  DEVICE void store(const ptx::TensorMap& map, u32 x, u32 m, u32 rows, u32 cols, u32 from,
                    bool leads = ptx::lane_index() == 0) const {
    if (m + ROWS > rows)
      copy_rows<ROW_BYTES, ROWS>(reinterpret_cast<u8*>(to_ + m * stride_ + x), stride_ * sizeof(T), rows - m, (cols - x) * sizeof(T), from);
    else if (leads)
      ptx::tma_store_2d(map, x, m, from);
    if (ENDS && leads) ptx::bulk_commit();  // an empty group, where lanes copied: buffers are counted by groups
  }
};

// Every group has a matrix of its own, of which rows past its last are not touched either.
template <class T>
class OwnRows {
  T* to_;
  u64 stride_, next_;
  u32 group_ = 0;

 public:
  enum : bool { BY_LANES = true };
  DEVICE OwnRows(T* to, u64 stride, u64 next) : to_(to), stride_(stride), next_(next) {}
  DEVICE void of(u32 group) { group_ = group; }

  template <u32 ROW_BYTES, u32 ROWS = 16, bool ENDS = true>
  DEVICE void store(const ptx::TensorMap& map, u32 x, u32 m, u32 rows, u32 cols, u32 from,
                    bool leads = ptx::lane_index() == 0) const {
    if (m + ROWS > rows)
      NextRows<T>(to_ + group_ * next_, stride_).template store<ROW_BYTES, ROWS, ENDS>(map, x, m, rows, cols, from, leads);
    else if (leads) {
      ptx::tma_store_3d(map, x, m, group_, from);
      if constexpr (ENDS) ptx::bulk_commit();
    }
  }
};

}  // namespace gemmgen
