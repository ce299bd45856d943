// tcgen05: from registers to tensor memory, and products that read A there (PTX 8.6, sm_100a).
#pragma once
#include "ptx/tcgen05.cuh"

namespace ptx {

// tcgen05.st 32x32b: COLUMNS columns of this lane's row, one register each, there after tmem_wait_store.
template <u32 COLUMNS>
struct TmemStore;

#define GEMMGEN_IN_4(x, i) "r"(x[i]), "r"(x[i + 1]), "r"(x[i + 2]), "r"(x[i + 3])
#define GEMMGEN_IN_16(x, i) GEMMGEN_IN_4(x, i), GEMMGEN_IN_4(x, i + 4), GEMMGEN_IN_4(x, i + 8), GEMMGEN_IN_4(x, i + 12)
#define GEMMGEN_IN_32(x, i) GEMMGEN_IN_16(x, i), GEMMGEN_IN_16(x, i + 16)
#define GEMMGEN_LIST_4 "%0, %1, %2, %3"

template <>
struct TmemStore<4> {
  DEVICE static void from(const u32 (&x)[4], u32 to) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x4.b32 [%4], {" GEMMGEN_LIST_4 "};" ::GEMMGEN_IN_4(x, 0), "r"(to)
                 : "memory");
  }
};

template <>
struct TmemStore<32> {
  DEVICE static void from(const u32 (&x)[32], u32 to) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {" GEMMGEN_LIST_32 "};" ::GEMMGEN_IN_32(x, 0), "r"(to)
                 : "memory");
  }
};

// tcgen05.wait::st
DEVICE void tmem_wait_store() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

template <>
struct TmemLoad<4> {
  DEVICE static void to(float (&x)[4], u32 from) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {" GEMMGEN_LIST_4 "}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from));
  }
};

// tcgen05.mma kind::tf32 with a in tensor memory, a column for each element of k.
DEVICE void tcgen05_mma_tf32_tmem(u32 d, u32 a, u64 b, u32 shape, u32 accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::tf32 [%0], [%1], %2, %3, p; }" ::"r"(d),
      "r"(a), "l"(b), "r"(shape), "r"(accumulate)
      : "memory");
}

}  // namespace ptx
