"""Divergence, warp-level joins and exchanges, named barriers, deadlock reports and source places."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel, lanes

from gemmgen import sim

STORE = "mov.u32 %r150, %tid.x; mul.wide.u32 %d60, %r150, 4; ld.param.u64 %d61, [out]; add.s64 %d61, %d61, %d60;"
ALL = sim.all_schedules()


def ids(schedule: sim.Schedule) -> str:
    return schedule.mode


def test_divergent_loop_gives_each_lane_its_own_count() -> None:
    body = STORE + """
    mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, 0;
    LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE; add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; bra LOOP;
    DONE: st.global.u32 [%d61], %r3;
    """
    out = np.zeros(32, np.uint32)
    Bench().run(kernel(body), out)
    assert out.tolist() == [n * (n - 1) // 2 for n in range(32)]


def test_lanes_that_exit_early_and_partial_warps() -> None:
    body = STORE + """
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; @%p1 exit;
    bar.warp.sync 0xffffffff; bar.sync 0; st.global.u32 [%d61], %r1;
    """
    out = np.full(40, 99, np.uint32)
    Bench(block=(40,)).run(kernel(body), out)
    assert out.tolist() == [n if n % 2 == 0 else 99 for n in range(40)]


def test_guarded_instructions_touch_only_their_lanes() -> None:
    tid = np.arange(32, dtype=np.uint32)
    body = "mov.u32 res, 7; setp.lt.u32 %p1, in0, 5; @%p1 mov.u32 res, in0; @!%p1 add.u32 res, res, 1;"
    assert (lanes(body, [tid], np.uint32, "b32", "b32") == np.where(tid < 5, tid, 8)).all()


@pytest.mark.parametrize(
    ("mode", "b", "c", "source"),
    [
        ("bfly", 5, 31, lambda n: n ^ 5),
        ("up", 3, 0, lambda n: n - 3 if n >= 3 else n),
        ("down", 4, 31, lambda n: n + 4 if n + 4 < 32 else n),
        ("idx", 9, 31, lambda n: 9),
        ("bfly", 3, 0x1C1F, lambda n: n ^ 3),
        ("down", 2, 0x1803, lambda n: n + 2 if n % 8 + 2 <= 3 or n % 8 + 2 >= 8 else n),
    ],
)
def test_shuffles(mode: str, b: int, c: int, source: object) -> None:
    value = np.random.default_rng(1).integers(0, 1 << 32, 32, dtype=np.uint32)
    got = lanes(f"shfl.sync.{mode}.b32 res|%p1, in0, {b}, {c}, -1;", [value], np.uint32, "b32", "b32")
    if c != 0x1803:
        assert got.tolist() == [int(value[source(n)]) for n in range(32)]  # type: ignore[operator]
    else:
        assert got[0] == value[2] and got[1] == value[3]


def test_votes_matches_reductions_and_election() -> None:
    tid = np.arange(32, dtype=np.uint32)
    ballot = lanes("setp.lt.u32 %p1, in0, 7; vote.sync.ballot.b32 res, %p1, -1;", [tid], np.uint32, "b32", "b32")
    assert (ballot == 0x7F).all()
    body = "setp.lt.u32 %p1, in0, 7; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;"
    body += "selp.u32 %r5, 1, 0, %p2; selp.u32 %r6, 2, 0, %p3; add.u32 res, %r5, %r6;"
    assert (lanes(body, [tid], np.uint32, "b32", "b32") == 1).all()
    match = lanes("and.b32 %r5, in0, 3; match.any.sync.b32 res, %r5, -1;", [tid], np.uint32, "b32", "b32")
    assert (match == 0x11111111 << (tid & 3)).all()
    assert (lanes("redux.sync.add.s32 res, in0, -1;", [tid], np.uint32, "b32", "b32") == 496).all()
    elected = lanes("elect.sync %r5|%p1, -1; selp.u32 res, 1, 0, %p1;", [tid], np.uint32, "b32", "b32")
    assert elected.sum() == 1


def test_sync_instructions_wait_for_their_lanes() -> None:
    """The shuffle stands after a branch whose taken side is laid out later: lanes must still meet."""
    body = STORE + """
    mov.u32 %r1, %tid.x; mov.u32 %r2, 1; setp.lt.u32 %p1, %r1, 3; @%p1 bra FEW;
    JOIN: shfl.sync.bfly.b32 %r3|%p2, %r2, 1, 31, -1; st.global.u32 [%d61], %r3; bra END;
    FEW: mov.u32 %r2, 5; bra JOIN;
    END:
    """
    out = np.zeros(32, np.uint32)
    Bench().run(kernel(body), out)
    assert out.tolist() == [5, 5, 1, 5] + [1] * 28


def test_warp_sync_that_some_lanes_never_reach_is_a_deadlock() -> None:
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 3; @%p1 bra FEW; bar.warp.sync 0xffffffff; bra END;
    FEW: shfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31, -1;
    END:
    """
    with pytest.raises(sim.Deadlock, match=r"(?s)bar\.warp\.sync.*waits for lanes.*shfl"):
        Bench().run(kernel(body), np.zeros(1, np.uint32))


@pytest.mark.parametrize("schedule", ALL, ids=ids)
def test_named_barriers_order_shared_memory(schedule: sim.Schedule) -> None:
    body = STORE + """
    mov.u32 %r1, %tid.x; mov.u32 %r2, buf; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.u32 [%r3], %r1;
    bar.sync 1, 96; xor.b32 %r4, %r1, 32; rem.u32 %r4, %r4, 96; mad.lo.u32 %r3, %r4, 4, %r2;
    ld.shared.u32 %r5, [%r3]; st.global.u32 [%d61], %r5;
    """
    out = np.zeros(96, np.uint32)
    Bench(schedule, block=(96,)).run(kernel(body, shared=".shared .align 4 .b8 buf[384];"), out)
    assert out.tolist() == [(n ^ 32) % 96 for n in range(96)]


def test_barrier_arrive_and_sync_pair_up() -> None:
    body = STORE + """
    mov.u32 %r1, %tid.x; mov.u32 %r2, buf; and.b32 %r4, %r1, 31; mad.lo.u32 %r3, %r4, 4, %r2;
    setp.ge.u32 %p1, %r1, 32; @%p1 bra READER;
    st.shared.u32 [%r3], %r1; bar.arrive 2, 64; bra END;
    READER: bar.sync 2, 64; ld.shared.u32 %r5, [%r3]; st.global.u32 [%d61], %r5;
    END:
    """
    out = np.full(64, 7, np.uint32)
    Bench(block=(64,)).run(kernel(body, shared=".shared .align 4 .b8 buf[128];"), out)
    assert out[32:].tolist() == list(range(32))


@pytest.mark.parametrize(("there", "warned"), [("bar.sync 2, 64;", True), ("bra BOTH;", False)], ids=["own", "one"])
def test_waiting_in_two_places_is_told(there: str, warned: bool) -> None:
    """PTX allows it; compute-sanitizer's synccheck does not."""
    body = f"""
    mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra THERE;
    BOTH: bar.sync 2, 64; bra END;
    THERE: {there}
    END:
    """
    report = Bench(block=(64,)).run(kernel(body), np.zeros(1, np.uint32))
    assert any("warps wait in different places" in text for text in report.warnings) == warned


def test_barrier_reduction_counts_threads() -> None:
    body = (
        STORE
        + "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 37; bar.red.popc.u32 %r2, 0, %p1; st.global.u32 [%d61], %r2;"
    )
    out = np.zeros(64, np.uint32)
    Bench(block=(64,)).run(kernel(body), out)
    assert (out == 37).all()


def test_deadlock_names_barrier_role_and_counts() -> None:
    body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 bra END; bar.sync 3, 96; END:"
    labels = sim.Labels(roles=[("load", 0, 1), ("math", 1, 1)], named_barriers={3: "store ready"})
    with pytest.raises(
        sim.Deadlock, match=r"warp 1 \(math\): waits at .*named barrier 3 \(store ready\): 32 of 96 threads"
    ):
        Bench(block=(64,), labels=labels).run(kernel(body), np.zeros(1, np.uint32))


def test_barrier_thread_count_must_agree_and_be_whole_warps() -> None:
    with pytest.raises(sim.Fault, match=r"multiple of 32"):
        Bench().run(kernel("bar.sync 1, 40;"), np.zeros(1, np.uint32))
    body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 96; A: bar.sync 1, 64;"
    with pytest.raises(sim.Fault, match=r"threads expected here"):
        Bench(block=(64,)).run(kernel(body), np.zeros(1, np.uint32))


def test_trap_and_endless_loops_end() -> None:
    with pytest.raises(sim.Fault, match=r"trap executed"):
        Bench().run(kernel("trap;"), np.zeros(1, np.uint32))
    with pytest.raises(sim.Fault, match=r"max_instructions"):
        Bench(options={"max_instructions": 50_000}).run(
            kernel("L: add.u32 %r1, %r1, 1; st.local.u32 [depot], %r1; bra L;", shared=".local .align 4 .b8 depot[8];"),
            np.zeros(1, np.uint32),
        )


def test_repeated_labels_in_scopes_and_glued_braces() -> None:
    body = STORE + """
    mov.u32 %r3, 0;
    { .reg .pred P1; LAB: add.u32 %r3, %r3, 1; setp.lt.u32 P1, %r3, 4; @P1 bra LAB; }
    { .reg .pred P1; LAB: add.u32 %r3, %r3, 10; setp.lt.u32 P1, %r3, 40; @P1 bra LAB; }
    mov.b64 %d5,{%r3, %r3}; mov.b64 {%r4, _}, %d5; st.global.u32 [%d61+-0], %r4;
    """
    out = np.zeros(32, np.uint32)
    Bench().run(kernel(body), out)
    assert (out == 44).all()


def test_message_leads_to_the_cuda_line_and_its_spec_comment() -> None:
    source = "line one\n// spec: roles.load: tma_load\nwrite(p);\nlater();\n"
    body = ".loc 1 4 2\nmov.u64 %d1, 64;\n.loc 2 40 3, function_name $L0, inlined_at 1 3 1\nst.global.u32 [%d1], 5;"
    text = kernel(body) + '.file 1 "src/kernel.cu"\n.file 2 "ptx/copy.cuh"\n'
    with pytest.raises(sim.OutOfBounds, match=r"kernel\.cu:3 via copy\.cuh:40, spec: roles\.load: tma_load"):
        Bench().run(text, np.zeros(1, np.uint32), source=source)


def test_parse_errors_name_line_and_register() -> None:
    with pytest.raises(sim.ParseError, match=r"PTX line 11: register '%q' is not declared"):
        sim.load(kernel("@%q bra END; END:"))
    with pytest.raises(sim.ParseError, match=r"label 'NOWHERE' is not defined"):
        sim.load(kernel("bra NOWHERE;"))


def test_launch_arguments_are_checked() -> None:
    text = kernel("mov.u32 %r1, 0;")
    with pytest.raises(sim.Fault, match=r"takes 1 parameters, got 0"):
        Bench().run(text)
    with pytest.raises(sim.Fault, match=r"has 8 bytes, got 4"):
        Bench().run(text, b"1234")
    with pytest.raises(sim.Fault, match=r"positive multiple of the cluster"):
        Bench(grid=(3,), cluster=(2,)).run(text, np.zeros(1, np.uint32))


@pytest.mark.parametrize(
    ("target", "most"), [("sm_90a", 232448), ("sm_100a", 232448), ("sm_103a", 232448), ("sm_120a", 101376)]
)
def test_shared_memory_is_what_a_cta_of_the_target_has(target: str, most: int) -> None:
    text = kernel("mov.u32 %r1, 0;").replace("sm_90a", target)
    Bench(shared_bytes=most).run(text, np.zeros(1, np.uint32))
    with pytest.raises(sim.Fault, match=rf"{most + 16} bytes .* a CTA of {target} has at most {most}"):
        Bench(shared_bytes=most + 16).run(text, np.zeros(1, np.uint32))
