// Schedules of groups: which group a tile is of and where its rows end is read from memory, by every role alike.
#pragma once
#include "gemmgen/columns.cuh"
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Numbers in memory may be any: what is below 0 counts as 0, what is above `most` as `most`.
DEVICE u32 at_most(i32 x, u32 most) { return x < 0 ? 0 : u32(x) < most ? u32(x) : most; }

// First row of a group, and the one behind its last.
struct Span {
  u32 begin, end;
  DEVICE u32 count() const { return end - begin; }
};

// A group begins where the one before it ended, rounded up to a multiple of ALIGNMENT.
template <u32 ALIGNMENT>
struct GroupEnds {
  // Where a group may begin behind row `end`.
  DEVICE static u32 begin(u32 end, u32 rows) {
    const u32 up = ceil_div(end, ALIGNMENT) * ALIGNMENT;
    return up < rows ? up : rows;
  }
  DEVICE static Span span(i32 found, Span before, u32 rows) {
    const u32 begin = GroupEnds::begin(before.end, rows), end = at_most(found, rows);
    return {begin, end < begin ? begin : end};
  }
  // Units of UNIT rows that groups ahead may have, at most: the last of one and the first of the next may share rows of
  // a grid, so each group counts one more.
  template <u32 UNIT>
  DEVICE static u32 units_ahead(Span span, u32 group, u32) {
    return span.begin / UNIT + group;
  }
};

// A group has the first rows of its own matrix.
struct GroupCounts {
  DEVICE static Span span(i32 found, Span, u32 rows) { return {0, at_most(found, rows)}; }
  template <u32 UNIT>
  DEVICE static u32 units_ahead(Span, u32 group, u32 rows) {
    return group * ceil_div(rows, UNIT);
  }
};

// Tiles of all groups, one group behind the other, a grid's stride apart. R is the raster of a group's tiles. What is
// known of the next group is read with the present one, so that nobody waits for it.
template <class Layout, class R>
class RowGroups {
  const i32* layout_;
  u32 rows_, cols_, groups_;
  u32 group_ = 0, first_ = 0, index_;  // first_ is the group's first unit
  i32 ahead_ = 0;                      // what the layout says of the next group
  Span span_ = {0, 0};
  R raster_;

  DEVICE void open() {
    span_ = Layout::span(ahead_, span_, rows_);
    raster_ = R(span_.count(), cols_);
    if (group_ + 1 < groups_) ahead_ = layout_[group_ + 1];
  }
  DEVICE u32 tile_rows_ahead() const {
    return Layout::template units_ahead<R::ROWS>(span_, group_, rows_) * (R::ROWS / R::TILE_ROWS);
  }
  DEVICE void place() {
    while (group_ < groups_ && index_ - first_ >= raster_.units()) {
      first_ += raster_.units();
      if (++group_ < groups_) open();
    }
    if (valid()) raster_.place(index_ - first_);
  }

 public:
  DEVICE RowGroups(u32 m, u32 n, u32 groups, const i32* layout)
      : layout_(layout), rows_(m), cols_(n), groups_(groups), index_(ptx::cta_index() / R::CLUSTER), raster_(0, n) {
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
  DEVICE u32 m() const { return span_.begin + raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 group() const { return group_; }
  // Which row of tiles this one is in, among those of all groups.
  DEVICE u32 tile_row() const { return tile_rows_ahead() + raster_.m() / R::TILE_ROWS; }
  // The place of the tile's `warp` among WARPS along m, counted in whole clusters.
  template <u32 WARPS>
  DEVICE Share share(u32 warp) const {
    const u32 rows = ceil_div(span_.count(), R::ROWS) * (R::ROWS / R::TILE_ROWS);
    return {group_, tile_rows_ahead() * WARPS, rows * WARPS, raster_.m() / R::TILE_ROWS * WARPS + warp};
  }
  // The row behind the group's last.
  DEVICE u32 rows() const { return span_.end; }
  // Whether the group has no row from this one of the tile on.
  DEVICE bool idle(u32 row) const { return m() + row >= span_.end; }
  // Whether no tile below this one has rows of the group.
  DEVICE bool last(u32 tile_m) const { return m() + tile_m >= span_.end; }
  // The row where the next group may begin.
  DEVICE u32 next() const { return Layout::begin(span_.end, rows_); }

  // Calls `does` with every group that has no rows, and so no tiles; CTAs share them out. Whole warps ask.
  template <class F>
  DEVICE static void each_empty(u32 m, u32 groups, const i32* layout, const F& does) {
    Span span = {0, 0};
    for (u32 group = 0; group < groups; ++group) {
      span = Layout::span(layout[group], span, m);
      if (span.count() == 0 && group % ptx::cta_count() == ptx::cta_index()) does(group);
    }
  }
};

// Zeros in rows from `from` up to `to`, columns from n, at most COLS of `cols`; warps take rows in turn, or columns where
// those lie along m.
template <u32 COLS, bool ALONG_M = false, class Columns = SideBySide, class T>
DEVICE void clear_rows(T* out, u64 stride, u32 from, u32 to, u32 n, u32 cols, u32 warp, u32 warps) {
  const u32 end = n + COLS < cols ? n + COLS : cols;
  if constexpr (ALONG_M) {
    for (u32 col = n + warp; col < end; col += warps)
      for (u32 m = from + ptx::lane_index(); m < to; m += 32) out[col * stride + m] = {};
    return;
  }
  for (u32 m = from + warp; m < to; m += warps)
    for (u32 col = n + ptx::lane_index(); col < end; col += 32) out[m * stride + Columns::column(col)] = {};
}

// Where groups lie by row ids, for tiles whose rows need not divide ALIGNMENT, at whose multiples groups start. Neighbouring
// parts of ALIGNMENT rows, all of one group but for padding behind the last one's, are a run. Runs are found when the launch
// begins: a thread a part looks how many rows ids say it has, and leaves that at PLACE of shared memory; a warp makes runs of
// it, from the last to the first, and fills the table behind it from its end. There are MOST parts at most.
template <u32 PLACE, u32 MOST, u32 ALIGNMENT>
class Runs {
  static_assert(ALIGNMENT < 4096 && MOST <= 1024);
  // A part's word: its group, or NOBODY; OWNED times its rows; whether a run starts. A run's first word: its rows, and PART
  // times its first part; the second is its group.
  enum : u32 { NOBODY = (1 << 19) - 1, OWNED = 1 << 19, STARTS = 1u << 31, PART = 1 << 22 };

  DEVICE static u32 part_place(u32 part) { return ptx::smem_base() + PLACE + 4 * part; }
  DEVICE static u32 run_place(u32 run) { return ptx::smem_base() + PLACE + 4 * MOST + 8 * run; }
  DEVICE static u32 first_place() { return run_place(MOST); }

  DEVICE static u32 parts(u32 rows) { return ceil_div(rows, ALIGNMENT); }

  // How many of WIDTH rows are the group's, if the first one is and others come behind all that are: 16 at a time are asked,
  // then those between the last that is and the next.
  template <u32 WIDTH, class Id>
  DEVICE static u32 leading(u32 row, u32 group, const Id& id) {
    if constexpr (WIDTH == 1) {
      return 1;
    } else {
      constexpr u32 STEP = (WIDTH + 15) / 16;
      u32 steps = 0;
#pragma unroll
      for (u32 at = STEP; at < WIDTH; at += STEP) steps += id(row + at) == group;
      return steps * STEP + leading<STEP>(row + steps * STEP, group, id);
    }
  }

 public:
  struct Run {
    u32 begin, rows, group;
  };
  // The first run, and the one behind the last.
  DEVICE static u32 first() { return ptx::load_shared_word(first_place()); }
  DEVICE static constexpr u32 end() { return MOST; }
  DEVICE static Run run(u32 index) {
    u32 rows, group;
    ptx::load_shared_word_pair(run_place(index), rows, group);
    return {rows / PART * ALIGNMENT, rows % PART, group};
  }

  // All threads look, the first ones last: they may have barriers to make.
  DEVICE static void look(u32 rows, u32 groups, const i32* ids) {
    for (u32 part = ptx::thread_count() - 1 - ptx::thread_index(); part < parts(rows); part += ptx::thread_count()) {
      const u32 row = part * ALIGNMENT, end = row + ALIGNMENT < rows ? row + ALIGNMENT : rows;
      const auto id = [&](u32 at) {
        const u32 found = ids[at < end ? at : end - 1];  // no branch keeps the next one from being asked for
        return at < end ? found : ~0u;
      };
      const u32 group = id(row), last = id(row + ALIGNMENT - 1), before = row > 0 ? ids[row - 1] : ~0u;
      const bool owned = group < groups;
      const u32 count = owned && last != group ? leading<ALIGNMENT>(row, group, id) : ALIGNMENT;
      const u32 own = owned ? group + count * OWNED : NOBODY;
      ptx::store_shared_word(part_place(part), own | (before != group || !owned ? STARTS : 0));
    }
  }

  // A warp finds, behind a barrier.
  DEVICE static void find(u32 rows) {
    const u32 lane = ptx::lane_index();
    u32 first = MOST, behind = parts(rows);  // of what is found the first run, and its first part
    for (u32 end = parts(rows); end > 0; end = end > 32 ? end - 32 : 0) {
      const u32 part = end - 1 - lane;  // the highest lane has the first one
      const u32 word = lane < end ? ptx::load_shared_word(part_place(part)) : NOBODY, group = word & NOBODY;
      const u32 below = ~(~0u << lane), starts = ptx::lanes_where(word & STARTS), later = starts & below;
      const u32 next = later ? end - 1 - ptx::highest_bit(later) : behind;
      const bool starts_run = word & STARTS && group != NOBODY;
      const u32 runs = ptx::lanes_where(starts_run), run = first - 1 - ptx::count_bits(runs & below);
      if (starts_run) {
        const u32 rest = ptx::load_shared_word(part_place(next - 1)) % STARTS / OWNED;
        ptx::store_shared_word_pair(run_place(run), rest + (next - 1 - part) * ALIGNMENT + part * PART, group);
      }
      first -= ptx::count_bits(runs);
      if (starts) behind = end - 1 - ptx::highest_bit(starts);
    }
    if (lane == 0) ptx::store_shared_word(first_place(), first);
  }
};

// Tiles of all runs, one run behind the other, a grid's stride apart. R is the raster of a run's tiles.
template <class R, class Found>
class RunTiles {
  u32 cols_, index_, run_, first_ = 0;  // first_ is the run's first unit
  typename Found::Run of_ = {0, 0, 0};
  R raster_;

  DEVICE void open() {
    of_ = Found::run(run_);
    raster_ = R(of_.rows, cols_);
  }
  DEVICE void place() {
    while (valid() && index_ - first_ >= raster_.units()) {
      first_ += raster_.units();
      if (++run_ < Found::end()) open();
    }
    if (valid()) raster_.place(index_ - first_);
  }

 public:
  // As other schedules are made; rows, groups and ids have been looked at.
  DEVICE RunTiles(u32, u32 n, u32, const i32*)
      : cols_(n), index_(ptx::cta_index() / R::CLUSTER), run_(Found::first()), raster_(0, n) {
    if (!valid()) return;
    open();
    place();
  }
  // Before a CTA's roles ask where tiles are, all threads look, and a warp finds what they have seen.
  DEVICE static void look(u32 m, u32 groups, const i32* ids) { Found::look(m, groups, ids); }
  DEVICE static void find(u32 m) { Found::find(m); }
  DEVICE bool valid() const { return run_ < Found::end(); }
  DEVICE void advance() {
    index_ += ptx::cta_count() / R::CLUSTER;
    place();
  }
  DEVICE u32 m() const { return of_.begin + raster_.m(); }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 group() const { return of_.group; }
  // The row behind the run's last.
  DEVICE u32 rows() const { return of_.begin + of_.rows; }
};

// Tiles of rows that each say which group they are of; a tile is of its first row's, and nobody's without one. CTAs that
// multiply together have UNIT_M rows, and all are of the first one's. Ids are read a tile ahead: the next tile's group, and
// those of this tile's rows, which are asked for when it is stored.
template <class R, u32 TILE_M, u32 UNIT_M = TILE_M>
class RowIds {
  static constexpr u32 EACH = (TILE_M + 31) / 32;  // ids a lane
  R ahead_;  // where the next tile is
  u32 rows_, groups_;
  const i32* ids_;
  u32 index_, m_ = 0, n_ = 0, group_ = 0, group_ahead_ = 0;
  u32 ours_[EACH];

  DEVICE void look(u32 index) {
    if (index >= ahead_.units()) return;
    ahead_.place(index);
    const u32 first = UNIT_M == TILE_M ? ahead_.m() : ahead_.m() / UNIT_M * UNIT_M;
    group_ahead_ = ids_[first < rows_ ? first : rows_ - 1];
  }
  DEVICE void place() {
    for (; valid(); index_ += ptx::cta_count() / R::CLUSTER) {
      m_ = ahead_.m(), n_ = ahead_.n(), group_ = group_ahead_;
      look(index_ + ptx::cta_count() / R::CLUSTER);
      if (group_ >= groups_) continue;
#pragma unroll
      for (u32 i = 0; i < EACH; ++i) {
        const u32 row = m_ + 32 * i + ptx::lane_index();
        ours_[i] = ids_[row < rows_ ? row : rows_ - 1];
      }
      return;
    }
  }

 public:
  DEVICE RowIds(u32 m, u32 n, u32 groups, const i32* ids)
      : ahead_(m, n), rows_(m), groups_(groups), ids_(ids), index_(ptx::cta_index() / R::CLUSTER) {
    look(index_);
    place();
  }
  DEVICE bool valid() const { return index_ < ahead_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count() / R::CLUSTER;
    place();
  }
  DEVICE u32 m() const { return m_; }
  DEVICE u32 n() const { return n_; }
  DEVICE u32 group() const { return group_; }
  // Which row of tiles this one is in.
  DEVICE u32 tile_row() const { return m() / TILE_M; }
  // The place of the tile's `warp` among WARPS along m, counted in whole clusters. Groups need not lie in one piece, and
  // ids are all that says where they do; a whole warp asks.
  template <u32 WARPS>
  DEVICE Share share(u32 warp) const {
    constexpr u32 TILES = UNIT_M / TILE_M * WARPS;
    const u32 unit = m() / UNIT_M;
    u32 ahead = 0, own = 0, before = 0;
    for (u32 i = ptx::lane_index(); i * UNIT_M < rows_; i += 32) {
      const u32 group = ids_[i * UNIT_M];
      ahead += group < group_;
      own += group == group_;
      before += group == group_ && i < unit;
    }
    const u32 part = m() % UNIT_M / TILE_M * WARPS + warp;
    return {group_, ptx::sum_of_warp(ahead) * TILES, ptx::sum_of_warp(own) * TILES, ptx::sum_of_warp(before) * TILES + part};
  }

  // Calls `does` with every group that has no tiles; CTAs share them out. Whole warps ask.
  template <class F>
  DEVICE static void each_empty(u32 m, u32 groups, const i32* ids, const F& does) {
    for (u32 group = ptx::cta_index(); group < groups; group += ptx::cta_count()) {
      u32 own = 0;
      for (u32 i = ptx::lane_index(); i * UNIT_M < m; i += 32) own += u32(ids[i * UNIT_M]) == group;
      if (ptx::sum_of_warp(own) == 0) does(group);
    }
  }
  // Whether the group has no row from this one of the tile on, a multiple of 32, as padding follows a group's rows; a
  // whole warp asks.
  DEVICE bool idle(u32 row) const {
    u32 of = groups_;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i)
      if (32 * i == row) of = ours_[i];
    return m() + row >= rows_ || ptx::first_lanes(of) != group_;
  }
  // The row behind the last of the group's in this tile; a whole warp asks.
  DEVICE u32 rows() const {
    u32 end = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
      const u32 row = 32 * i + ptx::lane_index();
      if (row < TILE_M && m() + row < rows_ && ours_[i] == group_) end = m() + row + 1;
    }
    return ptx::largest_of_warp(end);
  }
};

}  // namespace gemmgen
