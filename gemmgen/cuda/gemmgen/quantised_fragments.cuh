// Quantised outputs from fragments: four neighbouring lanes hold two columns of every eight of a row, two rows a lane.
#pragma once
#include "gemmgen/fragment.cuh"
#include "gemmgen/pair.cuh"
#include "gemmgen/quantise.cuh"
#include "gemmgen/schedule.cuh"
#include "gemmgen/staged_rows.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// The largest magnitude of a row's block, from what its four lanes found.
DEVICE float largest_of_quad(float x) {
  x = ptx::larger_magnitude(x, ptx::exchange<1>(x));
  return ptx::larger_magnitude(x, ptx::exchange<2>(x));
}

// The same for four blocks of a row at once: each lane gets that of the block with its own place in the quad.
DEVICE float largest_of_quad(const float (&x)[4]) {
  const bool odd = ptx::lane_index() % 2, upper = ptx::lane_index() / 2 % 2;
  float y[2];
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    const float other = ptx::exchange<1>(odd ? x[2 * i] : x[2 * i + 1]);
    y[i] = ptx::larger_magnitude(odd ? x[2 * i + 1] : x[2 * i], other);
  }
  const float other = ptx::exchange<2>(upper ? y[0] : y[1]);
  return ptx::larger_magnitude(upper ? y[1] : y[0], other);
}

// The largest magnitude that a lane has of a block: WIDTH pairs.
template <u32 WIDTH>
DEVICE float largest(const float2* x) {
  float amax = ptx::larger_magnitude(x[0].x, x[0].y);
#pragma unroll
  for (u32 j = 1; j < WIDTH; ++j) amax = ptx::larger_magnitude(ptx::larger_magnitude(amax, x[j].x), x[j].y);
  return amax;
}

// Codes of GROUPS groups of eight columns of one row from column n; scales are written, by the lanes of a quad in turn.
// Of four blocks each lane works out one scale, the one that it writes; of fewer every lane works out all.
template <class Rule, class Scales, u32 GROUPS>
DEVICE void quantise_fragments(u32 (&codes)[GROUPS], const float2 (&x)[GROUPS], const Scales& scales, u32 row, u32 n,
                               u32 rows, u32 cols) {
  constexpr u32 WIDTH = Rule::BLOCK / 8, BLOCKS = GROUPS / WIDTH, TURNS = (BLOCKS + 3) / 4;
  const u32 lane = ptx::lane_index() % 4;
  decltype(Rule::scale(0).stored) mine[TURNS];
  float inverse[BLOCKS];
#pragma unroll
  for (u32 turn = 0; turn < TURNS; ++turn) {
    if constexpr (BLOCKS % 4 == 0) {
      float amax[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) amax[i] = largest<WIDTH>(x + (4 * turn + i) * WIDTH);
      const auto scale = Rule::scale(__float_as_uint(largest_of_quad(amax)));
      mine[turn] = scale.stored;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) inverse[4 * turn + i] = ptx::from_quad(scale.inverse, i);
    } else {
#pragma unroll
      for (u32 block = 4 * turn; block < BLOCKS && block < 4 * turn + 4; ++block) {
        const auto scale = Rule::scale(__float_as_uint(largest_of_quad(largest<WIDTH>(x + block * WIDTH))));
        if (block % 4 == 0 || lane == block % 4) mine[turn] = scale.stored;
        inverse[block] = scale.inverse;
      }
    }
  }
#pragma unroll
  for (u32 j = 0; j < GROUPS; ++j) codes[j] = Rule::encode(mul(x[j], both(inverse[j / WIDTH])));
  if (row < rows)
#pragma unroll
    for (u32 four = 0; four < BLOCKS; four += 4)
      if (lane + four < BLOCKS)
        scales.put(row, n / Rule::BLOCK + lane + four, ceil_div(cols, Rule::BLOCK), mine[four / 4]);
}

// The epilogue's values of GROUPS groups of eight columns of one row, whose sums are every fourth pair from `acc`. What
// lies past the edge is 0 and counts in no block. `h` and `pair` count the thread's rows and pairs of columns before these.
template <u32 GROUPS, class F>
DEVICE void values_of_fragments(float2 (&x)[GROUPS], const float* acc, u32 row, u32 n, u32 cols, u32 h, u32 pair,
                                const F& epilogue) {
  at_column(epilogue, n, 8 * GROUPS, cols, [&](auto first) {
#pragma unroll
    for (u32 j = 0; j < GROUPS; ++j)
      x[j] = finished(epilogue, make_float2(acc[4 * j], acc[4 * j + 1]), row, first + 8 * j + fragment_col(), h, pair + j);
  });
  if (n + 8 * GROUPS <= cols) return;
#pragma unroll
  for (u32 j = 0; j < GROUPS; ++j) {
    const u32 col = n + 8 * j + fragment_col();
    if (col >= cols) x[j].x = 0.0f;
    if (col + 1 >= cols) x[j].y = 0.0f;
  }
}

// Staged through SLOTS buffers of 16 rows x ROW_BYTES a warp and written by TMA, which clips at the matrix's edge. TURN
// buffers share a fence and a group of copies.
template <class Rule, class Scales, u32 ROW_BYTES, u32 SLOTS, class Rows = Clipped, u32 TURN = 1>
class StagedQuantisedFragments {
  static_assert(SLOTS % TURN == 0);

 public:
  static constexpr u32 COLS = ROW_BYTES * 8 / Rule::BITS;  // at a time

 private:
  static constexpr u32 BUFFER = 16 * ROW_BYTES;
  const ptx::TensorMap& map_;
  u32 buffers_;
  Scales scales_;
  u32 slot_ = 0;
  Rows rows_;

  DEVICE static void write(u32 to, u32 row, const u32 (&codes)[COLS / 8]) {
    constexpr u32 PAIR = Rule::BITS / 4, GROUPS = 16 / (4 * PAIR);  // bytes of a pair, groups of eight in 16 bytes
    const StagedRow<ROW_BYTES> line(to + ptx::lane_index() % 4 * PAIR, row);
#pragma unroll
    for (u32 j = 0; j < COLS / 8; ++j) {
      const u32 at = line.at(j / GROUPS, j % GROUPS * 4 * PAIR);
      if constexpr (Rule::BITS == 8)
        ptx::store_shared_half(at, u16(codes[j]));
      else
        ptx::store_shared_byte(at, u8(codes[j]));
    }
  }

  // A buffer of columns from n + col of the block.
  template <u32 REGS, class F>
  DEVICE void fill(u32 to, const float (&acc)[REGS], u32 col, u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32 row = ptx::lane_index() / 4 + 8 * h;
      float2 x[COLS / 8];
      u32 codes[COLS / 8];
      values_of_fragments(x, acc + col / 2 + 2 * h, m + row, n + col, cols, h, col / 8, epilogue);
      quantise_fragments<Rule>(codes, x, scales_, m + row, n + col, rows, cols);
      write(to, row, codes);
    }
  }

  template <bool ENDS>
  DEVICE void copy(u32 from, u32 m, u32 n, u32 rows, u32 cols, bool leads) const {
    rows_.template store<ROW_BYTES, 16, ENDS>(map_, n * Rule::BITS / 8, m, rows, cols * Rule::BITS / 8, from, leads);
  }

 public:
  // `buffers` is the offset of warp 0's staging buffers in dynamic shared memory; `warp` counts within the role.
  DEVICE StagedQuantisedFragments(const ptx::TensorMap& map, u32 buffers, u32 warp, Scales scales, Rows rows = {})
      : map_(map), buffers_(ptx::smem_base() + buffers + warp * SLOTS * BUFFER), scales_(scales), rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }
  DEVICE Scales& scales() { return scales_; }

  // The warp's 16 rows from row m, columns from n.
  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    constexpr u32 ALL = 2 * REGS;
#pragma unroll
    for (u32 first = 0; first < ALL; first += TURN * COLS) {
      if (m >= rows || n + first >= cols) return;
      const u32 to = buffers_ + slot_ * BUFFER;
      if (ptx::lane_index() == 0) ptx::bulk_wait_read<SLOTS / TURN - 1>();
      ptx::sync_warp();
#pragma unroll
      for (u32 col = first; col < first + TURN * COLS && col < ALL; col += COLS)
        fill(to + (col - first) / COLS * BUFFER, acc, col, m, n, rows, cols, epilogue);
      ptx::fence_proxy_async();
      ptx::sync_warp();
      const bool leads = ptx::lane_index() == 0;
      if constexpr (TURN == 1) {
        copy<true>(to, m, n + first, rows, cols, leads);
      } else if (leads || Rows::BY_LANES) {
#pragma unroll
        for (u32 col = first; col < first + TURN * COLS && col < ALL; col += COLS)
          if (col == first || n + col < cols)
            copy<false>(to + (col - first) / COLS * BUFFER, m, n + col, rows, cols, leads);
        if (leads) ptx::bulk_commit();
      }
      slot_ = slot_ + TURN == SLOTS ? 0 : slot_ + TURN;
    }
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const {
    if (ptx::lane_index() == 0) ptx::bulk_wait_read<0>();
  }
};

// Straight from registers with bounds checks, for outputs whose rows TMA cannot store.
template <class Rule, class Scales>
class DirectQuantisedFragments {
  u8* to_;
  u64 stride_;
  Scales scales_;

  DEVICE void put(u32 row, u32 col, u32 cols, u32 codes) const {
    if constexpr (Rule::BITS == 8) {
      u8* at = to_ + row * stride_ + col;
      at[0] = u8(codes);
      if (col + 1 < cols) at[1] = u8(codes >> 8);
    } else {
      to_[row * stride_ + col / 2] = u8(codes);
    }
  }

 public:
  enum : u32 { COLS = Rule::BLOCK };  // at a time

  DEVICE DirectQuantisedFragments(void* to, u64 stride, Scales scales)
      : to_(static_cast<u8*>(to)), stride_(stride), scales_(scales) {}

  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    constexpr u32 GROUPS = Rule::BLOCK / 8;
#pragma unroll
    for (u32 col = 0; col < 2 * REGS; col += Rule::BLOCK) {
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        const u32 row = m + ptx::lane_index() / 4 + 8 * h;
        float2 x[GROUPS];
        u32 codes[GROUPS];
        values_of_fragments(x, acc + col / 2 + 2 * h, row, n + col, cols, h, col / 8, epilogue);
        quantise_fragments<Rule>(codes, x, scales_, row, n + col, rows, cols);
#pragma unroll
        for (u32 j = 0; j < GROUPS; ++j) {
          const u32 at = n + col + 8 * j + fragment_col();
          if (row < rows && at < cols) put(row, at, cols, codes[j]);
        }
      }
    }
  }

  DEVICE void finish() const {}
};

}  // namespace gemmgen
