// Quantised outputs from tensor memory: a lane holds neighbouring columns of one row.
#pragma once
#include "gemmgen/pair.cuh"
#include "gemmgen/quantise.cuh"
#include "gemmgen/schedule.cuh"
#include "gemmgen/staged_rows.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// Codes of COLS columns of a row from column n, 32 bits a word; their scales are written.
template <class Rule, class Scales, u32 COLS, class F>
DEVICE void quantise_row(u32 (&words)[COLS * Rule::BITS / 32], const float (&acc)[COLS], const Scales& scales, u32 row,
                         u32 n, u32 rows, u32 cols, const F& epilogue) {
  constexpr u32 PAIR = 2 * Rule::BITS;  // bits of two codes
#pragma unroll
  for (u32 i = 0; i < COLS * Rule::BITS / 32; ++i) words[i] = 0;
#pragma unroll
  for (u32 first = 0; first < COLS; first += Rule::BLOCK) {
    float2 x[Rule::BLOCK / 2];
    float amax = 0.0f;
#pragma unroll
    for (u32 i = 0; i < Rule::BLOCK / 2; ++i) {
      const u32 col = n + first + 2 * i;
      x[i] = finished(epilogue, make_float2(acc[first + 2 * i], acc[first + 2 * i + 1]), row, col, 0, first / 2 + i);
      if (col >= cols) x[i].x = 0.0f;  // what lies past the edge counts in no block
      if (col + 1 >= cols) x[i].y = 0.0f;
      amax = ptx::larger_magnitude(ptx::larger_magnitude(amax, x[i].x), x[i].y);
    }
    const auto scale = Rule::scale(__float_as_uint(amax));
    const u32 block = (n + first) / Rule::BLOCK;
    if (row < rows) scales.put(row, block, ceil_div(cols, Rule::BLOCK), scale.stored);
#pragma unroll
    for (u32 i = 0; i < Rule::BLOCK / 2; ++i) {
      const u32 bit = (first / 2 + i) * PAIR;
      words[bit / 32] |= Rule::encode(mul(x[i], both(scale.inverse))) << bit % 32;
    }
  }
}

// Staged through SLOTS buffers of 32 rows x ROW_BYTES a warp and written by TMA, which clips at the matrix's edge.
template <class Rule, class Scales, u32 ROW_BYTES, u32 SLOTS, class Rows = Clipped>
class StagedQuantisedRows {
 public:
  static constexpr u32 COLS = ROW_BYTES * 8 / Rule::BITS;

 private:
  static constexpr u32 BUFFER = 32 * ROW_BYTES;
  const ptx::TensorMap& map_;
  u32 buffers_;
  Scales scales_;
  u32 slot_ = 0;
  Rows rows_;

 public:
  // `buffers` is the offset of warp 0's staging buffers in dynamic shared memory; `warp` counts within the role.
  DEVICE StagedQuantisedRows(const ptx::TensorMap& map, u32 buffers, u32 warp, Scales scales, Rows rows = {})
      : map_(map), buffers_(ptx::smem_base() + buffers + warp * SLOTS * BUFFER), scales_(scales), rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }
  DEVICE Scales& scales() { return scales_; }

  // COLS columns from n of the warp's 32 rows from m; this lane holds row m + lane.
  template <class F>
  DEVICE void columns(const float (&x)[COLS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    if (m >= rows || n >= cols) return;
    const u32 lane = ptx::lane_index();
    const u32 to = buffers_ + slot_ * BUFFER;
    u32 words[ROW_BYTES / 4];
    quantise_row<Rule>(words, x, scales_, m + lane, n, rows, cols, epilogue);
    if (lane == 0) ptx::bulk_wait_read<SLOTS - 1>();
    ptx::sync_warp();
#pragma unroll
    for (u32 i = 0; i < ROW_BYTES / 4; i += 4)
      ptx::store_shared_words(to + staged<ROW_BYTES>(lane, 4 * i), words[i], words[i + 1], words[i + 2], words[i + 3]);
    ptx::fence_proxy_async();
    ptx::sync_warp();
    rows_.template store<ROW_BYTES, 32>(map_, n * Rule::BITS / 8, m, rows, cols * Rule::BITS / 8, to);
    slot_ = slot_ + 1 == SLOTS ? 0 : slot_ + 1;
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const {
    if (ptx::lane_index() == 0) ptx::bulk_wait_read<0>();
  }
};

// Straight from registers with bounds checks, for outputs whose rows TMA cannot store; COLUMNS at a time.
template <class Rule, class Scales, u32 COLUMNS>
class DirectQuantisedRows {
  u8* to_;
  u64 stride_;
  Scales scales_;

 public:
  static constexpr u32 COLS = COLUMNS;

  DEVICE DirectQuantisedRows(void* to, u64 stride, Scales scales)
      : to_(static_cast<u8*>(to)), stride_(stride), scales_(scales) {}

  template <class F>
  DEVICE void columns(const float (&x)[COLS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    const u32 row = m + ptx::lane_index();
    u32 words[COLS * Rule::BITS / 32];
    quantise_row<Rule>(words, x, scales_, row, n, rows, cols, epilogue);
    u8* to = to_ + row * stride_ + n * Rule::BITS / 8;
#pragma unroll
    for (u32 i = 0; i < COLS * Rule::BITS / 8; ++i)
      if (row < rows && n + i * 8 / Rule::BITS < cols) to[i] = u8(words[i / 4] >> i % 4 * 8);
  }

  DEVICE void finish() const {}
};

}  // namespace gemmgen
