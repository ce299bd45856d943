// From accumulators to global memory, one warp's 16 rows at a time, so that no warp waits for another.
#pragma once
#include "gemmgen/columns.cuh"
#include "gemmgen/fragment.cuh"
#include "gemmgen/pair.cuh"
#include "gemmgen/staged_rows.cuh"
#include "gemmgen/swizzle.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/pin.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// Two neighbours of the output type in registers.
template <class T>
struct PairOf;
template <>
struct PairOf<bf16> {
  using type = bf16x2;
};
template <>
struct PairOf<f16> {
  using type = f16x2;
};
template <>
struct PairOf<e4m3> {
  using type = e4m3x2;
};
template <>
struct PairOf<e5m2> {
  using type = e5m2x2;
};
template <>
struct PairOf<float> {
  using type = float2;
};

// Staged through SLOTS buffers of 16 rows x ROW_BYTES a warp and written by TMA, which clips at the matrix's edge. TURN
// buffers share a fence and a group of copies, each of which takes as long as filling a buffer does.
template <class T, u32 ROW_BYTES, u32 SLOTS, class Columns = SideBySide, class Rows = Clipped, u32 TURN = 1>
class StagedStore {
  static_assert(SLOTS % TURN == 0);

 public:
  static constexpr u32 COLS = ROW_BYTES / sizeof(T);  // columns at a time

 private:
  static constexpr u32 BUFFER = 16 * ROW_BYTES;
  static constexpr u32 NOWHERE = ~0u;  // behind the last column
  using Pair = typename PairOf<T>::type;
  const ptx::TensorMap& map_;
  u32 buffers_;
  u32 slot_ = 0;
  Rows rows_;
  struct {
    u32 from, m, n, rows;
  } staged_{0, 0, NOWHERE, 0};  // what `copy` is for

  // Waits until the next turn's buffers are free and gives the address of the first.
  DEVICE u32 begin() const {
    const u32 to = buffers_ + slot_ * BUFFER;
    if (ptx::lane_index() == 0) ptx::bulk_wait_read<SLOTS / TURN - 1>();
    ptx::sync_warp();
    return to;
  }

  DEVICE void advance() { slot_ = slot_ + TURN == SLOTS ? 0 : slot_ + TURN; }

  // Copies the turn's buffers, which hold `left` columns from n or, if they end before, those up to `cols`.
  DEVICE void end(u32 to, u32 m, u32 n, u32 rows, u32 cols, u32 left) {
    ptx::fence_proxy_async();
    ptx::sync_warp();
    send(to, m, n, rows, cols, left);
    advance();
  }

  DEVICE void send(u32 to, u32 m, u32 n, u32 rows, u32 cols, u32 left) {
    if constexpr (TURN == 1) {
      rows_.template store<ROW_BYTES>(map_, Columns::column(n), m, rows, Columns::column(cols), to);
    } else if (const bool leads = ptx::lane_index() == 0; leads || Rows::BY_LANES) {
#pragma unroll
      for (u32 i = 0; i < TURN; ++i)
        if (i == 0 || (i * COLS < left && n + i * COLS < cols))
          rows_.template store<ROW_BYTES, 16, false>(map_, Columns::column(n + i * COLS), m, rows, Columns::column(cols),
                                                     to + i * BUFFER, leads);
      if (leads) ptx::bulk_commit();
    }
  }

  // What the epilogue makes of the thread's pairs in columns from n. `pair` counts those before them.
  template <u32 GROUPS, class F, class N>
  DEVICE static void finish_pairs(Pair (&x)[GROUPS][2], const float* acc, u32 m, N n, u32 pair, const F& epilogue) {
    const u32 row = ptx::lane_index() / 4;
#pragma unroll
    for (u32 j = 0; j < GROUPS; ++j)
#pragma unroll
      for (u32 h = 0; h < 2; ++h)
        x[j][h] = finished(epilogue, make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]), m + row + 8 * h,
                           n + 8 * j + fragment_col(), h, pair + j);
  }

  DEVICE static void write(u32 to, const float2 (&x)[COLS / 8][2]) {
    const u32 row = ptx::lane_index() / 4;
#pragma unroll
    for (u32 j = 0; j < COLS / 8; ++j)
#pragma unroll
      for (u32 h = 0; h < 2; ++h)
        ptx::store_shared(to + staged<ROW_BYTES>(row + 8 * h, (8 * j + fragment_col()) * 4), x[j][h]);
  }

  // Pairs of 8-bit numbers, or of 16-bit ones, which stmatrix takes as they lie.
  template <class Two>
  DEVICE static void write(u32 to, const Two (&x)[COLS / 8][2]) {
    const u32 row = ptx::lane_index() % 16, right = ptx::lane_index() / 16;
    if constexpr (sizeof(T) == 1) {
#pragma unroll
      for (u32 j = 0; j < COLS / 8; ++j)
#pragma unroll
        for (u32 h = 0; h < 2; ++h)
          ptx::store_shared_half(to + staged<ROW_BYTES>(ptx::lane_index() / 4 + 8 * h, 8 * j + fragment_col()),
                                 x[j][h].bits);
    } else if constexpr (COLS == 8) {
      ptx::stmatrix_x2(to + staged<ROW_BYTES>(row, 0), x[0][0].bits, x[0][1].bits);
    } else {
#pragma unroll
      for (u32 j = 0; j < COLS / 8; j += 2)
        ptx::stmatrix_x4(to + staged<ROW_BYTES>(row, (j + right) * 16), x[j][0].bits, x[j][1].bits, x[j + 1][0].bits,
                         x[j + 1][1].bits);
    }
  }

  // A turn's buffers at `to`, of ALL columns those from `col`; `fill` is told the first one's place among them.
  template <u32 ALL, class Fill>
  DEVICE static void fill_turn(u32 to, u32 col, const Fill& fill) {
#pragma unroll
    for (u32 i = 0; i < TURN && col + i * COLS < ALL; ++i) {
      Pair x[COLS / 8][2];
      fill(x, col + i * COLS);
      write(to + i * BUFFER, x);
    }
  }

  // Columns from n, ALL of them or up to `cols`, turn by turn.
  template <u32 ALL, class Fill>
  DEVICE void turns(u32 m, u32 n, u32 rows, u32 cols, const Fill& fill) {
#pragma unroll
    for (u32 col = 0; col < ALL; col += TURN * COLS) {
      if (m >= rows || n + col >= cols) return;
      const u32 to = begin();
      fill_turn<ALL>(to, col, fill);
      end(to, m, n + col, rows, cols, ALL - col);
    }
  }

 public:
  // `buffers` is the offset of warp 0's staging buffers in dynamic shared memory; `warp` counts within the role.
  DEVICE StagedStore(const ptx::TensorMap& map, u32 buffers, u32 warp, Rows rows = {})
      : map_(map), buffers_(ptx::smem_base() + buffers + warp * SLOTS * BUFFER), rows_(rows) {}
  DEVICE Rows& rows() { return rows_; }

  // The warp's 16 rows from row m, columns from n. What lies beside columns is read for all of them at once, so that a
  // warp waits for memory once and not for every buffer.
  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    constexpr u32 ALL = 2 * REGS;
    if constexpr (READS_PAIRS<F>) {
      if (m >= rows || n >= cols) return;
      Pair x[REGS / 4][2];
      at_column(epilogue, n, ALL, cols, [&](auto first) { finish_pairs(x, acc, m, first, 0, epilogue); });
      turns<ALL>(m, n, rows, cols, [&](Pair(&y)[COLS / 8][2], u32 col) {
#pragma unroll
        for (u32 i = 0; i < COLS / 4; ++i) y[i / 2][i % 2] = x[col / 8 + i / 2][i % 2];
      });
    } else if constexpr (TURN > 1) {
      turns<ALL>(m, n, rows, cols, [&](Pair(&x)[COLS / 8][2], u32 col) {
        finish_pairs(x, acc + col / 2, m, n + col, col / 8, epilogue);
      });
    } else {
      // Chains that read matrices come here. A function that fills a buffer has their reads in another order.
#pragma unroll
      for (u32 col = 0; col < ALL; col += COLS) {
        if (m >= rows || n + col >= cols) return;
        const u32 to = begin();
        Pair x[COLS / 8][2];
        finish_pairs(x, acc + col / 2, m, n + col, col / 8, epilogue);
        write(to, x);
        end(to, m, n + col, rows, cols, ALL - col);
      }
    }
  }

  // Likewise, for a block of one turn that stays in its buffers until `copy`: a fence takes long, and longer while products
  // are in flight. Nothing is asked of edges before.
  template <u32 REGS, class F>
  DEVICE void stage(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
    static_assert(2 * REGS == TURN * COLS && !READS_PAIRS<F>);
    u32 to = begin();
    // Where lanes write numbers of 32 bits would else be held through the K loop, and sums spilled for it.
    if constexpr (sizeof(T) == 4) ptx::pin(to);
    staged_ = {to, m, n, rows};
    fill_turn<2 * REGS>(to, 0, [&](Pair(&x)[COLS / 8][2], u32 col) {
      finish_pairs(x, acc + col / 2, m, n + col, col / 8, epilogue);
    });
    advance();
  }
  DEVICE void copy(u32 cols) {
    const auto [from, m, n, rows] = staged_;
    ptx::fence_proxy_async();
    ptx::sync_warp();
    if (m < rows && n < cols)
      send(from, m, n, rows, cols, TURN * COLS);
    else if (ptx::lane_index() == 0)
      ptx::bulk_commit();  // an empty group: buffers are counted by groups
    staged_.n = NOWHERE;
  }

  // Shared memory may not go away while copies still read it.
  DEVICE void finish() const {
    if (ptx::lane_index() == 0) ptx::bulk_wait_read<0>();
  }
};

// Two neighbours to global memory, or the first alone.
template <class T, class Pair>
DEVICE void put(T* to, Pair x, bool second) {
  to[0].bits = x.bits;
  if (second) to[1].bits = x.bits >> 8 * sizeof(T);
}
DEVICE void put(float* to, float2 x, bool second) {
  to[0] = x.x;
  if (second) to[1] = x.y;
}

// A value of the chain, columns n and n + 1 of row m, rounded to another output as well; gives it back as it was.
template <class T>
DEVICE float2 keep(float2 x, T* to, u64 stride, u32 m, u32 n, u32 rows, u32 cols) {
  using Pair = typename PairOf<T>::type;
  if (m >= rows || n >= cols) return x;
  const Pair y = cast<Pair>(x);
  T* at = to + m * stride + n;
  if (n + 1 < cols && reinterpret_cast<u64>(at) % sizeof(Pair) == 0)
    *reinterpret_cast<Pair*>(at) = y;
  else
    put(at, y, n + 1 < cols);
  return x;
}

// Adds what lies where two neighbours, or the first alone, are to go, if the columns are added to.
template <class Columns, class Pair, class T>
DEVICE void add_held(Pair& x, const T* at, bool second) {
  if constexpr (Columns::ADDS) {
    x.x += at[0];
    if (second) x.y += at[1];
  }
}

// Straight from registers with bounds checks, for outputs whose pitch TMA cannot store to.
template <class T, class Columns = SideBySide>
class DirectStore {
  T* to_;
  u64 stride_;

 public:
  enum : u32 { COLS = 8 };  // at a time

  DEVICE DirectStore(T* to, u64 stride) : to_(to), stride_(stride) {}

  // Columns n and n + 1 of a row inside the matrix; the second may lie past its edge.
  template <class Pair>
  DEVICE void pair(u32 row, u32 col, u32 cols, Pair x) const {
    T* const to = to_ + row * stride_ + Columns::column(col);
    add_held<Columns>(x, to, col + 1 < cols);
    put(to, x, col + 1 < cols);
  }

  template <u32 REGS, class F>
  DEVICE void block(const float (&acc)[REGS], u32 m, u32 n, u32 rows, u32 cols, const F& epilogue) {
#pragma unroll
    for (u32 i = 0; i < REGS; i += 2) {
      const u32 h = i % 4 / 2, j = i / 4;
      const u32 row = m + ptx::lane_index() / 4 + h * 8;
      const u32 col = n + j * 8 + fragment_col();
      if (row >= rows || col >= cols) continue;
      pair(row, col, cols, finished(epilogue, make_float2(acc[i], acc[i + 1]), row, col, h, j));
    }
  }

  DEVICE void finish() const {}
};

}  // namespace gemmgen
