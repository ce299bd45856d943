// Schedules of groups of k: each has an output of its own, of the same tiles, and a range of k that is read from memory.
#pragma once
#include "gemmgen/groups.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/control.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"

namespace gemmgen {

// A group has as much of k as is counted, from where the one before it ended, rounded up to a multiple of ALIGNMENT.
template <u32 ALIGNMENT>
struct KCounts {
  DEVICE static Span span(i32 found, Span before, u32 k) {
    const u32 begin = GroupEnds<ALIGNMENT>::begin(before.end, k);
    return {begin, begin + at_most(found, k - begin)};
  }
};

// Likewise of groups that have whole blocks of BLOCK each, one directly behind the other; what is counted beyond is dropped.
template <u32 BLOCK>
struct KBlocks {
  DEVICE static Span span(i32 found, Span before, u32 k) {
    return {before.end, before.end + at_most(found, k - before.end) / BLOCK * BLOCK};
  }
};

// Tiles of all groups' outputs, one group behind the other, a grid's stride apart. R is the raster of an output. A group
// without any of k has tiles like the others: what is stored there is what the epilogue makes of 0. Every group's scales begin
// with a new word, of WORD elements of k. What is known of the next group is read with the present one, so that nobody waits
// for it.
template <class Layout, class R, u32 WORD = 1>
class KGroups {
  const i32* layout_;
  u32 rows_, k_, groups_;
  u32 group_ = 0, index_;  // index_ counts the group's units
  i32 ahead_ = 0;          // what the layout says of the next group
  Span span_ = {0, 0};
  u32 words_ = 0;
  R raster_;

  // Of an output, in whole clusters.
  DEVICE u32 tile_rows() const { return ceil_div(rows_, R::ROWS) * (R::ROWS / R::TILE_ROWS); }
  DEVICE void open() {
    span_ = Layout::span(ahead_, span_, k_);
    if (group_ + 1 < groups_) ahead_ = layout_[group_ + 1];
  }
  DEVICE void place() {
    for (; valid() && index_ >= raster_.units(); index_ -= raster_.units()) {
      words_ += ceil_div(span_.count(), WORD);
      if (++group_ < groups_) open();
    }
    if (valid()) raster_.place(index_);
  }

 public:
  DEVICE KGroups(u32 m, u32 n, u32 k, u32 groups, const i32* layout)
      : layout_(layout), rows_(m), k_(k), groups_(groups), index_(ptx::cta_index() / R::CLUSTER), raster_(m, n) {
    if (!valid()) return;
    ahead_ = layout_[0];
    open();
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
  // Which row of tiles this one is in, among those of all groups.
  DEVICE u32 tile_row() const { return group_ * tile_rows() + raster_.m() / R::TILE_ROWS; }
  // The place of the tile's `warp` among WARPS along m, counted in whole clusters: every group has as many.
  template <u32 WARPS>
  DEVICE Share share(u32 warp) const {
    const u32 warps = tile_rows() * WARPS;
    return {group_, group_ * warps, warps, raster_.m() / R::TILE_ROWS * WARPS + warp};
  }
  // The row behind the output's last.
  DEVICE u32 rows() const { return rows_; }
  // Where the group's k begins, and how much it has.
  DEVICE u32 k() const { return span_.begin; }
  DEVICE u32 k_count() const { return span_.count(); }
  // Its first word of scales.
  DEVICE u32 words() const { return words_; }
};

// Brings 16 rows of a matrix that an epilogue adds, from row m and COLS columns from n, to L2 while products run: of every
// group's own there is nothing there yet. By a warp.
template <u32 COLS, class T>
DEVICE void rows_ahead(const T* from, u64 stride, u32 m, u32 n, u32 rows, u32 cols) {
  constexpr u32 LINE = 128 / sizeof(T), LINES = (COLS + LINE - 1) / LINE;
#pragma unroll 1
  for (u32 i = 0; i < (LINES + 1) / 2; ++i) {
    const u32 at = i * 32 + ptx::lane_index(), row = m + at / LINES % 16, col = n + at % LINES * LINE;
    if (row < rows && col < cols) ptx::prefetch_to_l2(from + row * stride + col);
  }
}

// Rows [from, to) of k become 0 in a slot of the operands' PLACES, in which boxes have a row for each of k: they are of the
// next group, or nobody's, and may hold NaN. `thread` of THREADS; `store` writes 16 bytes of zeros.
template <u32 THREADS, class... PLACES, class Store>
DEVICE void clear_k(u32 slot, u32 from, u32 to, u32 thread, const Store& store) {
  const auto clear = [&](u32 place, u32 boxes, u32 box_bytes, u32 row_bytes) {
#pragma unroll 1
    for (u32 box = 0; box < boxes; ++box)
#pragma unroll 1
      for (u32 byte = from * row_bytes + thread * 16; byte < to * row_bytes; byte += THREADS * 16)
        store(place + box * box_bytes + byte);
  };
  (clear(PLACES::address(slot), PLACES::COUNT, PLACES::BOX_BYTES, PLACES::ROW_BYTES), ...);
}

// By the warps that multiply, THREADS threads; products of all may follow.
template <u32 THREADS, class... PLACES>
DEVICE void clear_k_by_all(u32 slot, u32 from, u32 to, u32 thread) {
  clear_k<THREADS, PLACES...>(slot, from, to, thread, [](u32 to) { ptx::store_shared_words(to, 0, 0, 0, 0); });
  ptx::fence_proxy_async();
  ptx::sync_threads(1, THREADS);
}

// Likewise in PLACES of rows of ROW_BYTES of k, an element a byte.
template <u32 THREADS, u32 ROW_BYTES, class... PLACES>
DEVICE void clear_k_of_rows_by_all(u32 slot, u32 from, u32 to, u32 thread) {
  const auto clear = [&](u32 place, u32 rows) {
#pragma unroll 1
    for (u32 row = thread; row < rows; row += THREADS)
#pragma unroll 1
      for (u32 byte = from; byte < to; ++byte) ptx::store_shared_byte(place + staged<ROW_BYTES>(row, byte), 0);
  };
  (clear(PLACES::address(slot), PLACES::LINES), ...);
  ptx::fence_proxy_async();
  ptx::sync_threads(1, THREADS);
}

// By the warp that issues the products of CTAS CTAs, in all of them; its lane may issue them.
template <u32 CTAS, class... PLACES>
DEVICE void clear_k_by_warp(u32 slot, u32 from, u32 to) {
  if constexpr (CTAS == 1) {
    clear_k<32, PLACES...>(slot, from, to, ptx::lane_index(), [](u32 to) { ptx::store_shared_words(to, 0, 0, 0, 0); });
    ptx::fence_proxy_async();
  } else {
    for (u32 cta = 0; cta < CTAS; ++cta)
      clear_k<32, PLACES...>(slot, from, to, ptx::lane_index(),
                             [&](u32 to) { ptx::store_cluster_words(ptx::map_to_cta(to, cta), 0, 0, 0, 0); });
    ptx::fence_cluster();
    ptx::fence_proxy_async_cluster();
  }
  ptx::sync_warp();
}

}  // namespace gemmgen
