// From accumulators in tensor memory to global memory: each lane of a warp owns a row, 32 rows a warp.
#pragma once
#include "gemmgen/pair.cuh"
#include "gemmgen/store.cuh"
#include "ptx/bytes.cuh"
#include "ptx/tcgen05.cuh"

namespace gemmgen {

// What a product over no k at all leaves.
template <u32 COUNT>
DEVICE void clear(float (&x)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; ++i) x[i] = 0.0f;
}

// Staged through SLOTS buffers of 32 rows x ROW_BYTES a warp and written by TMA, which clips at the matrix's edge.
template <class T, u32 ROW_BYTES, u32 SLOTS, class Columns = SideBySide, class Rows = Clipped>
class StagedRows {
 public:
  static constexpr u32 COLS = ROW_BYTES / sizeof(T);

 private:
  static constexpr u32 BUFFER = 32 * ROW_BYTES;
  static constexpr u32 WORDS = 16 / sizeof(T) / 2;  // pairs in a 16-byte chunk
  const ptx::TensorMap& map_;
  const bool elected_ = ptx::elect_one();  // the lane that talks to the copy engine
  u32 buffers_;
  u32 slot_ = 0;
  Rows rows_;

  template <class Pair>
  DEVICE static void put(u32 to, const Pair (&x)[4]) {
    ptx::store_shared_words(to, x[0].bits, x[1].bits, x[2].bits, x[3].bits);
  }
  template <class Pair>
  DEVICE static void put(u32 to, const Pair (&x)[8]) {
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words[i] = x[2 * i].bits | u32(x[2 * i + 1].bits) << 16;
    ptx::store_shared_words(to, words[0], words[1], words[2], words[3]);
  }
  DEVICE static void put(u32 to, const float2 (&x)[2]) {
    ptx::store_shared_words(to, __float_as_uint(x[0].x), __float_as_uint(x[0].y), __float_as_uint(x[1].x),
                            __float_as_uint(x[1].y));
  }

 public:
  // `buffers` is the offset of warp 0's staging buffers in dynamic shared memory; `warp` counts within the role.
  DEVICE StagedRows(const ptx::TensorMap& map, u32 buffers, u32 warp, Rows rows = {})
      : map_(map), buffers_(ptx::smem_base() + buffers + warp * SLOTS * BUFFER), rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }

  // COLS columns from n of the warp's 32 rows from m; this lane holds row m + lane.
  template <class F>
  DEVICE void columns(const float (&x)[COLS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    if (m >= rows || n >= cols) return;
    const u32 lane = ptx::lane_index();
    const u32 to = buffers_ + slot_ * BUFFER;
    ptx::bulk_wait_read<SLOTS - 1>();  // the lane that stored waits, others have nothing under way
    ptx::sync_warp();
#pragma unroll
    for (u32 i = 0; i < COLS; i += 2 * WORDS) {
      typename PairOf<T>::type y[WORDS];
#pragma unroll
      for (u32 j = 0; j < WORDS; ++j)
        y[j] = finished(epilogue, make_float2(x[i + 2 * j], x[i + 2 * j + 1]), m + lane, n + i + 2 * j, 0, i / 2 + j);
      put(to + staged<ROW_BYTES>(lane, i * sizeof(T)), y);
    }
    ptx::fence_proxy_async();
    ptx::sync_warp();
    rows_.template store<ROW_BYTES, 32>(map_, Columns::column(n), m, rows, Columns::column(cols), to, elected_);
    slot_ = slot_ + 1 == SLOTS ? 0 : slot_ + 1;
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const { ptx::bulk_wait_read<0>(); }
};

// Lanes that hold columns of the output: two neighbours exchange values, so that each has a pair of columns of a row.
// x[2 i] and x[2 i + 1] of lane n become columns (n & ~1) and the next of row 2 i + (n & 1).
template <u32 COUNT>
DEVICE void pair_columns(float2 (&to)[COUNT / 2], const float (&x)[COUNT]) {
  const bool odd = ptx::lane_index() % 2;
#pragma unroll
  for (u32 i = 0; i < COUNT; i += 2) {
    const float other = ptx::exchange_with_neighbour(odd ? x[i] : x[i + 1]);
    to[i / 2] = odd ? make_float2(other, x[i + 1]) : make_float2(x[i], other);
  }
}

// For epilogues that treat elements alike wherever they lie: they may run on pairs of rows.
constexpr bool ELEMENTWISE = true;

// The epilogue on ROWS rows from m of this lane's column n + lane, as pair_columns arranges pairs. Elementwise ones that
// make 16-bit numbers run first: then a pair of results is one register to exchange.
template <class T, bool ALIKE, u32 ROWS, class F>
DEVICE void finish_columns(typename PairOf<T>::type (&to)[ROWS / 2], const float (&x)[ROWS], u32 m, u32 n, const F& epilogue) {
  const u32 odd = ptx::lane_index() % 2, col = n + ptx::lane_index() - odd;
  if constexpr (ALIKE && sizeof(T) == 2) {
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; ++i) {
      const u32 rows = epilogue(make_float2(x[2 * i], x[2 * i + 1]), m + 2 * i, col).bits;
      to[i].bits = ptx::permute_bytes(rows, ptx::exchange_with_neighbour(rows), odd ? 0x3276 : 0x5410);
    }
  } else {
    float2 y[ROWS / 2];
    pair_columns(y, x);
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; ++i) to[i] = epilogue(y[i], m + 2 * i + odd, col);
  }
}

// Swapped products: 32 columns of the output a warp, ROWS of its rows at a time through SLOTS buffers, written by TMA.
template <class T, u32 ROWS, u32 SLOTS, bool ALIKE = false, class Columns = SideBySide, class Rows = Clipped>
class StagedColumns {
 public:
  static constexpr u32 COLS = ROWS;

 private:
  static constexpr u32 ROW_BYTES = 32 * sizeof(T);
  static constexpr u32 BUFFER = ROWS * ROW_BYTES;
  const ptx::TensorMap& map_;
  const bool elected_ = ptx::elect_one();  // the lane that talks to the copy engine
  u32 buffers_;
  u32 slot_ = 0;
  Rows rows_;

  template <class Pair>
  DEVICE static void put(u32 to, Pair x) {
    if constexpr (sizeof(T) == 2)
      ptx::store_shared_word(to, x.bits);
    else
      ptx::store_shared_half(to, x.bits);
  }
  DEVICE static void put(u32 to, float2 x) { ptx::store_shared(to, x); }

 public:
  DEVICE StagedColumns(const ptx::TensorMap& map, u32 buffers, u32 warp, Rows rows = {})
      : map_(map), buffers_(ptx::smem_base() + buffers + warp * SLOTS * BUFFER), rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }

  // ROWS rows from m of the warp's 32 columns from n; this lane holds column n + lane.
  template <class F>
  DEVICE void columns(const float (&x)[ROWS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    if (m >= rows || n >= cols) return;
    const u32 lane = ptx::lane_index(), col = lane / 2 * 2;
    const u32 to = buffers_ + slot_ * BUFFER;
    typename PairOf<T>::type y[ROWS / 2];
    finish_columns<T, ALIKE>(y, x, m, n, epilogue);
    ptx::bulk_wait_read<SLOTS - 1>();  // the lane that stored waits, others have nothing under way
    ptx::sync_warp();
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; ++i) {
      const u32 row = 2 * i + lane % 2;
      put(to + staged<ROW_BYTES>(row, col * sizeof(T)), y[i]);
    }
    ptx::fence_proxy_async();
    ptx::sync_warp();
    rows_.template store<ROW_BYTES, ROWS>(map_, Columns::column(n), m, rows, Columns::column(cols), to, elected_);
    slot_ = slot_ + 1 == SLOTS ? 0 : slot_ + 1;
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const { ptx::bulk_wait_read<0>(); }
};

// The same straight from registers.
template <class T, u32 ROWS, bool ALIKE = false, class Columns = SideBySide>
class DirectColumns {
  DirectStore<T, Columns> out_;

 public:
  static constexpr u32 COLS = ROWS;

  DEVICE DirectColumns(T* to, u64 stride) : out_(to, stride) {}

  template <class F>
  DEVICE void columns(const float (&x)[ROWS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    const u32 col = n + ptx::lane_index() / 2 * 2;
    typename PairOf<T>::type y[ROWS / 2];
    finish_columns<T, ALIKE>(y, x, m, n, epilogue);
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; ++i) {
      const u32 row = m + 2 * i + ptx::lane_index() % 2;
      if (row < rows && col < cols) out_.pair(row, col, cols, y[i]);
    }
  }

  DEVICE void finish() const {}
};

// Straight from registers with bounds checks, for outputs whose pitch TMA cannot store to.
template <class T, u32 COLUMNS, class Columns = SideBySide>
class DirectRows {
  DirectStore<T, Columns> out_;

 public:
  static constexpr u32 COLS = COLUMNS;

  DEVICE DirectRows(T* to, u64 stride) : out_(to, stride) {}

  template <class F>
  DEVICE void columns(const float (&x)[COLS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    const u32 row = m + ptx::lane_index();
#pragma unroll
    for (u32 i = 0; i < COLS; i += 2)
      if (row < rows && n + i < cols)
        out_.pair(row, n + i, cols, finished(epilogue, make_float2(x[i], x[i + 1]), row, n + i, 0, i / 2));
  }

  DEVICE void finish() const {}
};

}  // namespace gemmgen
