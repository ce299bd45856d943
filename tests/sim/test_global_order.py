"""Order of ordinary loads and stores of global memory: who counts last may read what all wrote, if they said so."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

MODES = sim.all_schedules(2)
MEET = "bar.warp.sync 0xffffffff;"
COUNT = "atom.{order}.global.inc.u32 %r5, [%d3], 1;"
FENCE = "fence.acq_rel.gpu;"
BODY = """
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; ld.param.u64 %d1, [out]; ld.param.u64 %d2, [parts];
ld.param.u64 %d3, [count]; mad.lo.u32 %r3, %r2, 32, %r1; mul.wide.u32 %d4, %r3, 4; add.s64 %d4, %d2, %d4;
add.u32 %r4, %r3, 5; st.global.u32 [%d4], %r4;
{before}
mov.u32 %r5, 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra JOIN; {count} JOIN:
shfl.sync.idx.b32 %r5, %r5, 0, 31, 0xffffffff; setp.ne.u32 %p2, %r5, 1; @%p2 bra END;
{after}
xor.b32 %r6, %r3, 33; mul.wide.u32 %d5, %r6, 4; add.s64 %d5, %d2, %d5; {use}
mul.wide.u32 %d6, %r1, 4; add.s64 %d1, %d1, %d6; st.global.u32 [%d1], %r7; END:
"""
PARAMS = ".param .u64 out, .param .u64 parts, .param .u64 count"
LOAD, STORE = "ld.global.u32 %r7, [%d5];", "mov.u32 %r7, %r3; st.global.u32 [%d5], %r7;"


def run(
    schedule: sim.Schedule,
    count: str = COUNT.format(order="acq_rel.gpu"),
    before: str = MEET,
    after: str = MEET,
    use: str = LOAD,
) -> np.ndarray:
    """Two CTAs of a warp: the one that counts last reads (or overwrites) what another lane of the other one stored."""
    out, parts, counter = np.zeros(32, np.uint32), np.zeros(64, np.uint32), np.zeros(1, np.uint32)
    text = kernel(BODY.format(before=before, count=count, after=after, use=use), PARAMS)
    Bench(schedule, grid=(2,)).run(text, out, parts, counter)
    assert counter[0] == 0
    return out


RELAXED = COUNT.format(order="relaxed.gpu")
RIGHT: dict[str, dict[str, str]] = {
    "acquires and releases": {},
    "for the system": {"count": COUNT.format(order="acq_rel.sys")},
    "one lane's fences": {"count": FENCE + RELAXED + FENCE},
    "every lane's fences": {"before": FENCE + MEET, "count": RELAXED, "after": MEET + FENCE},
    "old words for both": {
        "before": "membar.gl;" + MEET,
        "count": "atom.global.inc.u32 %r5, [%d3], 1;",
        "after": MEET + "membar.gl;",
    },
    "overwritten in order": {"use": STORE},
}


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
@pytest.mark.parametrize("name", RIGHT)
def test_what_was_released_and_acquired_is_read(schedule: sim.Schedule, name: str) -> None:
    out = run(schedule, **RIGHT[name])
    lanes = np.arange(32) ^ 1
    assert "use" in RIGHT[name] or (out == lanes + 5).all() or (out == lanes + 37).all()


THEIRS = r"array1\+\d+: {} it, but warp 0, CTA \([01], 0, 0\) wrote it, and nothing orders that before"
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "relaxed": ({"count": RELAXED}, "reads"),
    "released only": ({"count": COUNT.format(order="release.gpu")}, "reads"),
    "acquired only": ({"count": COUNT.format(order="acquire.gpu")}, "reads"),
    "for the own CTA": ({"count": COUNT.format(order="acq_rel.cta")}, "reads"),
    "lanes do not meet before": ({"before": ""}, "reads"),
    "lanes do not meet after": ({"after": ""}, "reads"),
    "a fence before only": ({"count": FENCE + RELAXED}, "reads"),
    "a fence after only": ({"count": RELAXED + FENCE}, "reads"),
    "a fence of the CTA": ({"count": "fence.acq_rel.cta;" + RELAXED + FENCE}, "reads"),
    "overwritten": ({"count": RELAXED, "use": STORE}, "overwrites"),
}


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_is_a_race_under_every_schedule(schedule: sim.Schedule, name: str) -> None:
    changed, verb = WRONG[name]
    with pytest.raises(sim.Race, match=THEIRS.format(verb)):
        run(schedule, **changed)


def test_a_lane_reads_what_another_one_of_its_warp_wrote_after_they_met() -> None:
    """Each reads its neighbour's part, which the counts do not order."""
    own = "xor.b32 %r6, %r3, 1; mul.wide.u32 %d5, %r6, 4; add.s64 %d5, %d2, %d5; ld.global.u32 %r8, [%d5];"
    run(sim.Schedule("early"), before=MEET + own)
    with pytest.raises(sim.Race, match=r"a lane reads what lane \d+ of its warp wrote, with no warp synchronisation"):
        run(sim.Schedule("early"), before=own + MEET)


WARPS = """
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; ld.param.u64 %d1, [out]; ld.param.u64 %d2, [parts];
ld.param.u64 %d3, [count]; mad.lo.u32 %r3, %r2, 64, %r1; mul.wide.u32 %d4, %r3, 4; add.s64 %d4, %d2, %d4;
add.u32 %r4, %r3, 5; st.global.u32 [%d4], %r4;
{before} mov.u32 %r8, smem; setp.ne.u32 %p1, %r1, 0; @%p1 bra JOIN;
atom.acq_rel.gpu.global.inc.u32 %r5, [%d3], 1; st.shared.u32 [%r8], %r5; JOIN: bar.sync 0;
ld.shared.u32 %r5, [%r8]; setp.ne.u32 %p2, %r5, 1; @%p2 bra END;
xor.b32 %r6, %r3, 97; mul.wide.u32 %d5, %r6, 4; add.s64 %d5, %d2, %d5; ld.global.u32 %r7, [%d5];
mul.wide.u32 %d6, %r1, 4; add.s64 %d1, %d1, %d6; st.global.u32 [%d1], %r7; END:
"""


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_barriers_of_a_cta_pass_on_what_one_of_its_warps_was_told(schedule: sim.Schedule) -> None:
    def result(before: str) -> np.ndarray:
        out, parts, counter = np.zeros(64, np.uint32), np.zeros(128, np.uint32), np.zeros(1, np.uint32)
        text = kernel(WARPS.format(before=before), PARAMS, shared=".shared .align 16 .b8 smem[16];")
        Bench(schedule, (64,), (2,)).run(text, out, parts, counter)
        return out

    lanes = np.arange(64) ^ 33
    out = result("bar.sync 0;")
    assert (out == lanes + 5).all() or (out == lanes + 69).all()
    with pytest.raises(sim.Race, match="nothing orders that before"):
        result("")  # what the other warp of each CTA wrote


PAIRS = """
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; shr.u32 %r9, %r1, 5; and.b32 %r1, %r1, 31; ld.param.u64 %d1, [out];
ld.param.u64 %d2, [parts]; ld.param.u64 %d3, [count]; mul.wide.u32 %d4, %r1, 4; add.s64 %d5, %d2, %d4;
add.s64 %d6, %d3, %d4; add.u32 %r4, %r1, 5; setp.ne.u32 %p1, {who}, 0; @%p1 bra OTHER;
st.global.u32 [%d5], %r4; {tell} bra END;
OTHER: {learn} setp.eq.u32 %p2, %r5, 0; @%p2 bra OTHER; {use}
add.s64 %d1, %d1, %d4; st.global.u32 [%d1], %r7; END:
"""
TELL, LEARN = "red.{order}.global.add.u32 [%d6], 1;", "ld.{order}.global.u32 %r5, [%d6];"
CTAS, WARPS_OF_ONE = "%r2", "%r9"


def passed(who: str, tell: str, learn: str, use: str = "ld.global.u32 %r7, [%d5];") -> np.ndarray:
    """Every lane of one warp tells the same lane of another, of the next CTA or of its own, what it stored."""
    out, parts, count = (np.zeros(64, np.uint32) for _ in range(3))
    text = kernel(PAIRS.format(who=who, tell=tell, learn=learn, use=use), PARAMS)
    Bench(sim.Schedule("random"), (32,) if who == CTAS else (64,), (2,) if who == CTAS else (1,)).run(
        text, out, parts, count
    )
    return out[:32]


def in_scopes(told: str, learnt: str) -> tuple[str, str]:
    return TELL.format(order=f"release.{told}"), LEARN.format(order=f"acquire.{learnt}")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (CTAS, in_scopes("gpu", "gpu")),
        (CTAS, in_scopes("gpu", "sys")),
        (WARPS_OF_ONE, in_scopes("cta", "cta")),
        (WARPS_OF_ONE, in_scopes("gpu", "cta")),
        (WARPS_OF_ONE, in_scopes("cta", "gpu")),
        (
            WARPS_OF_ONE,
            (
                "fence.acq_rel.cta;" + TELL.format(order="relaxed.cta"),
                LEARN.format(order="relaxed.cta") + "fence.acq_rel.cta;",
            ),
        ),
        (CTAS, ("fence.acq_rel.gpu;" + TELL.format(order="relaxed.gpu"), LEARN.format(order="acquire.gpu"))),
    ],
    ids=str,
)
def test_lanes_speak_for_themselves_at_scopes_that_have_both(who: str, words: tuple[str, str]) -> None:
    assert (passed(who, *words) == np.arange(32) + 5).all()


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (CTAS, in_scopes("gpu", "cta")),
        (CTAS, in_scopes("cta", "gpu")),
        (CTAS, ("fence.acq_rel.cta;" + TELL.format(order="relaxed.gpu"), LEARN.format(order="acquire.gpu"))),
        (CTAS, (TELL.format(order="release.gpu"), LEARN.format(order="relaxed.gpu"))),
        # a load releases nothing: the flag is told of by one who stored nothing
        (
            CTAS,
            (
                "fence.acq_rel.gpu; ld.relaxed.gpu.global.u32 %r6, [%d6]; red.relaxed.gpu.global.add.u32 [%d3+128], 1;",
                "mov.u32 %r5, 1; ld.acquire.gpu.global.u32 %r6, [%d6];",
            ),
        ),
    ],
    ids=str,
)
def test_and_at_no_others(who: str, words: tuple[str, str]) -> None:
    with pytest.raises(sim.Race, match="nothing orders that before"):
        passed(who, *words)
