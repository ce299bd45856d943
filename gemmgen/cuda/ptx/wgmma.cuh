// wgmma: the warpgroup matrix instruction of Hopper. The only file that knows its operand lists.
#pragma once
#include "ptx/pin.cuh"
#include "ptx/types.cuh"

namespace ptx {

// wgmma.fence.sync.aligned, PTX 8.0, sm_90a
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// wgmma.commit_group.sync.aligned, PTX 8.0, sm_90a
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// wgmma.wait_group.sync.aligned, PTX 8.0, sm_90a
template <u32 PENDING>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Shared-memory matrix descriptor, PTX ISA "Matrix Descriptor Format": address, leading and stride byte offsets in
// units of 16 bytes, 128-byte smem_swizzle.
DEVICE u64 smem_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  return u64(address >> 4) | u64(leading_bytes >> 4) << 16 | u64(stride_bytes >> 4) << 32 | u64(1) << 62;
}

// Wgmma<N>: d[64 x N] (+)= a * b, 32 bytes of k a call, a and b read from shared memory through descriptors.
// `accumulate` 0 overwrites d. TRANSPOSE_A/B 1 read an operand whose m (n) axis is contiguous.
template <u32 N>
struct Wgmma;

// Register lists: TEXT_n names n/2 accumulators in the instruction text, REGS_n binds them.

#define GEMMGEN_TEXT_8 "%0, %1, %2, %3"
#define GEMMGEN_REGS_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define GEMMGEN_TEXT_16 GEMMGEN_TEXT_8 ", %4, %5, %6, %7"
#define GEMMGEN_REGS_16 GEMMGEN_REGS_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define GEMMGEN_TEXT_24 GEMMGEN_TEXT_16 ", %8, %9, %10, %11"
#define GEMMGEN_REGS_24 GEMMGEN_REGS_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define GEMMGEN_TEXT_32 GEMMGEN_TEXT_24 ", %12, %13, %14, %15"
#define GEMMGEN_REGS_32 GEMMGEN_REGS_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define GEMMGEN_TEXT_40 GEMMGEN_TEXT_32 ", %16, %17, %18, %19"
#define GEMMGEN_REGS_40 GEMMGEN_REGS_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define GEMMGEN_TEXT_48 GEMMGEN_TEXT_40 ", %20, %21, %22, %23"
#define GEMMGEN_REGS_48 GEMMGEN_REGS_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define GEMMGEN_TEXT_56 GEMMGEN_TEXT_48 ", %24, %25, %26, %27"
#define GEMMGEN_REGS_56 GEMMGEN_REGS_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define GEMMGEN_TEXT_64 GEMMGEN_TEXT_56 ", %28, %29, %30, %31"
#define GEMMGEN_REGS_64 GEMMGEN_REGS_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define GEMMGEN_TEXT_72 GEMMGEN_TEXT_64 ", %32, %33, %34, %35"
#define GEMMGEN_REGS_72 GEMMGEN_REGS_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define GEMMGEN_TEXT_80 GEMMGEN_TEXT_72 ", %36, %37, %38, %39"
#define GEMMGEN_REGS_80 GEMMGEN_REGS_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define GEMMGEN_TEXT_88 GEMMGEN_TEXT_80 ", %40, %41, %42, %43"
#define GEMMGEN_REGS_88 GEMMGEN_REGS_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define GEMMGEN_TEXT_96 GEMMGEN_TEXT_88 ", %44, %45, %46, %47"
#define GEMMGEN_REGS_96 GEMMGEN_REGS_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define GEMMGEN_TEXT_104 GEMMGEN_TEXT_96 ", %48, %49, %50, %51"
#define GEMMGEN_REGS_104 GEMMGEN_REGS_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define GEMMGEN_TEXT_112 GEMMGEN_TEXT_104 ", %52, %53, %54, %55"
#define GEMMGEN_REGS_112 GEMMGEN_REGS_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define GEMMGEN_TEXT_120 GEMMGEN_TEXT_112 ", %56, %57, %58, %59"
#define GEMMGEN_REGS_120 GEMMGEN_REGS_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define GEMMGEN_TEXT_128 GEMMGEN_TEXT_120 ", %60, %61, %62, %63"
#define GEMMGEN_REGS_128 GEMMGEN_REGS_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define GEMMGEN_TEXT_136 GEMMGEN_TEXT_128 ", %64, %65, %66, %67"
#define GEMMGEN_REGS_136 GEMMGEN_REGS_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define GEMMGEN_TEXT_144 GEMMGEN_TEXT_136 ", %68, %69, %70, %71"
#define GEMMGEN_REGS_144 GEMMGEN_REGS_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define GEMMGEN_TEXT_152 GEMMGEN_TEXT_144 ", %72, %73, %74, %75"
#define GEMMGEN_REGS_152 GEMMGEN_REGS_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define GEMMGEN_TEXT_160 GEMMGEN_TEXT_152 ", %76, %77, %78, %79"
#define GEMMGEN_REGS_160 GEMMGEN_REGS_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define GEMMGEN_TEXT_168 GEMMGEN_TEXT_160 ", %80, %81, %82, %83"
#define GEMMGEN_REGS_168 GEMMGEN_REGS_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define GEMMGEN_TEXT_176 GEMMGEN_TEXT_168 ", %84, %85, %86, %87"
#define GEMMGEN_REGS_176 GEMMGEN_REGS_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define GEMMGEN_TEXT_184 GEMMGEN_TEXT_176 ", %88, %89, %90, %91"
#define GEMMGEN_REGS_184 GEMMGEN_REGS_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define GEMMGEN_TEXT_192 GEMMGEN_TEXT_184 ", %92, %93, %94, %95"
#define GEMMGEN_REGS_192 GEMMGEN_REGS_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define GEMMGEN_TEXT_200 GEMMGEN_TEXT_192 ", %96, %97, %98, %99"
#define GEMMGEN_REGS_200 GEMMGEN_REGS_192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define GEMMGEN_TEXT_208 GEMMGEN_TEXT_200 ", %100, %101, %102, %103"
#define GEMMGEN_REGS_208 GEMMGEN_REGS_200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define GEMMGEN_TEXT_216 GEMMGEN_TEXT_208 ", %104, %105, %106, %107"
#define GEMMGEN_REGS_216 GEMMGEN_REGS_208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define GEMMGEN_TEXT_224 GEMMGEN_TEXT_216 ", %108, %109, %110, %111"
#define GEMMGEN_REGS_224 GEMMGEN_REGS_216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define GEMMGEN_TEXT_232 GEMMGEN_TEXT_224 ", %112, %113, %114, %115"
#define GEMMGEN_REGS_232 GEMMGEN_REGS_224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define GEMMGEN_TEXT_240 GEMMGEN_TEXT_232 ", %116, %117, %118, %119"
#define GEMMGEN_REGS_240 GEMMGEN_REGS_232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define GEMMGEN_TEXT_248 GEMMGEN_TEXT_240 ", %120, %121, %122, %123"
#define GEMMGEN_REGS_248 GEMMGEN_REGS_240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define GEMMGEN_TEXT_256 GEMMGEN_TEXT_248 ", %124, %125, %126, %127"
#define GEMMGEN_REGS_256 GEMMGEN_REGS_248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// wgmma.mma_async.sync.aligned, PTX 8.0, sm_90a. A, B, C, ... are the operand numbers after the N/2 accumulators.
#define GEMMGEN_WGMMA(N, A, B, C, TA, TB)                                                                        \
  template <>                                                                                                    \
  struct Wgmma<N> {                                                                                              \
    DEVICE static void f32_e4m3_e4m3(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {                          \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" C ", 0;\n"                                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" GEMMGEN_TEXT_##N "}, %" A ", %" B  \
                   ", p, 1, 1; }"                                                                                \
                   : GEMMGEN_REGS_##N                                                                            \
                   : "l"(a), "l"(b), "r"(accumulate));                                                           \
    }                                                                                                            \
    template <u32 TRANSPOSE_A, u32 TRANSPOSE_B>                                                                  \
    DEVICE static void f32_bf16_bf16(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {                          \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" C ", 0;\n"                                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" GEMMGEN_TEXT_##N "}, %" A ", %" B  \
                   ", p, 1, 1, %" TA ", %" TB "; }"                                                              \
                   : GEMMGEN_REGS_##N                                                                            \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));                       \
    }                                                                                                            \
  };

GEMMGEN_WGMMA(8, "4", "5", "6", "7", "8")
GEMMGEN_WGMMA(16, "8", "9", "10", "11", "12")
GEMMGEN_WGMMA(24, "12", "13", "14", "15", "16")
GEMMGEN_WGMMA(32, "16", "17", "18", "19", "20")
GEMMGEN_WGMMA(40, "20", "21", "22", "23", "24")
GEMMGEN_WGMMA(48, "24", "25", "26", "27", "28")
GEMMGEN_WGMMA(56, "28", "29", "30", "31", "32")
GEMMGEN_WGMMA(64, "32", "33", "34", "35", "36")
GEMMGEN_WGMMA(72, "36", "37", "38", "39", "40")
GEMMGEN_WGMMA(80, "40", "41", "42", "43", "44")
GEMMGEN_WGMMA(88, "44", "45", "46", "47", "48")
GEMMGEN_WGMMA(96, "48", "49", "50", "51", "52")
GEMMGEN_WGMMA(104, "52", "53", "54", "55", "56")
GEMMGEN_WGMMA(112, "56", "57", "58", "59", "60")
GEMMGEN_WGMMA(120, "60", "61", "62", "63", "64")
GEMMGEN_WGMMA(128, "64", "65", "66", "67", "68")
GEMMGEN_WGMMA(136, "68", "69", "70", "71", "72")
GEMMGEN_WGMMA(144, "72", "73", "74", "75", "76")
GEMMGEN_WGMMA(152, "76", "77", "78", "79", "80")
GEMMGEN_WGMMA(160, "80", "81", "82", "83", "84")
GEMMGEN_WGMMA(168, "84", "85", "86", "87", "88")
GEMMGEN_WGMMA(176, "88", "89", "90", "91", "92")
GEMMGEN_WGMMA(184, "92", "93", "94", "95", "96")
GEMMGEN_WGMMA(192, "96", "97", "98", "99", "100")
GEMMGEN_WGMMA(200, "100", "101", "102", "103", "104")
GEMMGEN_WGMMA(208, "104", "105", "106", "107", "108")
GEMMGEN_WGMMA(216, "108", "109", "110", "111", "112")
GEMMGEN_WGMMA(224, "112", "113", "114", "115", "116")
GEMMGEN_WGMMA(232, "116", "117", "118", "119", "120")
GEMMGEN_WGMMA(240, "120", "121", "122", "123", "124")
GEMMGEN_WGMMA(248, "124", "125", "126", "127", "128")
GEMMGEN_WGMMA(256, "128", "129", "130", "131", "132")

#undef GEMMGEN_WGMMA

}  // namespace ptx
