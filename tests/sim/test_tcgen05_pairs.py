"""CTA pairs: TMA loads that signal the leader, two-CTA products, multicast commits, allocation by both CTAs."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tcgen05_kernels import compiled

from gemmgen import sim

SCHEDULES = sim.all_schedules()

PAIR = r"""
struct __align__(64) Map { char bytes[128]; };
__device__ void load(u32 to, const Map* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];" :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, u32* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(8) u64 words[2]; __shared__ u32 tmem_word;
  u32 warp = threadIdx.x / 32, full = shared(&words[0]), done = shared(&words[1]), r = rank();
  if (threadIdx.x == 0) { barrier_init(full, 1); barrier_init(done, 1); FENCE_INIT; }
  auto allocate = [&] {
    if (warp == 1) asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 64;"
                                :: "r"(shared(&tmem_word)) : "memory");
  };
  ALLOCATE_EARLY;
  cluster_sync();
  u32 sa = shared(memory), sb = sa + M / 2 * 128;
  if (threadIdx.x == 0) {
    u32 leader = full & PEER_MASK;
    load(sa, &a, 0, r * (M / 2), leader);
    load(sb, &b, 0, r * (N / 2), leader);
  }
  ALLOCATE_LATE;
  u32 tmem = *(volatile u32*)&tmem_word;
  if (threadIdx.x == 0) {
    if (r == ISSUER) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :: "r"(full), "r"((M + N) * 128) : "memory");
      barrier_wait(full, 0);
      u64 fixed = (1ull << 46) | (64ull << 32) | (2ull << 61);
      u32 idesc = ((u32)M >> 4 << 24) | ((u32)N >> 3 << 17) | 0x490;
      for (int i = 0; i < 4; ++i)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;}"
                     :: "r"(tmem), "l"(fixed | ((sa & 0xFFFFFF) + 32 * i) >> 4),
                        "l"(fixed | ((sb & 0xFFFFFF) + 32 * i) >> 4), "r"(idesc), "r"(i) : "memory");
      asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
                   :: "r"(done), "h"((short)MASK) : "memory");
    }
  }
  barrier_wait(done, 0);
  AFTER;
  for (int c = 0; c < COLUMNS; c += 8) {
    u32 v[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
      : "r"(tmem + (warp << 21) + c));
    WAIT_LD;
    for (int i = 0; i < 8; ++i) out[(r * 128 + threadIdx.x) * COLUMNS + c + i] = v[i];
  }
  LAST_SYNC;
  if (warp == 1) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 64;" :: "r"(tmem));
}
"""
CONSTANTS = {
    "M": "256",
    "N": "32",
    "COLUMNS": "32",
    "MASK": "3",
    "PEER_MASK": "0xFEFFFFFF",
    "ISSUER": "0",
    "ALLOCATE_EARLY": "allocate()",
    "ALLOCATE_LATE": "",
    "LAST_SYNC": "cluster_sync()",
}


def run_pair(schedule: sim.Schedule | None = None, text: str = PAIR, **constants: str) -> tuple[np.ndarray, np.ndarray]:
    """D as [2 CTAs, 128 lanes, columns], and A times B transposed."""
    values = {**CONSTANTS, **constants}
    for name, value in values.items():
        text = re.sub(rf"\b{name}\b", value, text)
    m, n, columns = int(values["M"]), int(values["N"]), int(values["COLUMNS"])
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 64)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    out = np.zeros((2, 128, columns), np.float32)
    gpu = sim.Gpu(schedule or sim.Schedule("early"), sms=2)
    maps = [
        sim.encode_tensor_map("bfloat16", gpu.map(x.view(np.uint16), "x"), (64, len(x)), (128,), box, swizzle="128b")
        for x, box in ((a, (64, m // 2)), (b, (64, n // 2)))
    ]
    params = [*maps, gpu.map(out, "out").to_bytes(8, "little")]
    gpu.launch(sim.load(compiled(text)), "k", (2,), (128,), params, cluster=(2,), shared_bytes=40960)
    return out, a.astype(float) @ b.astype(float).T


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_m_256(schedule: sim.Schedule) -> None:
    out, expected = run_pair(schedule)
    np.testing.assert_array_equal(out.reshape(256, 32), expected)


def test_m_128_holds_the_column_halves_in_upper_and_lower_lanes() -> None:
    out, expected = run_pair(M="128", COLUMNS="16")
    found = np.concatenate([out[:, :64], out[:, 64:]], axis=2)
    np.testing.assert_array_equal(found.reshape(128, 32), expected)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
@pytest.mark.parametrize(
    ("constants", "error", "message"),
    [
        ({"MASK": "1"}, sim.Deadlock, r"CTA \(1, 0, 0\), warp 0: waits at"),
        ({"MASK": "7"}, sim.Fault, "multicast mask 0x7 in a cluster of 2"),
        ({"PEER_MASK": "0xFFFFFFFF"}, (sim.Deadlock, sim.Fault), "waits at|outstanding"),
        ({"ISSUER": "1", "PEER_MASK": "0xFFFFFFFF"}, (sim.Fault, sim.Deadlock), "only the leader|waits at"),
    ],
)
def test_pair_mistakes(constants: dict[str, str], error: type[Exception], message: str, schedule: sim.Schedule) -> None:
    with pytest.raises(error, match=message):
        run_pair(schedule, **constants)


def test_a_pair_meets_before_its_columns_are_freed() -> None:
    """A public kernel had to add the cluster barrier: launches that followed found the columns in use."""
    for schedule in SCHEDULES:
        with pytest.raises(sim.Fault, match=r"may still use it; no barrier|after the other CTA of the pair freed"):
            run_pair(schedule, LAST_SYNC="__syncthreads()")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_both_ctas_allocate_as_one(schedule: sim.Schedule) -> None:
    """CUTLASS has no barrier of the cluster behind its tcgen05.alloc: who made one knows of the other CTA's, too."""
    out, expected = run_pair(schedule, ALLOCATE_EARLY="", ALLOCATE_LATE="allocate(); __syncthreads()")
    np.testing.assert_array_equal(out.reshape(256, 32), expected)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_the_peer_must_not_leave_before_the_product_is_done(schedule: sim.Schedule) -> None:
    leaves = PAIR.replace("barrier_wait(done, 0);", "if (r == 1) { GONE } barrier_wait(done, 0);", 1)
    gone = 'if (warp == 1) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 64;" :: "r"(tmem)); return;'
    with pytest.raises((sim.Fault, sim.Race)):
        run_pair(schedule, leaves.replace("GONE", gone))


def test_both_ctas_must_allocate() -> None:
    alone = PAIR.replace("if (warp == 1) asm", "if (warp == 1 && r == 0) asm", 1)
    with pytest.raises(sim.Deadlock, match="or for the other CTA of the pair to allocate"):
        run_pair(text=alone)


def test_pairs_need_a_cluster() -> None:
    gpu = sim.Gpu(sim.Schedule("early"), sms=2)
    text = (
        'extern "C" __global__ void k() { __shared__ u32 w; '
        'asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(shared(&w))); }'
    )
    with pytest.raises(sim.Fault, match="cluster of 1 CTAs; pairs need an even size"):
        gpu.launch(sim.load(compiled(text)), "k", (1,), (32,), [])
