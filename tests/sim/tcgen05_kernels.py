"""Small sm_100a kernels in CUDA with inline PTX, compiled by NVRTC; shared by the tests of the tcgen05 family.

Shared-memory images and descriptors come from the test, so that the kernel holds no layout of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gemmgen import sim
from gemmgen.runtime.nvrtc import compile_ptx

Array = np.ndarray

PREAMBLE = r"""
typedef unsigned int u32; typedef unsigned long long u64;
__device__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void barrier_init(u32 b, u32 n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
__device__ void barrier_wait(u32 b, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(b), "r"(parity) : "memory");
}
__device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#define FENCE_ASYNC asm volatile("fence.proxy.async;" ::: "memory")
#define FENCE_INIT asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define BEFORE asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define WAIT_LD asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")
#define WAIT_ST asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory")
"""


@lru_cache(maxsize=256)
def compiled(source: str) -> str:
    """PTX of a CUDA text for sm_100a."""
    return compile_ptx(PREAMBLE + source, "sm100", "test.cu").text


def run_cuda(
    source: str,
    *arguments: Array | int,
    schedule: sim.Schedule | None = None,
    block: int = 128,
    grid: int = 1,
    cluster: int = 1,
    shared_bytes: int = 0,
    entry: str = "k",
    sms: int = 4,
    edit: tuple[str, str] | None = None,
    labels: sim.Labels | None = None,
    **options: str,
) -> sim.Report:
    """Compile, optionally change the PTX text, and launch; arrays go by address, integers as 32-bit values."""
    text = compiled(source)
    if edit is not None:
        assert edit[0] in text, f"{edit[0]!r} does not occur in the PTX"
        text = text.replace(*edit)
    gpu = sim.Gpu(schedule or sim.Schedule("early"), sms=sms, **options)
    params = [
        (
            int(argument).to_bytes(4, "little", signed=argument < 0)
            if isinstance(argument, int)
            else gpu.map(argument, f"argument {i}").to_bytes(8, "little")
        )
        for i, argument in enumerate(arguments)
    ]
    module = sim.load(text)
    return gpu.launch(module, entry, (grid,), (block,), params, (cluster,), shared_bytes, labels)


@dataclass
class Mma:
    """One product: opcode, instruction descriptor, and the operand images with a descriptor per step.

    Descriptors are relative to the image; the kernel adds where it put the image. Scales are [rows of 32 x 16 bytes].
    """

    opcode: str
    idesc: list[int]
    a_image: Array
    b_image: Array
    a_descriptors: list[int]
    b_descriptors: list[int]
    columns: int
    a_scales: Array | None = None
    b_scales: Array | None = None
    accumulate_first: int = 0
    d_lane: int = 0
    a_in_tmem: bool = False  # in columns A_COLUMN and up, eight a step, put there by the piece before_issue
    pieces: dict[str, str] = field(default_factory=dict)

    @property
    def scaled(self) -> bool:
        return self.a_scales is not None


PIECES = {
    "fence_async": "FENCE_ASYNC;",
    "fence_init": "FENCE_INIT;",
    "sync": "__syncthreads();",
    "after": "AFTER;",
    "wait": "barrier_wait(bar, 0);",
    "commit": 'asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"'
    ' :: "r"(bar) : "memory");',
    "wait_ld": "WAIT_LD;",
    "sync_end": "__syncthreads();",
    "dealloc": 'if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" :: "r"(tmem));',
    "relinquish": "",
    "before_mma": "",
    "before_issue": "",
    "alloc_columns": "512",
}


def mma_source(mma: Mma) -> str:
    """One CTA of 128 threads: images to shared memory, cp of the scales, the steps, D out."""
    p = {**PIECES, **mma.pieces}
    scale_copies, scale_operands = "", ""
    if mma.scaled:
        assert mma.a_scales is not None and mma.b_scales is not None
        for name, base, scales in (("a", "SFA", mma.a_scales), ("b", "SFB", mma.b_scales)):
            for i in range(scales.size // 512):
                scale_copies += (
                    'asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(tmem + '
                    f'{base} + {4 * i}), "l"(scale_descriptor(s{name} + {512 * i})) : "memory");\n'
                )
        scale_operands = "[%5], [%6], "
    steps = len(mma.a_descriptors)
    a_operand = "[%7]" if mma.a_in_tmem else "%1"
    return f"""
    #define A_COLUMN 384
    #define SFA 256
    #define SFB 320
    __device__ u64 scale_descriptor(u32 address) {{
      return (u64)(address >> 4) | (8ull << 32) | (1ull << 46);
    }}
    extern "C" __global__ void k(const uint4* a, const uint4* b, const uint4* sfa, const uint4* sfb, const u64* steps,
                                 u32* out, int na, int nb, int nsa, int nsb, int first) {{
      extern __shared__ __align__(1024) unsigned char memory[];
      __shared__ __align__(8) u64 barrier_word; __shared__ u32 tmem_word;
      u32 warp = threadIdx.x / 32, bar = shared(&barrier_word);
      unsigned char* at = memory;
      u32 sa_ = shared(at); for (int i = threadIdx.x; i < na; i += 128) ((uint4*)at)[i] = a[i];
      at += (na * 16 + 1023) / 1024 * 1024;
      u32 sb_ = shared(at); for (int i = threadIdx.x; i < nb; i += 128) ((uint4*)at)[i] = b[i];
      at += (nb * 16 + 1023) / 1024 * 1024;
      u32 sa = shared(at); for (int i = threadIdx.x; i < nsa; i += 128) ((uint4*)at)[i] = sfa[i];
      at += nsa * 16;
      u32 sb = shared(at); for (int i = threadIdx.x; i < nsb; i += 128) ((uint4*)at)[i] = sfb[i];
      {p["fence_async"]}
      if (threadIdx.x == 0) {{ barrier_init(bar, 1); {p["fence_init"]} }}
      if (warp == 0) {{
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], {p["alloc_columns"]};"
                     :: "r"(shared(&tmem_word)) : "memory");
        {p["relinquish"]}
      }}
      {p["sync"]}
      u32 tmem = *(volatile u32*)&tmem_word;
      auto issue = [&](int i, int accumulate) {{
        u64 da = steps[3 * i] + (sa_ >> 4), db = steps[3 * i + 1] + (sb_ >> 4); u32 id = (u32)steps[3 * i + 2];
        asm volatile("{{.reg .pred p; setp.ne.b32 p, %4, 0; "
                     "{mma.opcode} [%0], {a_operand}, %2, %3, {scale_operands}p;}}"
          :: "r"(tmem + ({mma.d_lane} << 16)), "l"(da), "l"(db), "r"(id), "r"(accumulate), "r"(tmem + SFA),
             "r"(tmem + SFB), "r"(tmem + A_COLUMN + 8 * i) : "memory");
      }};
      {p["before_issue"]}
      if (threadIdx.x == 0) {{
        {scale_copies}
        {p["before_mma"]}
        for (int i = 0; i < {steps}; ++i) issue(i, i > 0 ? 1 : first);
        {p["commit"]}
      }}
      {p["wait"]}
      {p["after"]}
      u32 row = threadIdx.x;
      for (int c = 0; c < {mma.columns}; c += 8) {{
        u32 r[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {{%0, %1, %2, %3, %4, %5, %6, %7}}, [%8];"
          : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
          : "r"(tmem + (warp << 21) + c));
        {p["wait_ld"]}
        for (int i = 0; i < 8; ++i) out[row * {mma.columns} + c + i] = r[i];
      }}
      {p["sync_end"]}
      {p["dealloc"]}
    }}
    """


def run_mma(
    mma: Mma,
    schedule: sim.Schedule | None = None,
    edit: tuple[str, str] | None = None,
    labels: sim.Labels | None = None,
    **options: str,
) -> Array:
    """D as 32-bit words, [128 lanes, columns]."""
    out = np.zeros((128, mma.columns), np.uint32)
    steps = np.array(list(zip(mma.a_descriptors, mma.b_descriptors, mma.idesc, strict=True)), np.uint64)
    empty = np.zeros(16, np.uint8)
    images = [mma.a_image, mma.b_image]
    scales = [empty if s is None else s for s in (mma.a_scales, mma.b_scales)]
    counts = [image.size // 16 for image in images] + [s.size // 16 if mma.scaled else 0 for s in scales]
    run_cuda(
        mma_source(mma),
        *[np.ascontiguousarray(x) for x in (*images, *scales)],
        steps,
        out,
        *counts,
        mma.accumulate_first,
        schedule=schedule,
        edit=edit,
        labels=labels,
        shared_bytes=sum(-(-image.size // 1024) * 1024 for image in images) + 16 * sum(counts[2:]) + 2048,
        **options,
    )
    return out


# images, written without the simulator's tables


def k_major(octets: Array, swizzle: int) -> Array:
    """Rows of bytes [rows, bytes] as swizzled atoms of 8 rows of 128, 64 or 32 bytes, atoms of k one after another."""
    rows, nbytes = octets.shape
    image = np.zeros(rows * nbytes, np.uint8)
    for row in range(rows):
        for chunk in range(nbytes // 16):
            atom, inside = divmod(chunk * 16, swizzle)
            line = (row // 8) * 8 * swizzle + row % 8 * swizzle
            address = atom * rows * swizzle + line + inside
            address ^= (address >> 7 & (swizzle // 16 - 1)) << 4
            image[address : address + 16] = octets[row, chunk * 16 : chunk * 16 + 16]
    return image


def k_major_descriptors(rows: int, nbytes: int, swizzle: int) -> list[int]:
    """One descriptor per 32 bytes of k, relative to a 1024-byte aligned image."""
    layout = {128: 2, 64: 4, 32: 6}[swizzle]
    found = []
    for step in range(0, nbytes, 32):
        start = step // swizzle * rows * swizzle + step % swizzle
        found.append(start >> 4 | 8 * swizzle >> 4 << 32 | 1 << 46 | layout << 61)
    return found


def scale_image(codes: Array) -> Array:
    """[rows, 4] scale bytes as the 512-byte blocks that 32x128b.warpx4 copies, rows padded to 128 with NaN."""
    rows = -(-len(codes) // 128) * 128
    padded = np.full((rows, 4), 0xFF, np.uint8)
    padded[: len(codes)] = codes
    return np.ascontiguousarray(padded.reshape(-1, 4, 32, 4).transpose(0, 2, 1, 3)).reshape(-1)
