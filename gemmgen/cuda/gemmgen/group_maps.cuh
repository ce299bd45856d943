// Tensor maps of factors that are matrices of their own for every group of k: the thread that copies boxes edits them.
#pragma once
#include "gemmgen/ring.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/tma.cuh"

namespace gemmgen {

// A's and B's maps of the group whose tile is loaded. [m, k] and [n, k] of a group lie behind those of the group before it,
// k contiguous. `maps` has room for two of each factor and CTA: copies made with those of the group before may still be under
// way, not those of the group before that. They are edited MAPS bytes into dynamic shared memory; boxes go to a ring of
// SLOTS slots, whose barriers EMPTY say that a slot's copies have landed in every CTA of the cluster.
template <u32 MAPS, u32 SLOTS, u32 EMPTY>
class GroupMaps {
  static constexpr u32 CHUNKS = sizeof(ptx::TensorMap) / 16;
  ptx::TensorMap* maps_;
  u32 turn_ = 1, group_ = ~0u;
  u32 since_ = 0;                        // K blocks since the last change of groups
  Cursor<SLOTS> last_ = {SLOTS - 1, 1};  // the last of those before

  DEVICE static u32 edited(u32 factor) { return ptx::smem_base() + MAPS + factor * u32(sizeof(ptx::TensorMap)); }

  DEVICE static void begin(u32 factor, const ptx::TensorMap& from) {
    const u64* x = from.opaque;
#pragma unroll
    for (u32 i = 0; i < CHUNKS; ++i)
      ptx::store_shared_words(edited(factor) + 16 * i, u32(x[2 * i]), u32(x[2 * i] >> 32), u32(x[2 * i + 1]), u32(x[2 * i + 1] >> 32));
  }

  // The factor has `rows` rows a group; this group's k begins at `k` and is `count` long, both whole K blocks: so no box
  // reaches past it, and the extent may stay that of all groups.
  DEVICE void edit(u32 factor, const void* all, u32 rows, u32 k, u32 count) {
    ptx::replace_map_address(edited(factor), static_cast<const u8*>(all) + u64(rows) * k);
    ptx::replace_map_pitch<0>(edited(factor), count);
    uint4* to = reinterpret_cast<uint4*>(maps_ + 2 * turn_ + factor);
#pragma unroll
    for (u32 i = 0; i < CHUNKS; ++i)
      ptx::load_shared_words(edited(factor) + 16 * i, to[i].x, to[i].y, to[i].z, to[i].w);
  }

 public:
  DEVICE GroupMaps(ptx::TensorMap* maps, const ptx::TensorMap& a, const ptx::TensorMap& b)
      : maps_(maps + 4 * ptx::cta_index()) {
    begin(0, a);
    begin(1, b);
  }
  DEVICE const ptx::TensorMap& a() const { return maps_[2 * turn_]; }
  DEVICE const ptx::TensorMap& b() const { return maps_[2 * turn_ + 1]; }

  // In front of a tile's `blocks` K blocks, one at least, of which the first goes to slot `next`. All groups' factors begin at
  // `a` and `b`, which have `m` and `n` rows a group.
  template <class Tile>
  DEVICE void of(const Tile& tile, u32 blocks, Cursor<SLOTS> next, const void* a, const void* b, u32 m, u32 n) {
    if (tile.group() != group_) {
      // Were fewer blocks copied since than there are slots, the older maps may be in use.
      if (since_ < SLOTS) ptx::mbarrier_wait(bar(EMPTY, last_.slot), last_.phase);
      since_ = 0;
      last_ = next.slot ? Cursor<SLOTS>{next.slot - 1, next.phase} : Cursor<SLOTS>{SLOTS - 1, next.phase ^ 1};
      group_ = tile.group();
      turn_ ^= 1;
      edit(0, a, m, tile.k(), tile.k_count());
      edit(1, b, n, tile.k(), tile.k_count());
      ptx::release_maps();
      ptx::acquire_map(&this->a());
      ptx::acquire_map(&this->b());
    }
    since_ += blocks;
  }
};

}  // namespace gemmgen
