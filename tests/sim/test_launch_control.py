"""clusterlaunchcontrol: clusters launch as room allows, running ones take over the rest; every tile is done once."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_kernels import compiled, run_cuda

from gemmgen import sim

SCHEDULES = [*sim.all_schedules(), *(sim.Schedule("random", seed) for seed in (1, 2, 3))]

STEAL = r"""
extern "C" __global__ void k(u32* done, u32* owner) {
  __shared__ __align__(16) uint4 answer; __shared__ __align__(8) u64 word;
  u32 bar = shared(&word), to = shared(&answer);
  if (threadIdx.x == 0) { barrier_init(bar, 1); FENCE_INIT; }
  START_SYNC;
  u32 x = CTA_X, first = CTA_X, parity = 0;
  while (true) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" :: "r"(bar) : "memory");
      if (IS_LEADER)
        asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.FORM.b128 "
                     "[%0], [%1];" :: "r"(to), "r"(bar) : "memory");
      atomicAdd(done + x, 1u); owner[x] = first;
    }
    barrier_wait(bar, parity); parity ^= 1;
    u32 next, more;
    asm volatile("{.reg .b128 h; .reg .pred p; ld.shared.b128 h, [%2];"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h; selp.u32 %1, 1, 0, p; mov.u32 %0, 0;"
      "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%0, _, _, _}, h;}"
      : "=r"(next), "=r"(more) : "r"(to) : "memory");
    if (!more) break;
    x = next + RANK;
    FENCE_ASYNC;
    END_SYNC;
  }
}
"""
SINGLE = {
    "START_SYNC": "__syncthreads()",
    "END_SYNC": "__syncthreads()",
    "IS_LEADER": "true",
    "RANK": "0",
    ".FORM": "",
    "CTA_X": "blockIdx.x",
}
PAIR = {**SINGLE, "START_SYNC": "cluster_sync()", "END_SYNC": "cluster_sync()", "IS_LEADER": "rank() == 0"}
PAIR |= {"RANK": "rank()", ".FORM": ".multicast::cluster::all"}


def steal(
    pieces: dict[str, str], schedule: sim.Schedule, grid: int, cluster: int, sms: int, text: str = STEAL
) -> tuple[np.ndarray, np.ndarray]:
    for name, value in pieces.items():
        text = text.replace(name, value)
    done, owner = np.zeros(grid, np.uint32), np.zeros(grid, np.uint32)
    run_cuda(text, done, owner, schedule=schedule, block=64, grid=grid, cluster=cluster, sms=sms)
    return done, owner


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.mode}{s.seed}")
def test_every_tile_is_done_once(schedule: sim.Schedule) -> None:
    done, owner = steal(SINGLE, schedule, grid=11, cluster=1, sms=3)
    assert (done == 1).all()
    assert len(set(owner.tolist())) >= 3
    if schedule.mode in ("early", "late"):
        assert set(owner.tolist()) == {0, 1, 2}, "only the first wave runs; it takes over all the rest"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.mode}{s.seed}")
def test_clusters_share_one_answer(schedule: sim.Schedule) -> None:
    done, owner = steal(PAIR, schedule, grid=12, cluster=2, sms=4)
    assert (done == 1).all()
    assert (owner % 2 == np.arange(12) % 2).all()


def test_schedules_differ_in_who_takes_what() -> None:
    owners = {steal(SINGLE, sim.Schedule("random", seed), 16, 1, 4)[1].tobytes() for seed in range(5)}
    assert len(owners) > 1


def test_a_refused_cluster_is_launched_after_all() -> None:
    """Some random schedule refuses a request while tiles are left: more than the first wave then runs."""
    waves = [len(set(steal(SINGLE, sim.Schedule("random", seed), 16, 1, 2)[1].tolist())) for seed in range(6)]
    assert max(waves) > 2


@pytest.mark.parametrize("schedule", sim.all_schedules(), ids=lambda s: s.mode)
@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("barrier_wait(bar, parity);", "", (sim.Race, sim.Fault), "no barrier orders|no try_cancel wrote"),
        ("END_SYNC;", "", sim.Race, "may still read it|no barrier orders"),
        (
            "    if (!more) break;",
            "    if (!more && parity == 7) break;",
            sim.Fault,
            "after an answer that nothing is left",
        ),
        (
            "expect_tx.shared::cta.b64 _, [%0], 16;",
            "expect_tx.shared::cta.b64 _, [%0], 8;",
            Exception,
            "bytes|transaction",
        ),
    ],
)
def test_mistakes(old: str, new: str, error: type[Exception], message: str, schedule: sim.Schedule) -> None:
    assert old in STEAL
    with pytest.raises(error, match=message):
        steal(SINGLE, schedule, 6, 1, 2, STEAL.replace(old, new))


def test_forms_of_the_queries() -> None:
    text = compiled(STEAL_AXES)
    out = np.zeros(4, np.uint32)
    gpu = sim.Gpu(sim.Schedule("early"), sms=1)
    gpu.launch(sim.load(text), "k", (1, 1, 2), (32,), [gpu.map(out, "out").to_bytes(8, "little")])
    assert out.tolist() == [0, 0, 1, 1]


STEAL_AXES = r"""
extern "C" __global__ void k(u32* out) {
  __shared__ __align__(16) uint4 answer; __shared__ __align__(8) u64 word;
  u32 bar = shared(&word), to = shared(&answer), x, y, z, more;
  if (threadIdx.x == 0) {
    barrier_init(bar, 1); FENCE_INIT;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" :: "r"(bar) : "memory");
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                 :: "r"(to), "r"(bar) : "memory");
    barrier_wait(bar, 0);
    asm volatile("{.reg .b128 h; .reg .pred p; ld.shared.b128 h, [%4];"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h; selp.u32 %3, 1, 0, p;"
      "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, h;"
      "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %1, h;"
      "clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %2, h;}"
      : "=r"(x), "=r"(y), "=r"(z), "=r"(more) : "r"(to) : "memory");
    out[0] = x; out[1] = y; out[2] = z; out[3] = more;
  }
}
"""
