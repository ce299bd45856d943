// Layout kernels: a matrix in one memory order becomes the same matrix in another, a tile at a time through shared memory.
// "Lines" run along the contiguous axis, rows or columns as the case may be, and are counted in bytes.
#pragma once
#include "gemmgen/schedule.cuh"
#include "ptx/bytes.cuh"
#include "ptx/control.cuh"
#include "ptx/memory.cuh"
#include "ptx/special.cuh"

namespace gemmgen {

// What `count` elements of BITS bits take, two 4-bit ones a byte; and that rounded up to chunks.
template <u32 BITS>
DEVICE u64 bytes_of(u32 count) {
  return (u64(count) * BITS + 7) / 8;
}
DEVICE u64 whole_chunks(u64 bytes) { return (bytes + 15) / 16 * 16; }

// Lines of `bytes` bytes that start `pitch` bytes apart; whole chunks of 16 are moved at once where addresses allow.
struct Lines {
  u64 pitch, bytes;
  u32 count;
  bool wide;

  DEVICE Lines(u64 address, u64 pitch, u32 count, u64 bytes)
      : pitch(pitch), bytes(bytes), count(count), wide((address | pitch) % 16 == 0) {}
  // Whether `lines` lines from `line` on have a chunk at `byte`, all of it.
  DEVICE bool whole(u32 line, u32 lines, u64 byte) const { return wide && line + lines <= count && byte + 16 <= bytes; }
  // How many bytes of a chunk a line has.
  DEVICE u32 left(u32 line, u64 byte) const {
    return line >= count || byte >= bytes ? 0 : bytes - byte < 16 ? u32(bytes - byte) : 16;
  }
};

struct Source : Lines {
  const u8* from;
  template <class T>
  DEVICE Source(const T* from, u64 stride, u32 count, u64 bytes)
      : Lines(reinterpret_cast<u64>(from), stride * sizeof(T), count, bytes), from(reinterpret_cast<const u8*>(from)) {}

  // 16 bytes of a line; 0 where it has ended.
  DEVICE uint4 partial(u32 line, u64 byte) const {
    const u32 there = left(line, byte);
    const u8* chunk = from + line * pitch + byte;
    uint4 x = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (u32 i = 0; i < 16; i += 4) {
      u32 word = 0;
#pragma unroll
      for (u32 j = 0; j < 4; ++j)
        if (i + j < there) word |= u32(chunk[i + j]) << 8 * j;
      x = make_uint4(x.y, x.z, x.w, word);
    }
    return x;
  }

  // A chunk of each of N lines, or of N chunks of one line.
  template <u32 N>
  DEVICE void strip(u32 line, u64 byte, uint4 (&x)[N]) const {
    if (whole(line, N, byte)) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[i] = ptx::load_16(from + (line + i) * pitch + byte);
    } else {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[i] = partial(line + i, byte);
    }
  }
  template <u32 N>
  DEVICE void run(u32 line, u64 byte, uint4 (&x)[N]) const {
    if (whole(line, 1, byte + (N - 1) * 16)) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[i] = ptx::load_16(from + line * pitch + byte + i * 16);
    } else {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[i] = partial(line, byte + i * 16);
    }
  }
};

struct Destination : Lines {
  u8* to;
  template <class T>
  DEVICE Destination(T* to, u64 stride, u32 count, u64 bytes)
      : Lines(reinterpret_cast<u64>(to), stride * sizeof(T), count, bytes), to(reinterpret_cast<u8*>(to)) {}

  DEVICE void store(u32 line, u64 byte, uint4 x) const {
    u8* chunk = to + line * pitch + byte;
    if (whole(line, 1, byte)) {
      ptx::store_16(chunk, x);
      return;
    }
    const u32 room = left(line, byte);
#pragma unroll 1
    for (u32 i = 0; i < room; ++i) {
      chunk[i] = u8(x.x);
      x = make_uint4(x.x >> 8 | x.y << 24, x.y >> 8 | x.z << 24, x.z >> 8 | x.w << 24, x.w >> 8);
    }
  }
};

// A square of N x N elements of 32 / N bits, a word a line: element i of word j becomes element j of word i.
DEVICE void turn(u32 (&)[1]) {}
DEVICE void turn(u32 (&x)[2]) {
  const u32 low = ptx::permute_bytes(x[0], x[1], 0x5410), high = ptx::permute_bytes(x[0], x[1], 0x7632);
  x[0] = low, x[1] = high;
}
DEVICE void turn(u32 (&x)[4]) {
  const u32 a = ptx::permute_bytes(x[0], x[1], 0x5140), b = ptx::permute_bytes(x[0], x[1], 0x7362);
  const u32 c = ptx::permute_bytes(x[2], x[3], 0x5140), d = ptx::permute_bytes(x[2], x[3], 0x7362);
  x[0] = ptx::permute_bytes(a, c, 0x5410), x[1] = ptx::permute_bytes(a, c, 0x7632);
  x[2] = ptx::permute_bytes(b, d, 0x5410), x[3] = ptx::permute_bytes(b, d, 0x7632);
}
// 4-bit elements: lines 2i and 2i + 1 are paired in a byte, the first in its low half; then bytes are turned.
DEVICE void turn(u32 (&x)[8]) {
  u32 even[4], odd[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 first = x[2 * i], second = x[2 * i + 1];
    even[i] = (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4;
    odd[i] = (first & 0xf0f0f0f0) >> 4 | (second & 0xf0f0f0f0);
  }
  turn(even), turn(odd);
#pragma unroll
  for (u32 i = 0; i < 4; ++i) x[2 * i] = even[i], x[2 * i + 1] = odd[i];
}

// 32 strips by 8 chunks of a tile. A strip is N source lines; of each chunk's 4 N elements a thread makes 4 N words of N
// elements, which lie in shared memory as 32 N lines of 128 bytes: those of the destination. Chunks of 16 bytes in a line
// are smem_swizzled by the source chunk that the line came from, so that neither side meets in a bank.
template <u32 BITS>
struct Turned {
  static constexpr u32 N = 32 / BITS;
  static constexpr u32 LINES = 32 * N;
  static constexpr u32 LINE_BYTES = 128;

  DEVICE static void put(u32 strip, u32 chunk, uint4 (&x)[N]) {
    const u32 at = ptx::smem_base() + chunk * 4 * N * LINE_BYTES + (strip * 4 ^ chunk * 16);
    u32 word[4][N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) word[0][i] = x[i].x, word[1][i] = x[i].y, word[2][i] = x[i].z, word[3][i] = x[i].w;
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
      turn(word[w]);
#pragma unroll
      for (u32 i = 0; i < N; ++i) ptx::store_shared_word(at + (w * N + i) * LINE_BYTES, word[w][i]);
    }
  }

  DEVICE static uint4 get(u32 line, u32 chunk) {
    return ptx::load_shared_16(ptx::smem_base() + line * LINE_BYTES + (chunk ^ line / (4 * N)) * 16);
  }
};

// By all THREADS of a CTA: the tile whose first source line is `line` and whose lines begin at `byte`.
template <u32 BITS, u32 THREADS>
DEVICE void read_tile(const Source& source, u32 line, u64 byte) {
  using Tile = Turned<BITS>;
#pragma unroll
  for (u32 done = 0; done < 256; done += THREADS) {
    const u32 i = done + ptx::thread_index();
    uint4 x[Tile::N];
    source.strip(line + i / 8 * Tile::N, byte + i % 8 * 16, x);
    Tile::put(i / 8, i % 8, x);
  }
}

// The UE8M0 byte of an fp32 number's bits: its exponent if it has nothing else, 0 also for 2**-127, and NaN for others.
DEVICE u32 ue8m0(u32 bits) {
  const bool power = (bits & 0x807fffff) == 0;
  return power ? bits >> 23 : bits == 0x00400000 ? 0 : 0xff;
}
// Of four numbers, the first in the low byte.
DEVICE u32 ue8m0_word(uint4 x) { return ue8m0(x.x) | ue8m0(x.y) << 8 | ue8m0(x.z) << 16 | ue8m0(x.w) << 24; }

// Scales in fp32, four along a line to a word. A source line is read for REPEAT of the `lines` lines there are of words.
template <u32 REPEAT, u32 THREADS>
DEVICE void read_scales(const Source& source, u32 line, u32 lines, u64 byte) {
#pragma unroll
  for (u32 done = 0; done < 256; done += THREADS) {
    const u32 i = done + ptx::thread_index();
    uint4 x[4] = {}, word[1];
    if (line + i / 8 < lines) source.run((line + i / 8) / REPEAT, byte + i % 8 * 64, x);
    word[0] = make_uint4(ue8m0_word(x[0]), ue8m0_word(x[1]), ue8m0_word(x[2]), ue8m0_word(x[3]));
    Turned<32>::put(i / 8, i % 8, word);
  }
}

template <u32 BITS, u32 THREADS>
DEVICE void write_tile(const Destination& destination, u32 line, u64 byte) {
  using Tile = Turned<BITS>;
#pragma unroll
  for (u32 done = 0; done < Tile::LINES * 8; done += THREADS) {
    const u32 i = done + ptx::thread_index();
    destination.store(line + i / 8, byte + i % 8 * 16, Tile::get(i / 8, i % 8));
  }
}

}  // namespace gemmgen
