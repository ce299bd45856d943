// Schedules of groups of k: each has an output of its own, of the same tiles, and a range of k that is read from memory.
#pragma once
#include "gemmgen/groups.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"

namespace gemmgen {

// A group has as much of k as is counted, from where the one before it ended, rounded up to a multiple of ALIGNMENT.
template <u32 ALIGNMENT>
struct KCounts {
  const i32* counts;
  u32 k;
  DEVICE Span next(u32 group, Span before) const {
    const u32 up = ceil_div(before.end, ALIGNMENT) * ALIGNMENT, begin = up < k ? up : k;
    return {begin, begin + at_most(counts[group], k - begin)};
  }
};

// Likewise of groups that have whole blocks of BLOCK each, one directly behind the other; what is counted beyond is dropped.
template <u32 BLOCK>
struct KBlocks {
  const i32* counts;
  u32 k;
  DEVICE Span next(u32 group, Span before) const {
    return {before.end, before.end + at_most(counts[group], k - before.end) / BLOCK * BLOCK};
  }
};

// Tiles of all groups' outputs, one group behind the other, a grid's stride apart. R is the raster of an output. A group
// without any of k has tiles like the others: what is stored there is what the epilogue makes of 0.
template <class Layout, class R>
class KGroups {
  Layout layout_;
  u32 rows_, groups_;
  u32 group_ = 0, index_;  // index_ counts the group's units
  Span span_ = {0, 0};
  R raster_;

  DEVICE void place() {
    for (; valid() && index_ >= raster_.units(); index_ -= raster_.units())
      if (++group_ < groups_) span_ = layout_.next(group_, span_);
    if (valid()) raster_.place(index_);
  }

 public:
  DEVICE KGroups(u32 m, u32 n, u32 k, u32 groups, const i32* layout)
      : layout_{layout, k}, rows_(m), groups_(groups), index_(ptx::cta_index() / R::CLUSTER), raster_(m, n) {
    if (valid()) span_ = layout_.next(0, span_);
    place();
  }
  DEVICE bool valid() const { return group_ < groups_; }
  DEVICE void advance() {
    index_ += ptx::cta_count() / R::CLUSTER;
    place();
  }
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 group() const { return group_; }
  // The row behind the output's last.
  DEVICE u32 rows() const { return rows_; }
  // Where the group's k begins, and how much it has.
  DEVICE u32 k() const { return span_.begin; }
  DEVICE u32 k_count() const { return span_.count(); }
};

// Rows of k from `row` on become 0 in a slot of the operands' PLACES, in which boxes have a row for each of k: they are of
// the next group, or nobody's, and may hold NaN. By THREADS threads that read the slot; products of all may follow.
template <u32 THREADS, class... PLACES>
DEVICE void clear_rows(u32 slot, u32 row, u32 thread) {
  const auto clear = [&](u32 place, u32 boxes, u32 box_bytes, u32 row_bytes) {
#pragma unroll 1
    for (u32 box = 0; box < boxes; ++box)
#pragma unroll 1
      for (u32 byte = row * row_bytes + thread * 16; byte < box_bytes; byte += THREADS * 16)
        ptx::store_shared_words(place + box * box_bytes + byte, 0, 0, 0, 0);
  };
  (clear(PLACES::address(slot), PLACES::COUNT, PLACES::BOX_BYTES, PLACES::ROW_BYTES), ...);
  ptx::fence_proxy_async();
  ptx::sync_threads(1, THREADS);
}

}  // namespace gemmgen
