"""Two-CTA clusters: mapa, remote arrivals and stores, shared-to-shared copies, multicast loads, cluster barriers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import PRELUDE, Array, Case, In, Map, Parameter, generator, out

SOURCE = PRELUDE + r"""
DEVICE u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEVICE u32 peer(u32 at, u32 cta) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(cta));
  return remote;
}
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE u32 tid() { return blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void ranks(u32* to) {
  u32 size, nctaid;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(nctaid));
  to[tid()] = rank() | size << 8 | nctaid << 16;
}
// each CTA writes its own memory, then reads the peer's
extern "C" __global__ void remote_load(const u32* from, u32* to) {
  u32* mine = (u32*)smem, x;
  mine[threadIdx.x] = from[tid()];
  cluster_sync();
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(x) : "r"(peer(address(mine + threadIdx.x), rank() ^ 1)) : "memory");
  to[tid()] = x;
  cluster_sync();
}
extern "C" __global__ void remote_store(const u32* from, u32* to) {
  u32* mine = (u32*)smem;
  mine[threadIdx.x] = 0;
  cluster_sync();
  asm volatile("st.shared::cluster.u32 [%0], %1;"
               ::"r"(peer(address(mine + 31 - threadIdx.x), rank() ^ 1)), "r"(from[tid()]) : "memory");
  cluster_sync();
  to[tid()] = mine[threadIdx.x];
}
// all lanes arrive at the peer's barrier; rank() of the target is read back through getctarank
extern "C" __global__ void remote_arrive(u32* to) {
  u32 bar = address(smem), owner;
  if (threadIdx.x == 0) barrier_init(bar, 32);
  cluster_sync();
  u32 remote = peer(bar, rank() ^ 1);
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(owner) : "r"(remote));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; "
                 "selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar) : "memory");
  } while (!done);
  to[tid()] = owner | barrier_try(bar, 1) << 8;
  cluster_sync();
}
extern "C" __global__ void store_async(const u32* from, u32* to) {
  u32 bar = address(smem), slot = address(smem) + 64;
  if (threadIdx.x == 0) { barrier_init(bar, 1); barrier_expect(bar, 32 * 4 + 32 * 8); }
  cluster_sync();
  u32 remote = peer(bar, rank() ^ 1), at = peer(slot, rank() ^ 1);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
               ::"r"(at + 4 * threadIdx.x), "r"(from[tid()]), "r"(remote) : "memory");
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
               ::"r"(at + 128 + 8 * threadIdx.x), "r"(from[tid()] + 1), "r"(from[tid()] + 2), "r"(remote) : "memory");
  barrier_wait(bar, 0);
  for (u32 i = 0; i < 3; ++i) to[96 * blockIdx.x + 32 * i + threadIdx.x] = ((u32*)smem)[16 + 32 * i + threadIdx.x];
  cluster_sync();
}
extern "C" __global__ void shared_copy(const u32* from, u32* to) {
  u32 bar = address(smem), mine = address(smem) + 128, other = address(smem) + 384;
  ((u32*)smem)[32 + threadIdx.x] = from[tid()];
  __syncwarp();
  if (threadIdx.x == 0) { barrier_init(bar, 1); barrier_expect(bar, 128); }
  fence_async();
  cluster_sync();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                 ::"r"(peer(other, rank() ^ 1)), "r"(mine), "r"(peer(bar, rank() ^ 1)) : "memory");
  barrier_wait(bar, 0);
  to[tid()] = ((u32*)smem)[96 + threadIdx.x];
  cluster_sync();
}
// each CTA loads one box into both; every barrier sees both
extern "C" __global__ void multicast(const u32* tensor, u32* to, const __grid_constant__ TensorMap map) {
  u32 bar = address(smem) + 2048;
  if (threadIdx.x == 0) { barrier_init(bar, 1); barrier_expect(bar, 2048); }
  cluster_sync();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(address(smem) + 1024 * rank()), "l"(address(map)), "r"(bar),
                 "r"(0), "r"(8 * rank()), "h"((u16)3) : "memory");
  barrier_wait(bar, 0);
  copy_out(to + 512 * blockIdx.x, 512);
  cluster_sync();
}
extern "C" __global__ void multicast_to_one(const u32* tensor, u32* to, const __grid_constant__ TensorMap map) {
  u32 bar = address(smem) + 2048;
  if (threadIdx.x == 0) { barrier_init(bar, 1); barrier_expect(bar, 1024); }
  cluster_sync();
  if (threadIdx.x == 0)  // rank 0 loads for rank 1 and the reverse
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(address(smem)), "l"(address(map)), "r"(bar),
                 "r"(0), "r"(8 * rank()), "h"((u16)(1 << (rank() ^ 1))) : "memory");
  barrier_wait(bar, 0);
  copy_out(to + 256 * blockIdx.x, 256);
  cluster_sync();
}
"""


def cases() -> Iterator[Case]:
    rng = generator("cluster")
    data = rng.integers(0, 1 << 31, (4, 32), dtype=np.uint32)  # four CTAs: two clusters
    swapped = data[[1, 0, 3, 2]]
    block = np.repeat(np.arange(4, dtype=np.uint32), 32).reshape(4, 32)
    yield _case("ranks", (out((4, 32)),), block % 2 | 2 << 8 | 2 << 16)
    yield _case("remote_load", (In(data), out((4, 32))), swapped)
    yield _case("remote_store", (In(data), out((4, 32))), swapped[:, ::-1])
    yield _case("remote_arrive", (out((4, 32)),), (block % 2) ^ 1)
    pairs = np.stack([swapped + 1, swapped + 2], axis=-1).reshape(4, 64)
    yield _case("store_async", (In(data), out((4, 96))), np.concatenate([swapped, pairs], axis=1))
    yield _case("shared_copy", (In(data), out((4, 32))), swapped)
    tensor = rng.integers(0, 1 << 32, (16, 32), dtype=np.uint32)
    boxes = Map(0, "uint32", (32, 16), (128,), (32, 8))
    both = np.concatenate([tensor, tensor, tensor, tensor]).reshape(4, 512)
    yield _case("multicast", (In(tensor), out((4, 512)), boxes), both)
    halves = tensor.reshape(2, 256)[[1, 0, 1, 0]]
    yield _case("multicast_to_one", (In(tensor), out((4, 256)), boxes), halves)


def _case(kernel: str, parameters: tuple[Parameter, ...], expected: Array) -> Case:
    return Case(
        family="cluster",
        name=kernel,
        source=SOURCE,
        kernel=kernel,
        parameters=parameters,
        grid=(4, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=2176,
        expected=(np.ascontiguousarray(expected),),
    )
