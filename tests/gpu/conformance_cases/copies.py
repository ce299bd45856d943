"""cp.async of 4, 8 and 16 bytes, its groups and its barrier arrival; cp.async.bulk both ways and its reduction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import PRELUDE, Case, In, Out, Scalar, generator, out

SOURCE = PRELUDE + r"""
// every thread copies its own piece; a short source leaves zeros
template <u32 BYTES, bool BYPASS>
DEVICE void piece(u32 at, const u8* from, u32 source_bytes) {
  if (BYPASS) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"(at), "l"(from), "r"(source_bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               ::"r"(at), "l"(from), "n"(BYTES), "r"(source_bytes) : "memory");
}
template <u32 BYTES, bool BYPASS>
DEVICE void pieces(const u8* from, u32* to, u32 source_bytes) {
  piece<BYTES, BYPASS>(address(smem) + BYTES * threadIdx.x, from + BYTES * threadIdx.x, source_bytes);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  copy_out(to, BYTES * 16);
}
extern "C" __global__ void pieces_4(const u8* from, u32* to, u32 n) { pieces<4, false>(from, to, n); }
extern "C" __global__ void pieces_8(const u8* from, u32* to, u32 n) { pieces<8, false>(from, to, n); }
extern "C" __global__ void pieces_16(const u8* from, u32* to, u32 n) { pieces<16, false>(from, to, n); }
extern "C" __global__ void pieces_cg(const u8* from, u32* to, u32 n) { pieces<16, true>(from, to, n); }

// two groups: the first is awaited alone, and its data leaves before the second is awaited
extern "C" __global__ void groups(const u8* from, u32* to, u32 n) {
  u32 at = address(smem) + 16 * threadIdx.x;
  piece<16, true>(at, from + 16 * threadIdx.x, 16);
  asm volatile("cp.async.commit_group;" ::: "memory");
  piece<16, true>(at + 1024, from + 1024 + 16 * threadIdx.x, 16);
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) to[i] = ((u32*)smem)[i];
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) to[256 + i] = ((u32*)smem)[256 + i];
}
extern "C" __global__ void barrier_arrival(const u8* from, u32* to, u32 n) {
  u32 bar = address(smem) + 1024;
  if (threadIdx.x == 0) barrier_init(bar, 64);
  __syncthreads();
  piece<16, true>(address(smem) + 16 * threadIdx.x, from + 16 * threadIdx.x, 16);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
  barrier_wait(bar, 0);
  copy_out(to, 256);
}

extern "C" __global__ void bulk_load(const u8* from, u32* to, u32 bytes) {
  u32 bar = address(smem) + 4096;
  for (u32 i = threadIdx.x; i < 1024; i += blockDim.x) ((u32*)smem)[i] = 0xeeeeeeee;
  if (threadIdx.x == 0) barrier_init(bar, 1);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_expect(bar, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address(smem) + 32), "l"(from + 16), "r"(bytes), "r"(bar) : "memory");
  }
  barrier_wait(bar, 0);
  copy_out(to, 1024);
}
DEVICE void finish_bulk() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
extern "C" __global__ void bulk_store(const u32* image, u8* to, u32 bytes) {
  copy_in(image, 1024);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(to + 48), "r"(address(smem) + 16), "r"(bytes) : "memory");
    finish_bulk();
  }
}
extern "C" __global__ void bulk_add_f32(const u32* image, u8* to, u32 bytes) {
  copy_in(image, 1024);
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 ::"l"(to + 48), "r"(address(smem) + 16), "r"(bytes) : "memory");
    finish_bulk();
  }
}
"""


def cases() -> Iterator[Case]:
    for kernel, size, sources in (
        ("pieces_4", 4, (4, 1, 0)),
        ("pieces_8", 8, (8, 5)),
        ("pieces_16", 16, (16, 7, 0)),
        ("pieces_cg", 16, (16, 12)),
    ):
        for given in sources:
            yield _pieces(kernel, size, given)
    for kernel, words in (("groups", 512), ("barrier_arrival", 256)):
        data = generator(kernel).integers(0, 1 << 32, words, dtype=np.uint32)
        parameters = (In(data), out(words), Scalar.u32(0))
        yield Case(
            "cp.async", kernel, SOURCE, kernel, parameters, block=(64, 1, 1), shared_bytes=2048, expected=(data,)
        )
    for size in (16, 48, 1024, 3984):
        yield _bulk_load(size)
        yield _bulk_store(size)
    yield _bulk_add()


def _pieces(kernel: str, size: int, given: int) -> Case:
    name = f"{kernel} of {given} bytes"
    data = generator(name).integers(0, 256, (64, size), dtype=np.uint8)
    expected = data.copy()
    expected[:, given:] = 0
    parameters = (In(data), out(16 * size), Scalar.u32(given))
    words = expected.reshape(-1).view(np.uint32)
    return Case("cp.async", name, SOURCE, kernel, parameters, block=(64, 1, 1), shared_bytes=1024, expected=(words,))


def _bulk_load(size: int) -> Case:
    name = f"bulk load of {size} bytes"
    data = generator(name).integers(0, 256, 4096, dtype=np.uint8)
    expected = np.full(4096, 0xEE, np.uint8)
    expected[32 : 32 + size] = data[16 : 16 + size]
    parameters = (In(data), out(1024), Scalar.u32(size))
    words = expected.view(np.uint32)
    return Case(
        "cp.async.bulk", name, SOURCE, "bulk_load", parameters, block=(64, 1, 1), shared_bytes=4224, expected=(words,)
    )


def _bulk_store(size: int) -> Case:
    name = f"bulk store of {size} bytes"
    image = generator(name).integers(0, 256, 4096, dtype=np.uint8)
    expected = np.full(4096, 0xFF, np.uint8)
    expected[48 : 48 + size] = image[16 : 16 + size]
    parameters = (In(image), out(4096, np.uint8), Scalar.u32(size))
    return Case(
        "cp.async.bulk",
        name,
        SOURCE,
        "bulk_store",
        parameters,
        block=(64, 1, 1),
        shared_bytes=4096,
        expected=(expected,),
    )


def _bulk_add() -> Case:
    rng = generator("bulk add")
    image, old = rng.standard_normal(1024).astype(np.float32), rng.standard_normal(1024).astype(np.float32)
    expected = old.copy()
    expected[12 : 12 + 256] += image[4 : 4 + 256]
    parameters = (In(image), Out(old), Scalar.u32(1024))
    return Case(
        "cp.reduce.async.bulk",
        "bulk add f32",
        SOURCE,
        "bulk_add_f32",
        parameters,
        block=(64, 1, 1),
        shared_bytes=4096,
        expected=(expected,),
    )
