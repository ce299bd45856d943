"""Loads, stores and atomics of every space; bounds, alignment, lane and warp races."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

TID = "mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;"
BUF = ".shared .align 16 .b8 buf[1024];"
SLOT = "mov.u32 %r2, buf; mad.lo.u32 %r3, %r1, 4, %r2;"


def test_vectors_of_every_width() -> None:
    source = np.random.default_rng(3).integers(0, 1 << 32, (32, 4), dtype=np.uint32)
    out = np.zeros((32, 4), np.uint32)
    body = """
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 16; ld.param.u64 %d1, [out]; ld.param.u64 %d2, [a];
    add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
    ld.global.nc.L1::no_allocate.v4.u32 {%r4, %r5, %r6, %r7}, [%d2]; ld.global.v2.u32 {%r8, %r9}, [%d2+8];
    st.global.v4.u32 [%d1], {%r7, %r6, %r8, %r9};
    """
    Bench().run(kernel(body, ".param .u64 out, .param .u64 a"), out, source)
    assert (out == source[:, [3, 2, 2, 3]]).all()


def test_narrow_loads_extend_and_narrow_stores_truncate() -> None:
    source = np.arange(0, 256, 8, dtype=np.uint8)
    out = np.zeros(32, np.int32)
    body = (
        TID
        + "cvt.u64.u32 %d3, %r1; ld.param.u64 %d4, [a]; add.s64 %d4, %d4, %d3; ld.global.s8 %r5, [%d4];"
        + "st.u32 [%d2], %r5;"
    )
    Bench().run(kernel(body, ".param .u64 out, .param .u64 a"), out, source)
    assert (out == source.view(np.int8)).all()
    small = np.zeros(32, np.uint8)
    body = "mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; cvt.u64.u32 %d3, %r1; add.s64 %d1, %d1, %d3;"
    body += "add.u32 %r2, %r1, 768;"
    Bench().run(kernel(body + "st.global.u8 [%d1], %r2;"), small)
    assert (small == np.arange(32)).all()


def test_generic_addresses_reach_every_space() -> None:
    body = TID + """
    mov.u32 %r2, buf; cvt.u64.u32 %d3, %r2; cvta.shared.u64 %d3, %d3; mul.wide.u32 %d4, %r1, 4; add.s64 %d3, %d3, %d4;
    st.u32 [%d3], %r1; ld.u32 %r4, [%d3];
    mov.u64 %d5, depot; cvta.local.u64 %d5, %d5; st.u32 [%d5+4], %r4; ld.u32 %r5, [%d5+4];
    mov.b64 %d6, out; cvta.param.u64 %d6, %d6; ld.u64 %d7, [%d6]; add.s64 %d7, %d7, %d4;
    isspacep.shared %p1, %d3; selp.u32 %r6, 100, 0, %p1; add.u32 %r5, %r5, %r6; st.u32 [%d7], %r5;
    """
    out = np.zeros(32, np.uint32)
    Bench().run(kernel(body, shared=BUF + ".local .align 8 .b8 depot[16];"), out)
    assert (out == np.arange(32) + 100).all()


def test_parameter_structs_and_module_constants() -> None:
    out = np.zeros(4, np.uint32)
    body = """
    ld.param.u64 %d1, [out]; ld.param.v2.u32 {%r4, %r5}, [s+8]; ld.const.u32 %r6, [table+4]; ld.param.s8 %r7, [s];
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 exit; st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7};
    """
    text = kernel(
        body, ".param .u64 out, .param .align 8 .b8 s[16]", extra=".const .align 4 .u32 table[2] = {7, 0x2A};"
    )
    Bench().run(text, out, np.array([0xFE, 0, 11, 22], np.uint32).tobytes())
    assert out.tolist() == [11, 22, 42, 0xFFFFFFFE]


@pytest.mark.parametrize(
    ("op", "ptx_type", "expected"),
    [
        ("add", "u32", 10 + 496),
        ("max", "u32", 31),
        ("min", "s32", 0),
        ("or", "b32", 31),
        ("exch", "b32", None),
        ("inc", "u32", None),
    ],
)
def test_atomics(op: str, ptx_type: str, expected: int | None) -> None:
    memory, out = np.full(1, 10, np.uint32), np.zeros(32, np.uint32)
    body = TID + f"ld.param.u64 %d5, [a]; atom.global.{op}.{ptx_type} %r5, [%d5], %r1; st.global.u32 [%d2], %r5;"
    Bench().run(kernel(body, ".param .u64 out, .param .u64 a"), out, memory)
    assert out[0] == 10
    if expected is not None:
        assert memory[0] == expected


def test_compare_and_swap_and_float_vectors() -> None:
    memory, out = np.zeros(8, np.uint32), np.zeros(32, np.uint32)
    body = (
        TID
        + "ld.param.u64 %d5, [a]; add.u32 %r6, %r1, 1; atom.global.cas.b32 %r5, [%d5], %r1, %r6;"
        + "st.global.u32 [%d2], %r5;"
    )
    Bench().run(kernel(body, ".param .u64 out, .param .u64 a"), out, memory)
    assert memory[0] == 32 and out.tolist() == list(range(32))
    sums = np.zeros(2, np.float32)
    body = "ld.param.u64 %d5, [out]; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;"
    body += "red.global.add.v2.f32 [%d5], {%f1, %f2};"
    Bench().run(kernel(body), sums)
    assert sums.tolist() == [32.0, 64.0]


def test_out_of_bounds_names_the_buffer() -> None:
    with pytest.raises(sim.OutOfBounds, match=r"array0: access of 4 bytes at offset 124, but it has 124 bytes"):
        Bench().run(kernel(TID + "st.global.u32 [%d2], %r1;"), np.zeros(31, np.uint32))
    with pytest.raises(sim.OutOfBounds, match=r"no mapped buffer"):
        Bench().run(kernel("mov.u64 %d1, 0; ld.global.u32 %r1, [%d1];"), np.zeros(1, np.uint32))
    with pytest.raises(sim.OutOfBounds, match=r"shared memory of CTA .* at offset"):
        Bench().run(kernel("mov.u32 %r1, buf; ld.shared.u32 %r2, [%r1+4096];", shared=BUF), np.zeros(1, np.uint32))
    with pytest.raises(sim.OutOfBounds, match=r"reserved by the system"):
        Bench().run(kernel("mov.u32 %r1, 16; ld.shared.u32 %r2, [%r1];", shared=BUF), np.zeros(1, np.uint32))


def test_a_buffer_above_4_gib_runs_into_no_other() -> None:
    """The first one's memory is left alone but for the word that is written."""
    large, small = np.empty(2**32 + 64, np.uint8), np.zeros(16, np.uint32)
    body = "mov.u32 %r1, 7; ld.param.u64 %d1, [out]; mov.u64 %d2, {}; add.s64 %d1, %d1, %d2; st.global.u32 [%d1], %r1;"
    params = ".param .u64 out, .param .u64 a"
    Bench(block=(1,)).run(kernel(body.format(2**32 + 8), params), large, small)
    assert large[2**32 + 8 : 2**32 + 12].view(np.uint32) == 7 and not small.any()
    with pytest.raises(sim.OutOfBounds, match=r"array0: access of 4 bytes at offset 4294967360, but it has"):
        Bench(block=(1,)).run(kernel(body.format(2**32 + 64), params), large, small)


def test_misaligned_and_read_only_accesses() -> None:
    with pytest.raises(sim.Fault, match=r"multiple of 8"):
        Bench().run(kernel(TID + "ld.global.v2.u32 {%r4, %r5}, [%d1+4];"), np.zeros(32, np.uint32))
    frozen = np.zeros(32, np.uint32)
    frozen.setflags(write=False)
    with pytest.raises(sim.Fault, match=r"read-only"):
        Bench().run(kernel(TID + "st.global.u32 [%d2], %r1;"), frozen)


def test_memory_starts_poisoned() -> None:
    out = np.zeros(32, np.float32)
    body = TID + SLOT + "ld.shared.f32 %f1, [%r3]; st.global.f32 [%d2], %f1;"
    Bench().run(kernel(body, shared=BUF), out)
    assert np.isnan(out).all()


EXCHANGE = (
    TID
    + SLOT
    + "st.shared.u32 [%r3], %r1; {sync} xor.b32 %r4, %r1, 1; mad.lo.u32 %r5, %r4, 4, %r2; ld.shared.u32 %r6, [%r5];"
)


def test_lanes_exchange_through_shared_memory_only_after_a_warp_sync() -> None:
    out = np.zeros(32, np.uint32)
    body = EXCHANGE.replace("{sync}", "bar.warp.sync -1;") + "st.global.u32 [%d2], %r6;"
    Bench().run(kernel(body, shared=BUF), out)
    assert out.tolist() == [n ^ 1 for n in range(32)]
    with pytest.raises(sim.Race, match=r"one lane reads what lane \d+ of the same warp wrote"):
        Bench().run(kernel(EXCHANGE.replace("{sync}", ""), shared=BUF), out)


def test_a_shuffle_between_lane_accesses_is_only_a_warning() -> None:
    body = EXCHANGE.replace("{sync}", "shfl.sync.idx.b32 %r7|%p1, %r1, 0, 31, -1;")
    report = Bench().run(kernel(body, shared=BUF), np.zeros(32, np.uint32))
    assert any("which orders no memory" in text for text in report.warnings)


CROSS = (
    TID
    + SLOT
    + "st.shared.u32 [%r3], %r1; {sync} xor.b32 %r4, %r1, 32; mad.lo.u32 %r5, %r4, 4, %r2; ld.shared.u32 %r6, [%r5];"
)


@pytest.mark.parametrize("schedule", sim.all_schedules(), ids=lambda s: s.mode)
def test_warps_exchange_only_through_a_barrier(schedule: sim.Schedule) -> None:
    out = np.zeros(64, np.uint32)
    body = CROSS.replace("{sync}", "bar.sync 0;") + "st.global.u32 [%d2], %r6;"
    Bench(schedule, block=(64,)).run(kernel(body, shared=BUF), out)
    assert out.tolist() == [n ^ 32 for n in range(64)]
    with pytest.raises(sim.Race, match=r"no barrier orders"):
        Bench(schedule, block=(64,)).run(kernel(CROSS.replace("{sync}", "bar.warp.sync -1;"), shared=BUF), out)


def test_write_after_read_needs_a_barrier_too() -> None:
    body = TID + SLOT + """
    st.shared.u32 [%r3], %r1; bar.sync 0; xor.b32 %r4, %r1, 32; mad.lo.u32 %r5, %r4, 4, %r2; ld.shared.u32 %r6, [%r5];
    {sync} st.shared.u32 [%r3], %r6;
    """
    Bench(block=(64,)).run(kernel(body.replace("{sync}", "bar.sync 0;"), shared=BUF), np.zeros(64, np.uint32))
    with pytest.raises(sim.Race, match=r"no barrier orders (the read before the write|that write before this)"):
        Bench(block=(64,)).run(kernel(body.replace("{sync}", ""), shared=BUF), np.zeros(64, np.uint32))


def test_races_can_be_warnings_and_flags_pass_order_on() -> None:
    body = CROSS.replace("{sync}", "bar.warp.sync -1;")
    report = Bench(block=(64,), options={"races": "warn"}).run(kernel(body, shared=BUF), np.zeros(64, np.uint32))
    assert any(text.startswith("race: ") for text in report.warnings)
    flag = TID + SLOT + """
    setp.ge.u32 %p1, %r1, 32; @%p1 bra READER; st.shared.u32 [%r3], %r1; bar.warp.sync -1;
    st.volatile.shared.u32 [buf+512], 1; bra END;
    READER: ld.volatile.shared.u32 %r7, [buf+512]; setp.ne.u32 %p2, %r7, 1; @%p2 bra READER;
    ld.shared.u32 %r6, [%r3+-128]; st.global.u32 [%d2], %r6;
    END:
    """
    for schedule in sim.all_schedules(2):
        out = np.zeros(64, np.uint32)
        Bench(schedule, block=(64,)).run(kernel(flag, shared=BUF), out)
        assert out[32:].tolist() == list(range(32))


SPIN = """
mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; setp.ge.u32 %p1, %r1, 32; @%p1 bra WRITER;
SPIN: ld.acquire.gpu.global.u32 %r2, [%d1]; setp.ne.u32 %p2, %r2, 7; @%p2 bra SPIN; bra END;
WRITER: {store}
END:
"""


def test_polling_global_memory_ends_under_every_schedule_or_is_a_deadlock() -> None:
    store = "mov.u32 %r3, 7; st.release.gpu.global.u32 [%d1], %r3;"
    for schedule in sim.all_schedules(2):
        Bench(schedule, block=(64,)).run(kernel(SPIN.replace("{store}", store)), np.zeros(1, np.uint32))
    with pytest.raises(sim.Deadlock, match=r"runs without progress near `ld\.acquire"):
        Bench(block=(64,)).run(kernel(SPIN.replace("{store}", "")), np.zeros(1, np.uint32))
