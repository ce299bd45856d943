// A persistent schedule in which tiles that fill no whole wave are cut, so that every SM has a part of what is left.
#pragma once
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Tiles a grid's stride apart. Of those beyond the last full wave every one is cut into PARTS along n, neighbours in
// the order of parts, unless these need more than half as many waves: a part takes more than its share of a tile.
template <u32 TILE_M, u32 TILE_N, u32 GROUP, u32 PARTS>
class CutRemainder {
  Raster<TILE_M, TILE_N, GROUP, 1, 1> raster_;
  u32 whole_, index_;

  DEVICE u32 left() const { return raster_.units() - whole_; }
  DEVICE void place() {
    if (valid()) raster_.place(cut() ? whole_ + (index_ - whole_) / PARTS : index_);
  }

 public:
  DEVICE CutRemainder(u32 m, u32 n) : raster_(m, n), whole_(raster_.units()), index_(ptx::cta_index()) {
    const u32 over = whole_ % ptx::cta_count();
    if (2 * ceil_div(over * PARTS, ptx::cta_count()) <= PARTS) whole_ -= over;
    place();
  }
  DEVICE bool valid() const { return index_ < whole_ + left() * PARTS; }
  DEVICE void advance() {
    index_ += ptx::cta_count();
    place();
  }
  DEVICE bool whole() const { return index_ < whole_; }
  // Whether this is a part of a tile, and how many parts wide it is.
  DEVICE bool cut() const { return index_ >= whole_; }
  DEVICE u32 parts() const { return cut() ? 1 : PARTS; }
  // First row and column.
  DEVICE u32 m() const { return raster_.m(); }
  DEVICE u32 n() const { return raster_.n() + (cut() ? (index_ - whole_) % PARTS * (TILE_N / PARTS) : 0); }
};

}  // namespace gemmgen
