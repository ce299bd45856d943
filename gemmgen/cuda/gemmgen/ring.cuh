// Rings: a cursor that walks the slots, and what filling and draining roles do at a slot's barriers.
#pragma once
#include "ptx/control.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// Walks SLOTS slots round and round; `phase` flips each time round, which is what mbarrier parities follow.
template <u32 SLOTS>
struct Cursor {
  u32 slot = 0;
  u32 phase = 0;
  DEVICE void advance() {
    if (++slot == SLOTS) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Where a K block is in its tile, for copies of a body that know it.
struct FirstBlock {
  static constexpr bool FIRST = true, LAST = false;
};
struct InnerBlock {
  static constexpr bool FIRST = false, LAST = false;
};
struct LastBlock {
  static constexpr bool FIRST = false, LAST = true;
};

// Calls `block`, which advances the cursor and is told whether another follows, for K blocks [first, last): whole rounds,
// which begin at slot FROM, are copied out, a slot known to the compiler in each copy, and what is before and behind them
// shares one copy.
template <u32 FROM = 0, u32 SLOTS, class Block>
DEVICE void rounds(Cursor<SLOTS>& at, u32 first, u32 last, const Block& block) {
  for (u32 kb = first; kb < last;) {
    if (at.slot == FROM && kb + SLOTS <= last) {
      do {
#pragma unroll
        for (u32 i = 0; i < SLOTS; ++i) {
          at.slot = (FROM + i) % SLOTS;
          block(kb + i, i + 1 < SLOTS || kb + SLOTS < last);
        }
        kb += SLOTS;
      } while (kb + SLOTS <= last);
    } else {
      block(kb, kb + 1 < last);
      ++kb;
    }
  }
}

// Address of a slot's barrier in an array of barriers at offset `first` of dynamic shared memory.
DEVICE u32 bar(u32 first, u32 slot) { return ptx::smem_base() + first + slot * 8; }

// One arrival of this warp at the barrier, in every CTA of the cluster that fills the slot.
template <u32 CLUSTER>
DEVICE void release(u32 barrier) {
  if constexpr (CLUSTER == 1) {
    if (ptx::lane_index() == 0) ptx::mbarrier_arrive(barrier);
  } else {
    if (ptx::lane_index() < CLUSTER) ptx::mbarrier_arrive_remote(barrier, ptx::lane_index());
  }
}

// The draining end of a ring whose slots hold COUNT scales for each of EVERY K blocks of a tile.
template <class Place, u32 COUNT, u32 FULL, u32 EMPTY, u32 SLOTS>
class Strips {
  static constexpr u32 EVERY = Place::EVERY;
  Cursor<SLOTS> at_;
  bool held_ = false;
  u32 place_ = 0, left_ = 0, behind_ = 0;  // where the slot's next block lies, how many it has, and the tile behind it

  // The slot goes back, every lane having read it, and the next one is waited for.
  DEVICE void turn() {
    if (held_) {
      ptx::sync_warp();
      release<1>(bar(EMPTY, at_.slot));
      at_.advance();
    }
    held_ = true;
    left_ = behind_ < EVERY ? behind_ : EVERY;
    behind_ -= left_;
    place_ = Place::address(at_.slot);
    ptx::mbarrier_wait(bar(FULL, at_.slot), at_.phase);
  }
  // Where the next block's lie.
  DEVICE u32 next() {
    if (left_ == 0) turn();
    const u32 here = place_;
    place_ += Place::BLOCK_BYTES;
    --left_;
    return here;
  }

 public:
  // A tile of so many K blocks begins.
  DEVICE void begin(u32 blocks) { behind_ = blocks; }
  // The next block's.
  DEVICE void read(float (&to)[COUNT]) { Place::read(to, next()); }
  // Nobody needs the next block's. Slots go back as others' do who read them, or the ring of factors would wait for this
  // warp, this one for its strip, and that for those who wait for factors.
  DEVICE void pass() { next(); }
};

// Likewise for a slot that the warp's lanes have read themselves. Loads may still be in flight when the barrier is
// arrived at, and are not ordered before what the copy engine writes next unless a proxy fence stands between: an H100
// does overwrite what ldmatrix has yet to read.
template <u32 CLUSTER>
DEVICE void release_read(u32 barrier) {
  ptx::fence_proxy_async();
  ptx::sync_warp();
  release<CLUSTER>(barrier);
}

}  // namespace gemmgen
