// A schedule in which a cluster has one tile and its CTAs share the K blocks, and how slices of their sums meet at the CTAs
// that own them.
#pragma once
#include "gemmgen/ring.cuh"
#include "gemmgen/schedule.cuh"

namespace gemmgen {

// One tile a cluster of SPLITS CTAs. Tiles go down the columns, so that CTAs which run at a time share weights.
template <u32 TILE_M, u32 TILE_N, u32 SPLITS>
class ClusterSplitK {
  u32 m_, n_, split_;

  // The first K block of a split: what is left over goes one each to the first ones.
  DEVICE static u32 start(u32 k_blocks, u32 split) {
    const u32 share = k_blocks / SPLITS, more = k_blocks % SPLITS;
    return share * split + (split < more ? split : more);
  }

 public:
  DEVICE ClusterSplitK(u32 m, u32 n) : split_(SPLITS == 1 ? 0 : ptx::cluster_rank()) {
    const u32 tile = ptx::cta_index() / SPLITS, rows = ceil_div(m, TILE_M);
    const u32 col = rows == 1 ? tile : tile / rows;  // a division is slow, and the first copies wait for it
    m_ = (tile - col * rows) * TILE_M;
    n_ = col * TILE_N;
  }
  DEVICE u32 m() const { return m_; }
  DEVICE u32 n() const { return n_; }
  DEVICE u32 split() const { return split_; }
  DEVICE u32 first(u32 k_blocks) const { return start(k_blocks, split_); }
  DEVICE u32 last(u32 k_blocks) const { return start(k_blocks, split_ + 1); }
};

// A slice is COLUMNS columns of a warp's 16 rows of the product, which is WIDTH columns wide. Slices are counted warp by
// warp, then column by column, and every PER of them belong to the next CTA of the cluster. It has room at BUFFERS for what
// each CTA has of them, and the barrier at FULL counts the bytes of the others. Own sums lie there too, for order is that of
// ranks; a thread adds up what it put there itself.
template <u32 BUFFERS, u32 FULL, u32 SPLITS, u32 WARPS, u32 WIDTH, u32 COLUMNS>
class Push {
  static constexpr u32 SLICES = WIDTH / COLUMNS * WARPS;
  static constexpr u32 PER = (SLICES + SPLITS - 1) / SPLITS;
  static constexpr u32 QUADS = COLUMNS / 8;  // 16 bytes a lane
  static constexpr u32 SLICE_BYTES = QUADS * 512;

  // Where this lane's first quad of a slice lies, of those that a CTA owns, as the CTA `from` has it.
  DEVICE static u32 place(u32 from, u32 owned) {
    return ptx::smem_base() + BUFFERS + (from * PER + owned) * SLICE_BYTES + ptx::lane_index() * 16;
  }
  DEVICE static u32 full() { return bar(FULL, 0); }
  // The slice behind the last one of a CTA; with an uneven share the last CTAs own fewer, or none.
  DEVICE static u32 end(u32 rank) { return (rank + 1) * PER < SLICES ? (rank + 1) * PER : SLICES; }

 public:
  DEVICE static void init() { ptx::mbarrier_init(full(), 1); }

  // The whole of what a CTA will be sent by others, told to its barrier at once.
  DEVICE static void expect(u32 rank) {
    const u32 owned = rank * PER < SLICES ? end(rank) - rank * PER : 0;
    ptx::mbarrier_arrive_expect_tx(full(), owned * (SPLITS - 1) * SLICE_BYTES);
  }

  // This warp's sums go to the CTAs that own them; these must have initialised their barriers.
  DEVICE static void push(const float (&acc)[WIDTH / 2], u32 warp, u32 rank) {
#pragma unroll
    for (u32 col = 0; col < WIDTH / COLUMNS; ++col) {
      const u32 slice = col * WARPS + warp, owner = slice / PER, here = place(rank, slice - owner * PER);
      const float* const sums = acc + 4 * col * QUADS;
      if (owner == rank) {
#pragma unroll
        for (u32 quad = 0; quad < QUADS; ++quad) ptx::store_shared_quad(here + quad * 512, sums + 4 * quad);
      } else {
        const u32 there = ptx::map_to_cta(here, owner), barrier = ptx::map_to_cta(full(), owner);
#pragma unroll
        for (u32 quad = 0; quad < QUADS; ++quad) ptx::store_async(there + quad * 512, sums + 4 * quad, barrier);
      }
    }
  }

  // Runs `body` on the sums of all CTAs, and the first column, of each slice of this warp's rows that the CTA owns. A CTA
  // whose warps have passed here has been sent all that it will be: it may exit.
  template <class Body>
  DEVICE static void finish(u32 warp, u32 rank, const Body& body) {
    const u32 start = rank * PER;
    u32 col = (start + WARPS - 1 - warp) / WARPS;
    if (col * WARPS + warp >= end(rank)) return;
    ptx::mbarrier_wait_cluster(full(), 0);
    for (; col * WARPS + warp < end(rank); ++col) {
      float sums[COLUMNS / 2] = {};
#pragma unroll
      for (u32 from = 0; from < SPLITS; ++from)
#pragma unroll
        for (u32 quad = 0; quad < QUADS; ++quad) {
          const float4 x = ptx::load_shared_quad(place(from, col * WARPS + warp - start) + quad * 512);
          float* to = sums + 4 * quad;
          to[0] += x.x, to[1] += x.y, to[2] += x.z, to[3] += x.w;
        }
      body(sums, col * COLUMNS);
    }
  }
};

}  // namespace gemmgen
