"""mbarriers, fences and clusters: each rule once kept and once broken."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

SMEM = ".extern .shared .align 1024 .b8 smem[];"
TID = (
    "mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;"
)
INIT = """
setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r2], {count};
fence.mbarrier_init.release.cluster; READY: {sync}
"""
WAIT = "W{n}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], {parity}; @!%p2 bra W{n};"
LABELS = sim.Labels(barriers=[("ab.full", 0, 2)], roles=[("load", 0, 1), ("math", 1, 1)])
MODES = sim.all_schedules(2)


def bench(threads: int = 64, schedule: sim.Schedule | None = None, cluster: int = 1) -> Bench:
    return Bench(
        schedule or sim.Schedule("early"), (threads,), (cluster,), (cluster,), shared_bytes=1024, labels=LABELS
    )


def init(count: int, sync: str = "bar.sync 0;") -> str:
    return TID + INIT.replace("{count}", str(count)).replace("{sync}", sync)


def wait(parity: int, name: str = "A") -> str:
    return WAIT.replace("{n}", name).replace("{parity}", str(parity))


PASS_ON = """
setp.ge.u32 %p3, %r1, 32; @%p3 bra READER;
mad.lo.u32 %r3, %r1, 4, %r2; st.shared.u32 [%r3+256], %r1; mbarrier.arrive.shared::cta.b64 %d5, [%r2]; bra END;
READER: {wait} mad.lo.u32 %r3, %r1, 4, %r2; ld.shared.u32 %r4, [%r3+128]; st.global.u32 [%d2], %r4;
END:
"""


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_arrivals_publish_shared_memory_to_waiters(schedule: sim.Schedule) -> None:
    out = np.zeros(64, np.uint32)
    body = init(32) + PASS_ON.replace("{wait}", wait(0))
    bench(schedule=schedule).run(kernel(body, shared=SMEM), out)
    assert out[32:].tolist() == list(range(32))
    with pytest.raises(sim.Race, match=r"shared memory \+256.*no barrier orders"):
        bench(schedule=schedule).run(kernel(init(32) + PASS_ON.replace("{wait}", ""), shared=SMEM), out)


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_a_failed_wait_returns_false(schedule: sim.Schedule) -> None:
    """Without the retry loop the reader runs into unpublished memory, whatever the schedule."""
    body = init(32) + PASS_ON.replace("{wait}", "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;")
    if schedule.mode in ("early", "late"):
        body = body.replace("setp.ge.u32 %p3, %r1, 32;", "setp.lt.u32 %p3, %r1, 32;").replace("+128", "+256")
        body = body.replace("[%r3+256], %r1", "[%r3+128], %r1")
    with pytest.raises(sim.Race):
        for seed in range(6):
            bench(schedule=sim.Schedule(schedule.mode, seed)).run(kernel(body, shared=SMEM), np.zeros(64, np.uint32))


def test_phases_alternate() -> None:
    body = init(1) + """
    setp.ne.u32 %p3, %r1, 0; @%p3 bra REST;
    mbarrier.arrive.shared::cta.b64 %d5, [%r2]; mbarrier.test_wait.shared::cta.b64 %p4, [%r2], %d5;
    selp.u32 %r5, 1, 0, %p4; mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r2], 1; selp.u32 %r6, 2, 0, %p5;
    mbarrier.arrive.shared::cta.b64 %d5, [%r2]; mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r2], 1;
    selp.u32 %r7, 4, 0, %p6; or.b32 %r5, %r5, %r6; or.b32 %r5, %r5, %r7; st.global.u32 [%d2], %r5;
    REST:
    """
    out = np.zeros(64, np.uint32)
    bench().run(kernel(body, shared=SMEM), out)
    assert out[0] == 1 + 4  # the first phase is over, the second was not, then it was


def test_deadlock_names_barrier_phase_and_counts() -> None:
    body = init(2) + "setp.lt.u32 %p3, %r1, 32; @%p3 bra END;" + wait(0) + "END:"
    message = r"(?s)warp 1 \(math\): waits at .*ab\.full\[0\].*parity 0; it is in phase 0, 2 of 2 arrivals pending"
    with pytest.raises(sim.Deadlock, match=message):
        bench().run(kernel(body, shared=SMEM), np.zeros(64, np.uint32))


def test_over_arrival() -> None:
    body = (
        init(1) + "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16; mbarrier.arrive.shared::cta.b64 _, [%r2];"
    )
    with pytest.raises(sim.Fault, match=r"ab\.full\[0\].*1 arrivals, but only 0 of 1 are pending"):
        bench(32).run(kernel(body, shared=SMEM), np.zeros(32, np.uint32))


def test_bytes_left_over_at_exit() -> None:
    body = (
        init(1) + "setp.ne.u32 %p3, %r1, 0; @%p3 bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64; END:"
    )
    with pytest.raises(sim.Fault, match=r"exits, but .*64 bytes outstanding"):
        bench(32).run(kernel(body, shared=SMEM), np.zeros(32, np.uint32))


def test_barrier_must_be_initialised_and_synchronised() -> None:
    with pytest.raises(sim.Fault, match=r"mbarrier\.init must come first"):
        bench(32).run(kernel(TID + "mbarrier.arrive.shared::cta.b64 _, [%r2];", shared=SMEM), np.zeros(32, np.uint32))
    body = init(64, sync="") + "mbarrier.arrive.shared::cta.b64 _, [%r2];"
    with pytest.raises(sim.Fault, match=r"not synchronised with its mbarrier\.init"):
        bench().run(kernel(body, shared=SMEM), np.zeros(64, np.uint32))
    bench().run(kernel(init(64) + "mbarrier.arrive.shared::cta.b64 _, [%r2];", shared=SMEM), np.zeros(64, np.uint32))


def test_barrier_words_are_not_data() -> None:
    body = init(1) + "st.shared.u32 [%r2+4], 5;"
    with pytest.raises(sim.Fault, match=r"ab\.full\[0\].*an mbarrier as if it were data"):
        bench(32).run(kernel(body, shared=SMEM), np.zeros(32, np.uint32))
    body = (
        init(1)
        + "setp.ne.u32 %p3, %r1, 0; @%p3 bra END; mbarrier.inval.shared.b64 [%r2]; st.shared.u32 [%r2+4], 5; END:"
    )
    bench(32).run(kernel(body, shared=SMEM), np.zeros(32, np.uint32))


CLUSTER_SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
REMOTE = """
mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; mapa.shared::cluster.u32 %r7, %r2, %r6;
mad.lo.u32 %r8, %r1, 4, %r7; add.u32 %r9, %r1, 100; mad.lo.u32 %r9, %r5, 1000, %r9;
st.shared::cluster.u32 [%r8+256], %r9; {sync}
mad.lo.u32 %r3, %r1, 4, %r2; ld.shared.u32 %r4, [%r3+256];
mul.wide.u32 %d6, %r5, 128; add.s64 %d2, %d2, %d6; st.global.u32 [%d2], %r4; {tail}
"""


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_cluster_shared_memory_and_barrier(schedule: sim.Schedule) -> None:
    out = np.zeros((2, 32), np.uint32)
    body = TID + CLUSTER_SYNC + REMOTE.replace("{sync}", CLUSTER_SYNC).replace("{tail}", CLUSTER_SYNC)
    bench(32, schedule, 2).run(kernel(body, shared=SMEM), out)
    assert (out == [np.arange(32) + 1100, np.arange(32) + 100]).all()
    broken = TID + CLUSTER_SYNC + REMOTE.replace("{sync}", "").replace("{tail}", CLUSTER_SYNC)
    with pytest.raises(sim.Race, match=r"no barrier orders"):
        bench(32, schedule, 2).run(kernel(broken, shared=SMEM), out)


def test_access_to_an_exited_cta() -> None:
    body = TID + CLUSTER_SYNC + """
    mov.u32 %r5, %cluster_ctarank; setp.eq.u32 %p3, %r5, 1; @%p3 exit;
    mov.u32 %r9, 0; L: add.u32 %r9, %r9, 1; nanosleep.u32 20; setp.lt.u32 %p4, %r9, 50; @%p4 bra L;
    mov.u32 %r6, 1; mapa.shared::cluster.u32 %r7, %r2, %r6; st.shared::cluster.u32 [%r7+256], %r9;
    """
    with pytest.raises(sim.Fault, match=r"CTA \(1, 0, 0\) \(rank 1\), which has already exited"):
        bench(32, cluster=2).run(kernel(body, shared=SMEM), np.zeros(64, np.uint32))


def remote_arrive(fence: str, sync: str) -> str:
    return TID + f"""
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r2], 1; {fence} READY: {sync}
    mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; mapa.shared::cluster.u32 %r7, %r2, %r6;
    @%p1 bra GO; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; GO: {wait(0)} {CLUSTER_SYNC}
    """


RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"


def test_remote_arrival_needs_initialisation_fenced_and_synchronised() -> None:
    fence = "fence.mbarrier_init.release.cluster;"
    for schedule in MODES:
        bench(32, schedule, 2).run(kernel(remote_arrive(fence, RELAXED), shared=SMEM), np.zeros(64, np.uint32))
    with pytest.raises(sim.Fault, match=r"not synchronised|must come first|no fence"):
        bench(32, cluster=2).run(kernel(remote_arrive("", RELAXED), shared=SMEM), np.zeros(64, np.uint32))
    with pytest.raises(sim.Fault, match=r"not synchronised|must come first|no fence"):
        bench(32, cluster=2).run(kernel(remote_arrive(fence, "bar.sync 0;"), shared=SMEM), np.zeros(64, np.uint32))


def test_shared_addresses_carry_the_rank_and_stay_in_their_window() -> None:
    out = np.zeros((2, 32), np.uint32)
    body = (
        TID
        + "mov.u32 %r5, %cluster_ctarank; mul.wide.u32 %d6, %r5, 128; add.s64 %d2, %d2, %d6; st.global.u32 [%d2], %r2;"
    )
    bench(32, cluster=2).run(kernel(body, shared=SMEM), out)
    assert (out >> 24 == [[0], [1]]).all() and (out & 0xFFFFFF == out[0, 0]).all()
    body = (
        TID
        + "mov.u32 %r5, %cluster_ctarank; xor.b32 %r6, %r5, 1; mapa.shared::cluster.u32 %r7, %r2, %r6;"
        + "ld.shared.u32 %r8, [%r7];"
    )
    with pytest.raises(sim.Fault, match=r"reaches only its own"):
        bench(32, cluster=2).run(kernel(body, shared=SMEM), out)


def test_cluster_arrive_twice_and_wait_without_arrival() -> None:
    arrive = "barrier.cluster.arrive.aligned;"
    with pytest.raises(sim.Fault, match=r"arrived already"):
        bench(32, cluster=2).run(kernel(TID + arrive + arrive, shared=SMEM), np.zeros(64, np.uint32))
    with pytest.raises(sim.Fault, match=r"has not arrived"):
        bench(32, cluster=2).run(kernel(TID + "barrier.cluster.wait.aligned;", shared=SMEM), np.zeros(64, np.uint32))


def test_arrive_drop_lowers_later_phases() -> None:
    body = init(2) + f"""
    setp.ne.u32 %p3, %r1, 0; @%p3 bra END;
    mbarrier.arrive_drop.shared::cta.b64 _, [%r2]; mbarrier.arrive.shared::cta.b64 _, [%r2]; {wait(0)}
    mbarrier.arrive.shared::cta.b64 _, [%r2]; {wait(1, "B")} st.global.u32 [%d2], 5; END:
    """
    out = np.zeros(32, np.uint32)
    bench(32).run(kernel(body, shared=SMEM), out)
    assert out[0] == 5
