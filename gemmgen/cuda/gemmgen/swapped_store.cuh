// From accumulators whose rows are columns of the output to global memory, for products with swapped factors.
#pragma once
#include "gemmgen/store.cuh"

namespace gemmgen {

// Two neighbours in one store where they lie so, as they do in outputs of an even pitch.
template <class T, class Columns = SideBySide>
class PairStore {
  T* to_;
  u64 stride_;

 public:
  DEVICE PairStore(T* to, u64 stride) : to_(to), stride_(stride) {}

  // Columns n and n + 1 of a row inside the matrix; the second may lie past its edge.
  template <class Pair>
  DEVICE void pair(u32 row, u32 col, u32 cols, Pair x) const {
    T* to = to_ + row * stride_ + Columns::column(col);
    add_held<Columns>(x, to, col + 1 < cols);
    if (col + 1 < cols && reinterpret_cast<u64>(to) % sizeof(Pair) == 0)
      *reinterpret_cast<Pair*>(to) = x;
    else
      put(to, x, col + 1 < cols);
  }
};

// Straight from registers with bounds checks. Lanes 4 apart exchange values, so that each has two neighbouring columns
// of a row of the output, which `Out` writes.
template <class T, class Columns = SideBySide, class Out = DirectStore<T, Columns>>
class SwappedStore {
  Out out_;

 public:
  DEVICE SwappedStore(T* to, u64 stride) : out_(to, stride) {}

  // 16 columns of the output from n, rows from m.
  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    const u32 lane = ptx::lane_index();
    const bool odd = lane / 4 % 2;
#pragma unroll
    for (u32 i = 0; i < REGS; i += 2) {
      const float other = ptx::exchange<4>(odd ? acc[i] : acc[i + 1]);
      const float2 x = odd ? make_float2(other, acc[i + 1]) : make_float2(acc[i], other);
      const u32 row = m + i / 4 * 8 + fragment_col() + odd;
      const u32 col = n + i % 4 / 2 * 8 + lane / 8 * 2;
      if (row < rows && col < cols) out_.pair(row, col, cols, epilogue(x, row, col));
    }
  }

  DEVICE void finish() const {}
};

// Staged by warpgroups in SLOTS buffers of ROWS rows, each of which holds the warpgroup's 64 columns of the output, and
// written by TMA, which clips at the matrix's edge, or as `Rows` says.
template <class T, u32 ROWS, u32 SLOTS, class Columns = SideBySide, class Rows = Clipped>
class SwappedStagedStore {
  static constexpr u32 COLS = 64, ROW_BYTES = COLS * sizeof(T), BUFFER = ROWS * ROW_BYTES;
  using Pair = typename PairOf<T>::type;
  const ptx::TensorMap& map_;
  u32 buffers_, barrier_, warp_;
  u32 slot_ = 0;
  Rows rows_;

  DEVICE bool leads() const { return warp_ == 0 && ptx::lane_index() == 0; }
  DEVICE void meet() const { ptx::sync_threads(barrier_, 128); }

  // A buffer of ROWS rows from m, of the warpgroup's columns from `first`.
  template <class F>
  DEVICE void buffer(const float* acc, u32 m, u32 first, u32 rows, u32 cols, const F& epilogue) {
    const u32 to = buffers_ + slot_ * BUFFER, lane = ptx::lane_index();
    slot_ = slot_ + 1 == SLOTS ? 0 : slot_ + 1;
    if (leads()) ptx::bulk_wait_read<SLOTS - 1>();
    meet();
    const bool odd = lane / 4 % 2;
#pragma unroll
    for (u32 i = 0; i < ROWS / 2; i += 2) {
      const float other = ptx::exchange<4>(odd ? acc[i] : acc[i + 1]);
      const float2 x = odd ? make_float2(other, acc[i + 1]) : make_float2(acc[i], other);
      const u32 row = i / 4 * 8 + fragment_col() + odd, col = 16 * warp_ + i % 4 / 2 * 8 + lane / 8 * 2;
      if (m + row < rows && first + col < cols) {
        const Pair y = epilogue(x, m + row, first + col);
        const u32 at = to + staged<ROW_BYTES>(row, col * sizeof(T));
        if constexpr (sizeof(T) == 2)
          ptx::store_shared_word(at, y.bits);
        else
          ptx::store_shared_half(at, y.bits);
      }
    }
    ptx::fence_proxy_async();
    meet();
    if (warp_ == 0)
      rows_.template store<ROW_BYTES, ROWS>(map_, Columns::column(first), m, rows, Columns::column(cols), to);
  }

 public:
  // `buffers` is the offset of the first warpgroup's in dynamic shared memory; `warp` counts within the role.
  DEVICE SwappedStagedStore(const ptx::TensorMap& map, u32 buffers, u32 warp, Rows rows = {})
      : map_(map),
        buffers_(ptx::smem_base() + buffers + warp / 4 * SLOTS * BUFFER),
        barrier_(1 + warp / 4),
        warp_(warp % 4),
        rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }

  // The warp's 16 columns of the output from n, rows from m; its warpgroup has the 64 around them.
  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    static_assert(2 * REGS % ROWS == 0);
    const u32 first = n - 16 * warp_;
#pragma unroll
    for (u32 part = 0; part < 2 * REGS / ROWS; ++part, m += ROWS) {
      if (m >= rows || first >= cols) return;
      buffer(acc + part * ROWS / 2, m, first, rows, cols, epilogue);
    }
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const {
    if (leads()) ptx::bulk_wait_read<0>();
  }
};

}  // namespace gemmgen
