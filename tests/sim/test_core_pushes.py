"""st.async: numbers of lanes to another CTA's memory, bytes counted at a barrier there; each rule once broken."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

MODES = sim.all_schedules(2)
CTAS = 3
SHARED = ".extern .shared .align 1024 .b8 smem[];"
BEGIN = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; add.u32 %r3, %r2, 1024; mov.u32 %r4, %cluster_ctarank;
setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {bytes}; READY:
barrier.cluster.arrive.relaxed.aligned; {wait}
add.u32 %r5, %r4, 1; rem.u32 %r5, %r5, 3; mad.lo.u32 %r6, %r1, 16, %r2;
mapa.shared::cluster.u32 %r7, %r6, %r5; mapa.shared::cluster.u32 %r8, %r3, {barrier};
mad.lo.u32 %r10, %r4, 1000, %r1; add.u32 %r11, %r10, 100; add.u32 %r12, %r10, 200; add.u32 %r13, %r10, 300;
"""
WAIT = "barrier.cluster.wait.acquire.aligned;"
PUSH = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r7], {{%r10, %r11, %r12, %r13}}, [%r8];"
LANDED = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra W;"
READ = """
ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r6]; ld.param.u64 %d1, [out]; mad.lo.u32 %r9, %r4, 32, %r1;
mul.wide.u32 %d2, %r9, 16; add.s64 %d1, %d1, %d2; st.global.v4.u32 [%d1], {{%r20, %r21, %r22, %r23}};
"""


def run(
    schedule: sim.Schedule,
    body: str = BEGIN + PUSH + LANDED + READ,
    bytes_: int = 512,
    wait: str = WAIT,
    to: str = "%r5",
) -> np.ndarray:
    """A cluster of three CTAs of a warp each, which pass four numbers a lane to the next one."""
    out = np.zeros((CTAS, 32, 4), np.uint32)
    text = kernel(body.format(bytes=bytes_, wait=wait, barrier=to), shared=SHARED)
    Bench(schedule, (32,), (CTAS,), (CTAS,), shared_bytes=2048).run(text, out)
    return out


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_what_is_pushed_is_there_when_its_bytes_have_been_counted(schedule: sim.Schedule) -> None:
    before = np.roll(np.arange(CTAS), 1)[:, None, None] * 1000
    assert (run(schedule) == before + np.arange(32)[:, None] + 100 * np.arange(4)).all()


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "not waited for": ({"body": BEGIN + PUSH + READ}, r"reads it|left with|writes it while"),
    "fewer bytes": ({"bytes_": 496}, r"-16 bytes outstanding"),
    "more bytes": ({"bytes_": 528}, r"16 bytes outstanding"),
    "barrier of the sender": ({"to": "%r4"}, r"must be in the destination's CTA"),
    "before the barrier is known": ({"wait": ""}, r"not synchronised with its mbarrier\.init"),
    "odd address": ({"body": BEGIN + "add.u32 %r7, %r7, 8;" + PUSH + LANDED}, r"must be a multiple of 16"),
    "read by the receiver meanwhile": (
        {"body": BEGIN + "ld.shared.u32 %r20, [%r6];" + PUSH + LANDED + READ},
        r"may still read it|reads it, but",
    ),
    "two lanes in one place": (
        {"body": BEGIN + PUSH.replace("[%r7]", "[%r7]") + PUSH + LANDED},
        r"wrote it|-512 bytes outstanding",
    ),
    "to a CTA that has gone": (
        {"body": BEGIN + "setp.eq.u32 %p3, %r4, 1; @%p3 exit; nanosleep.u32 100;" + PUSH + LANDED},
        r"exited|left with|bytes outstanding",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_found(what: str) -> None:
    changes, message = BROKEN[what]
    with pytest.raises(sim.SimulationError, match=message):
        for schedule in MODES:
            run(schedule, **changes)  # type: ignore[arg-type]
