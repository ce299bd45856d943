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

// Tiles of more than ALIGNMENT rows, at whose multiples groups start by row ids. Neighbouring parts of ALIGNMENT rows, all
// of one group but for padding behind the last one's, are a run, and a tile begins at every TILE_M'th row of a run: at most
// one in a part, as far behind the part's first row as follows from the part's place in its run. A warp finds them when the
// launch begins and leaves how many there are at PLACE of shared memory, and behind that what is known of each. There is room
// for a tile in every part: the host refuses problems of more.
template <u32 PLACE, u32 TILE_M, u32 ALIGNMENT>
class Runs {
  static_assert(TILE_M > ALIGNMENT);
  enum : u32 { AT_ONCE = 4 };  // parts a lane asks for before it waits

  DEVICE static u32 place(u32 tile) { return ptx::smem_base() + PLACE + 8 + 8 * tile; }

 public:
  struct Tile {
    u32 row, group;
    bool whole;  // whether all rows are known to be the group's
  };
  DEVICE static u32 count() { return ptx::load_shared_word(ptx::smem_base() + PLACE); }
  DEVICE static Tile tile(u32 index) {
    u32 row, group;
    ptx::load_shared_word_pair(place(index), row, group);
    return {row, group / 2, group % 2 != 0};
  }

  DEVICE static void find(u32 rows, u32 groups, const i32* ids) {
    const u32 lane = ptx::lane_index();
    const auto id = [&](u32 row) { return row < rows ? u32(ids[row]) : ~0u; };
    u32 found = 0, run = 0;  // tiles, and the first part of the last run
    for (u32 first = 0; first < ceil_div(rows, ALIGNMENT); first += 32 * AT_ONCE) {
      u32 group[AT_ONCE];
      bool starts[AT_ONCE], whole[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 row = (first + 32 * i + lane) * ALIGNMENT, next = row + ALIGNMENT;
        group[i] = id(row);
        starts[i] = id(row - 1) != group[i];
        whole[i] = id(next - 1) == group[i] && id(next + ALIGNMENT - 1) == group[i];
      }
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 part = first + 32 * i + lane, all = ptx::lanes_where(starts[i]), own = all & (~0u >> (31 - lane));
        const u32 past = (part - (own ? part - lane + ptx::highest_bit(own) : run)) * ALIGNMENT % TILE_M;
        const u32 row = part * ALIGNMENT + (past ? TILE_M - past : 0);
        const bool begins = group[i] < groups && row < (part + 1) * ALIGNMENT && row < rows;
        const u32 tiles = ptx::lanes_where(begins), tile = found + ptx::count_bits(tiles & ~(~0u << lane));
        if (begins) ptx::store_shared_word_pair(place(tile), row, 2 * group[i] + whole[i]);
        found += ptx::count_bits(tiles);
        if (all) run = part - lane + ptx::highest_bit(all);
      }
    }
    if (lane == 0) ptx::store_shared_word(ptx::smem_base() + PLACE, found);
  }
};

// Those tiles, a grid's stride apart.
template <class R, u32 TILE_M, class Found>
class RunTiles {
  R raster_;  // as if tiles lay one behind the other from row 0 on
  u32 rows_;
  const i32* ids_;
  u32 index_;
  typename Found::Tile tile_ = {0, 0, false};

  DEVICE void place() {
    if (!valid()) return;
    raster_.place(index_);
    tile_ = Found::tile(raster_.m() / TILE_M);
  }

 public:
  DEVICE RunTiles(u32 m, u32 n, u32, const i32* ids)
      : raster_(Found::count() * TILE_M, n), rows_(m), ids_(ids), index_(ptx::cta_index() / R::CLUSTER) {
    place();
  }
  // What is to be found before a CTA's roles ask where tiles are. A whole warp asks.
  DEVICE static void find(u32 m, u32 groups, const i32* ids) { Found::find(m, groups, ids); }
  DEVICE bool valid() const { return index_ < raster_.units(); }
  DEVICE void advance() {
    index_ += ptx::cta_count() / R::CLUSTER;
    place();
  }
  DEVICE u32 m() const { return tile_.row; }
  DEVICE u32 n() const { return raster_.n(); }
  DEVICE u32 group() const { return tile_.group; }
  // The row behind the last of the group's in this tile, of those without a gap; a whole warp asks.
  DEVICE u32 rows() const {
    if (tile_.whole) return m() + TILE_M;
    u32 count = 0;
    for (u32 i = 0; i < TILE_M && count == i; i += 32) {
      const u32 row = m() + i + ptx::lane_index();
      const u32 others = ~ptx::lanes_where(row < rows_ && u32(ids_[row]) == group());
      count += others ? ptx::count_bits((others - 1) & ~others) : 32;
    }
    return m() + (count < TILE_M ? count : TILE_M);
  }
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
