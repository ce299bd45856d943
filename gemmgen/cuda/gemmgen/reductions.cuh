// What an epilogue reduces, in an order that depends on the tile and on nothing else: within a thread, across the lanes
// that share a row (or a column), across warps and tiles from the first to the last.
#pragma once
#include "gemmgen/arrivals.cuh"
#include "gemmgen/fragment.cuh"
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// Kinds of reductions: what one number counts, and two results together. Nothing counts 0.
struct Sum {
  DEVICE static float of(float x) { return x; }
  DEVICE static float join(float x, float y) { return x + y; }
};
struct SumOfSquares : Sum {
  DEVICE static float of(float x) { return x * x; }
};
// Bits of magnitudes are in the order of the numbers, and NaN is above Inf.
struct Amax {
  DEVICE static float of(float x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffff); }
  DEVICE static float join(float x, float y) { return __uint_as_float(max(__float_as_uint(x), __float_as_uint(y))); }
};

// Columns n and n + 1 of a row, those past the edge not counted.
template <class Kind>
DEVICE float counted(float before, float2 x, u32 n, u32 cols) {
  const float first = Kind::join(before, n < cols ? Kind::of(x.x) : 0.0f);
  return Kind::join(first, n + 1 < cols ? Kind::of(x.y) : 0.0f);
}

// All lanes' numbers.
template <class Kind>
DEVICE float across_lanes(float x) {
  x = Kind::join(x, ptx::exchange<1>(x));
  x = Kind::join(x, ptx::exchange<2>(x));
  x = Kind::join(x, ptx::exchange<4>(x));
  x = Kind::join(x, ptx::exchange<8>(x));
  return Kind::join(x, ptx::exchange<16>(x));
}

// What a thread has seen of the warp's ROWS rows where sums are fragments: two rows of every block of 16, which the four
// lanes of a quad share.
template <class Kind, u32 ROWS>
class FragmentRows {
  float seen_[ROWS / 8] = {};

 public:
  // `row` counts the thread's rows.
  DEVICE void add(float2 x, u32 row, u32 n, u32 cols) { seen_[row] = counted<Kind>(seen_[row], x, n, cols); }

  // Writes a number for each row and begins anew.
  DEVICE void put(float* to) {
#pragma unroll
    for (u32 i = 0; i < ROWS / 8; ++i) {
      float x = seen_[i];
      x = Kind::join(x, ptx::exchange<1>(x));
      x = Kind::join(x, ptx::exchange<2>(x));
      if (ptx::lane_index() % 4 == i % 4) to[8 * i + ptx::lane_index() / 4] = x;
      seen_[i] = 0.0f;
    }
  }
};

// The same where sums come from tensor memory, a row a lane.
template <class Kind, u32 ROWS>
class LaneRows {
  static_assert(ROWS == 32);
  float seen_ = 0.0f;

 public:
  DEVICE void add(float2 x, u32, u32 n, u32 cols) { seen_ = counted<Kind>(seen_, x, n, cols); }

  DEVICE void put(float* to) {
    to[ptx::lane_index()] = seen_;
    seen_ = 0.0f;
  }
};

// What a thread has seen of its warp's WIDTH columns where sums are fragments: a pair of every eight, of all its rows; lanes
// 4 apart share columns.
template <class Kind, u32 WIDTH>
class FragmentColumns {
  float2 seen_[WIDTH / 8] = {};

 public:
  // `pair` counts the thread's pairs of columns.
  DEVICE void add(float2 x, u32 pair, u32 m, u32 rows) {
    float2& seen = seen_[pair];
    seen.x = Kind::join(seen.x, m < rows ? Kind::of(x.x) : 0.0f);
    seen.y = Kind::join(seen.y, m < rows ? Kind::of(x.y) : 0.0f);
  }

  // Writes a number for each column and begins anew.
  DEVICE void put(float* to) {
#pragma unroll
    for (u32 i = 0; i < WIDTH / 8; ++i) {
      const float2 x = make_float2(across_rows(seen_[i].x), across_rows(seen_[i].y));
      if (ptx::lane_index() / 4 == i % 8) *reinterpret_cast<float2*>(to + 8 * i + fragment_col()) = x;
      seen_[i] = make_float2(0.0f, 0.0f);
    }
  }

 private:
  DEVICE static float across_rows(float x) {
    x = Kind::join(x, ptx::exchange<4>(x));
    x = Kind::join(x, ptx::exchange<8>(x));
    return Kind::join(x, ptx::exchange<16>(x));
  }
};

// PART columns of 32 rows, a row a lane, become one number a column: lane l ends with that of column l % PART in x[0]. Lanes
// STEP apart, then half as far and so on, add up what both keep and each takes half of the columns, down to one.
template <class Kind, u32 PART, u32 STEP = 16>
DEVICE void across_rows(float* x) {
  const bool upper = ptx::lane_index() & STEP;
#pragma unroll
  for (u32 i = 0; i < PART && i < STEP; ++i) {
    if constexpr (STEP < PART) {
      const float other = ptx::exchange<STEP>(upper ? x[i] : x[i + STEP]);
      x[i] = Kind::join(upper ? x[i + STEP] : x[i], other);
    } else {
      x[i] = Kind::join(x[i], ptx::exchange<STEP>(x[i]));
    }
  }
  if constexpr (STEP > 1) across_rows<Kind, PART, STEP / 2>(x);
}

// The same where sums come from tensor memory, a row a lane and WIDTH columns at a time.
template <class Kind, u32 WIDTH>
class LaneColumns {
  static constexpr u32 PART = WIDTH < 32 ? WIDTH : 32;
  static_assert(WIDTH % PART == 0 && (PART & PART - 1) == 0);
  float seen_[WIDTH] = {};

 public:
  DEVICE void add(float2 x, u32 pair, u32 m, u32 rows) {
    seen_[2 * pair] = m < rows ? Kind::of(x.x) : 0.0f;
    seen_[2 * pair + 1] = m < rows ? Kind::of(x.y) : 0.0f;
  }

  DEVICE void put(float* to) {
#pragma unroll
    for (u32 first = 0; first < WIDTH; first += PART) {
      float* x = seen_ + first;
      across_rows<Kind, PART>(x);
      if (ptx::lane_index() < PART) to[first + ptx::lane_index()] = x[0];
#pragma unroll
      for (u32 i = 0; i < PART; ++i) x[i] = 0.0f;
    }
  }
};

// What every lane has.
DEVICE void store_one(float* to, float x) {
  if (ptx::lane_index() == 0) *to = x;
}

// Where the warps of a group leave LINES lines of WIDTH numbers each, one after the other.
template <u32 LINES, u32 WIDTH>
class Meeting {
  float* partials_;
  u32* counter_;
  u32 parts_;

 public:
  DEVICE Meeting(float* partials, u32* counters, u32 group, u32 parts)
      : partials_(partials + u64(group) * parts * LINES * WIDTH), counter_(counters + group), parts_(parts) {}

  // That of a group of tiles, behind `before` parts of others, at a counter of its own.
  DEVICE Meeting(float* partials, u32* counters, u64 before, u32 counter, const Share& share)
      : partials_(partials + (before + share.ahead) * LINES * WIDTH), counter_(counters + counter), parts_(share.warps) {}

  // A line of this warp's, the group's `part`.
  DEVICE float* line(u32 part, u32 line) const { return partials_ + (u64(part) * LINES + line) * WIDTH; }

  // A line's only number, which every lane has.
  DEVICE void put(u32 part, u32 line, float x) const {
    static_assert(WIDTH == 1);
    store_one(this->line(part, line), x);
  }

  DEVICE bool last() const { return last_to_arrive(counter_, parts_ - 1); }

  // Number `at` of a line, from the parts in their order; by the last to arrive.
  template <class Kind>
  DEVICE float joined(u32 line, u32 at) const {
    const float* from = this->line(0, line) + at;
    float x = *from;
#pragma unroll 8
    for (u32 part = 1; part < parts_; ++part) x = Kind::join(x, from[u64(part) * LINES * WIDTH]);
    return x;
  }

  // The same of four neighbouring numbers.
  template <class Kind>
  DEVICE void joined(u32 line, u32 at, float (&x)[4]) const {
    const float* from = this->line(0, line) + at;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) x[i] = 0.0f;
#pragma unroll 8
    for (u32 part = 0; part < parts_; ++part) {
      const float4 y = *reinterpret_cast<const float4*>(from + u64(part) * LINES * WIDTH);
      x[0] = Kind::join(x[0], y.x), x[1] = Kind::join(x[1], y.y);
      x[2] = Kind::join(x[2], y.z), x[3] = Kind::join(x[3], y.w);
    }
  }

  // All numbers of a line, from all parts: lane by lane, then across lanes.
  template <class Kind>
  DEVICE float whole(u32 line) const {
    float x = 0.0f;
#pragma unroll 4
    for (u32 i = ptx::lane_index(); i < parts_ * WIDTH; i += 32)
      x = Kind::join(x, this->line(i / WIDTH, line)[i % WIDTH]);
    return across_lanes<Kind>(x);
  }
};

// Where a warp's ROWS rows lie: in blocks of BLOCK, of which each starts STEP rows after the one before.
template <u32 ROWS, u32 BLOCK, u32 STEP>
struct Rows {
  template <class F>
  DEVICE static void each(u32 m, u32 rows, const F& does) {
#pragma unroll
    for (u32 first = 0; first < ROWS; first += 32) {
      const u32 i = first + ptx::lane_index();
      const u32 row = m + i / BLOCK * STEP + i % BLOCK;
      if (i < ROWS && row < rows) does(i, row);
    }
  }

  // One number a row of the matrix.
  template <class Kind, class M>
  DEVICE static void store(float* to, const M& meeting, u32 line, u32 m, u32 rows) {
    each(m, rows, [&](u32 i, u32 row) { to[row] = meeting.template joined<Kind>(line, i); });
  }

  // One number of all these rows, the same in every lane.
  template <class Kind, class M>
  DEVICE static float whole(const M& meeting, u32 line, u32 m, u32 rows) {
    float x = 0.0f;
    each(m, rows, [&](u32 i, u32) { x = Kind::join(x, meeting.template joined<Kind>(line, i)); });
    return across_lanes<Kind>(x);
  }
};

// What a reduction of nothing is, `count` times; warps share them out.
DEVICE void store_zeros(float* to, u32 count, u32 warp, u32 warps) {
  for (u32 i = warp * 32 + ptx::lane_index(); i < count; i += warps * 32) to[i] = 0.0f;
}

// One number for each of the WIDTH columns from n that are the matrix's.
template <class Kind, u32 LINES, u32 WIDTH>
DEVICE void store_columns(float* to, const Meeting<LINES, WIDTH>& meeting, u32 line, u32 n, u32 cols) {
#pragma unroll
  for (u32 first = 0; first < WIDTH; first += 128) {
    const u32 at = first + 4 * ptx::lane_index();
    if (at >= WIDTH || n + at >= cols) continue;
    float x[4];
    meeting.template joined<Kind>(line, at, x);
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      if (n + at + i < cols) to[n + at + i] = x[i];
  }
}

}  // namespace gemmgen
