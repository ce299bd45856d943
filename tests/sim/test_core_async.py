"""Asynchronous copies under every schedule, and each of their rules once broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from core_ptx import HEAD, REGISTERS, Bench, pointer

from gemmgen import sim

MODES = sim.all_schedules(2)
LABELS = sim.Labels(
    barriers=[("ab.full", 4096, 2), ("ab.empty", 4112, 2)],
    regions=[("ab.a", 0, 1024, 2048, 2)],
    roles=[("load", 0, 1), ("math", 1, 1)],
)
START = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;
mov.b64 %d3, map; cvta.param.u64 %d3, %d3; setp.ne.u32 %p1, %r1, 0; add.u32 %r3, %r2, 4096;
@%p1 bra READY; mbarrier.init.shared::cta.b64 [%r3], 1; mbarrier.init.shared::cta.b64 [%r3+8], 1;
{fence} READY: bar.sync 0;
"""
FENCE = "fence.mbarrier_init.release.cluster;"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
ARM = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {bytes};"
WAIT = "W{n}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], {parity}; @!%p2 bra W{n};"
COPY = "@%p1 bra LOADED; " + ARM + LOAD + " [%r2], [%d3, {{%r10, %r11}}], [%r3]; LOADED:"
READ = "mad.lo.u32 %r5, %r1, 4, %r2; ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2], %r6;"
ZERO = "mov.u32 %r10, 0; mov.u32 %r11, 0;"


def text(body: str) -> str:
    params = ".param .u64 out, .param .align 64 .b8 map[128]"
    shared = ".extern .shared .align 1024 .b8 smem[];"
    return f"{HEAD}\n.visible .entry k({params})\n{{\n{REGISTERS}\n{shared}\n{body}\nret;\n}}\n"


def launch(
    body: str, schedule: sim.Schedule, source: np.ndarray, swizzle: str = "none", threads: int = 64, rows: int = 0
) -> np.ndarray:
    """Two warps; the map covers source [rows, 32] of uint32 (or claims other rows) with boxes of 8 x 32."""
    gpu = sim.Gpu(schedule)
    out = np.zeros(64, np.uint32)
    address, target = gpu.map(source, "source"), gpu.map(out, "out")
    rows, columns = rows or len(source), source.shape[1]
    encoded = sim.encode_tensor_map("uint32", address, [columns, rows], [columns * 4], [32, 8], [1, 1], swizzle)
    report = gpu.launch(
        sim.load(text(body)), "k", (1,), (threads,), [pointer(target), encoded], shared_bytes=8192, labels=LABELS
    )
    out_report.append(report)
    return out


out_report: list[sim.Report] = []


def good(nbytes: int = 1024) -> str:
    return START.replace("{fence}", FENCE) + ZERO + COPY.format(bytes=nbytes) + WAIT.format(n=1, parity=0) + READ


def source(rows: int = 8) -> np.ndarray:
    return np.arange(rows * 32, dtype=np.uint32).reshape(rows, 32) + 1


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_tensor_load_lands_before_the_wait_passes(schedule: sim.Schedule) -> None:
    assert launch(good(), schedule, source()).tolist() == list(range(1, 65))
    message = r"reads it, but an asynchronous copy that completes on ab\.full\[0\]|writes it while|bytes outstanding"
    with pytest.raises(sim.SimulationError, match=message):
        launch(good().replace(WAIT.format(n=1, parity=0), ""), schedule, source())


def test_out_of_bounds_rows_are_zero_and_count_as_bytes() -> None:
    body = good().replace("mov.u32 %r11, 0;", "mov.u32 %r11, -1;")
    assert launch(body, sim.Schedule("late"), source(7)).tolist() == [0] * 32 + list(range(1, 33))


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_a_map_that_names_more_than_the_buffer_is_out_of_bounds_whenever_it_lands(schedule: sim.Schedule) -> None:
    with pytest.raises(sim.OutOfBounds, match="dims and strides name more than is allocated"):
        launch(good(), schedule, source(8)[:4], rows=8)


@pytest.mark.parametrize("schedule", MODES[:2], ids=lambda s: s.mode)
def test_too_many_bytes_expected_is_a_deadlock_and_too_few_are_left_over(schedule: sim.Schedule) -> None:
    with pytest.raises(sim.Deadlock, match=r"ab\.full\[0\].*0 of 1 arrivals pending, 16 bytes outstanding"):
        launch(good(1040), schedule, source())
    with pytest.raises((sim.Deadlock, sim.Fault, sim.Race), match=r"outstanding|may still read|no barrier orders"):
        launch(good(1008), schedule, source())


def test_barrier_initialisation_needs_a_fence_for_the_async_proxy() -> None:
    body = good().replace(FENCE, "")
    with pytest.raises(sim.Fault, match=r"ab\.full\[0\].*the async proxy, but no fence"):
        launch(body, sim.Schedule("early"), source())
    assert launch(good().replace(FENCE, "fence.proxy.async.shared::cta;"), sim.Schedule("early"), source())[0] == 1


RING = (
    START
    + ZERO
    + """
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024;
@!%p1 LOAD [%r2], [%d3, {{%r10, %r11}}], [%r3];
""".replace("LOAD", LOAD)
    + WAIT.format(n=1, parity=0)
    + READ
    + """{release}
@%p1 bra SKIP; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024;
LOAD [%r2], [%d3, {{%r10, %r11}}], [%r3]; SKIP:
""".replace("LOAD", LOAD)
    + WAIT.format(n=2, parity=1)
)


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_refilling_a_slot_needs_its_readers_to_be_done(schedule: sim.Schedule) -> None:
    body = RING.replace("{fence}", FENCE).replace("{{", "{").replace("}}", "}")
    launch(body.replace("{release}", "bar.sync 0;"), schedule, source())
    with pytest.raises((sim.Race, sim.Deadlock), match=r"ab\.a\[0\].*may still read it|ab\.full\[0\].* phase 2"):
        launch(body.replace("{release}", ""), schedule, source())


STORE = START + """
mad.lo.u32 %r5, %r1, 16, %r2; add.u32 %r6, %r1, 500; st.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6};
{proxy} bar.sync 0; {late_proxy} mov.u32 %r10, 0; mov.u32 %r11, 0; @%p1 bra STORED;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d3, {%r10, %r11}], [%r2];
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; STORED: {after}
"""


def store_body(proxy: str = "", late_proxy: str = "", after: str = "") -> str:
    body = STORE.replace("{fence}", FENCE).replace("{proxy}", proxy).replace("{late_proxy}", late_proxy)
    return body.replace("{after}", after)


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_tensor_store_needs_a_proxy_fence_on_either_side_of_the_barrier(schedule: sim.Schedule) -> None:
    fence = "fence.proxy.async.shared::cta;"
    for body in (store_body(proxy=fence), store_body(late_proxy=fence)):
        target = np.zeros((8, 32), np.uint32)
        launch(body, schedule, target)
        assert (target.reshape(64, 4) == np.arange(500, 564)[:, None]).all()
    with pytest.raises(sim.Race, match=r"ordinary stores; fence\.proxy\.async is missing"):
        launch(store_body(), schedule, np.zeros((8, 32), np.uint32))


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_staging_memory_may_be_reused_only_after_wait_group_read(schedule: sim.Schedule) -> None:
    reuse = "bar.sync 0; st.shared.v4.u32 [%r5], {%r1, %r1, %r1, %r1};"
    kept = store_body(proxy="fence.proxy.async;", after=reuse)
    target = np.zeros((8, 32), np.uint32)
    launch(kept, schedule, target)
    assert (target.reshape(64, 4)[:, 0] == np.arange(500, 564)).all()
    with pytest.raises(sim.Race, match=r"may still read it \(still in flight\)"):
        launch(kept.replace("cp.async.bulk.wait_group.read 0;", ""), schedule, target)


def test_a_store_never_waited_for_is_a_warning_and_still_happens() -> None:
    target = np.zeros((8, 32), np.uint32)
    body = store_body(proxy="fence.proxy.async;").replace("cp.async.bulk.wait_group.read 0;", "")
    launch(body, sim.Schedule("late"), target)
    assert target[0, 0] == 500 and "exits while bulk stores may still read" in out_report[-1].warnings[0]


def test_tensor_reduce_adds() -> None:
    target = np.full((8, 32), 7, np.uint32)
    body = store_body(proxy="fence.proxy.async;").replace(
        "cp.async.bulk.tensor.2d.global", "cp.reduce.async.bulk.tensor.2d.global"
    )
    launch(body.replace("shared::cta.bulk_group", "shared::cta.add.bulk_group"), sim.Schedule("random"), target)
    assert (target.reshape(64, 4) == np.arange(507, 571)[:, None]).all()


def test_plain_bulk_copies_both_ways() -> None:
    body = (
        START.replace("{fence}", FENCE)
        + """
    ld.param.u64 %d5, [map]; @%p1 bra GO; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d5], 256, [%r3]; GO:
    """
        + WAIT.format(n=1, parity=0)
        + """
    @%p1 bra END; cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 256; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0; END:
    """
    )
    for schedule in MODES:
        gpu, out, data = sim.Gpu(schedule), np.zeros(64, np.uint32), source()
        params = [pointer(gpu.map(out, "out")), pointer(gpu.map(data, "data")).ljust(128, b"\0")]
        gpu.launch(sim.load(text(body)), "k", (1,), (64,), params, shared_bytes=8192)
        assert out.tolist() == list(range(1, 65))


CP_ASYNC = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [out]; ld.param.u64 %d4, [map]; mul.wide.u32 %d2, %r1, 4;
add.s64 %d3, %d1, %d2; add.s64 %d4, %d4, %d2; mad.lo.u32 %r5, %r1, 4, %r2; setp.lt.u32 %p1, %r1, 60;
selp.u32 %r9, 4, 0, %p1;
cp.async.ca.shared.global [%r5], [%d4], 4, %r9; cp.async.commit_group; {wait} bar.sync 0;
xor.b32 %r6, %r1, 33; mad.lo.u32 %r6, %r6, 4, %r2; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d3], %r7;
"""


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_cp_async_waits_and_zero_fills(schedule: sim.Schedule) -> None:
    gpu, out, data = sim.Gpu(schedule), np.zeros(64, np.uint32), source()
    params = [pointer(gpu.map(out, "out")), pointer(gpu.map(data, "data")).ljust(128, b"\0")]
    module = sim.load(text(CP_ASYNC.replace("{wait}", "cp.async.wait_group 0;")))
    gpu.launch(module, "k", (1,), (64,), params, shared_bytes=8192)
    assert out.tolist() == [(n ^ 33) + 1 if n ^ 33 < 60 else 0 for n in range(64)]
    broken = sim.load(text(CP_ASYNC.replace("{wait}", "")))
    with pytest.raises(sim.Race, match=r"no barrier orders"):
        gpu.launch(broken, "k", (1,), (64,), params, shared_bytes=8192)


MULTICAST = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mov.u32 %r4, %cluster_ctarank; ld.param.u64 %d1, [out];
mul.wide.u32 %d2, %r1, 4;
mul.wide.u32 %d5, %r4, 128; add.s64 %d2, %d1, %d2; add.s64 %d2, %d2, %d5; mov.b64 %d3, map; cvta.param.u64 %d3, %d3;
setp.ne.u32 %p1, %r1, 0; add.u32 %r3, %r2, 4096; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024; READY:
barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u16 %h1, 3;
setp.eq.u32 %p3, %r4, 0; @!%p3 bra GO; @%p1 bra GO;
LOAD.multicast::cluster [%r2], [%d3, {%r10, %r11}], [%r3], %h1; GO:
""".replace("LOAD", LOAD) + WAIT.format(n=1, parity=0) + READ


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_multicast_writes_and_signals_every_cta(schedule: sim.Schedule) -> None:
    gpu, out, data = sim.Gpu(schedule), np.zeros(64, np.uint32), source()
    encoded = sim.encode_tensor_map("uint32", gpu.map(data, "data"), [32, 8], [128], [32, 8], [1, 1], "128b")
    params = [pointer(gpu.map(out, "out")), encoded]
    gpu.launch(sim.load(text(MULTICAST)), "k", (2,), (32,), params, cluster=(2,), shared_bytes=8192)
    assert (out.reshape(2, 32) == np.arange(1, 33)).all()


def test_bad_tensor_maps_and_targets_are_named() -> None:
    with pytest.raises(sim.Fault, match=r"no tensor map"):
        gpu = sim.Gpu(sim.Schedule("early"))
        params = [pointer(gpu.map(np.zeros(64, np.uint32), "out")), bytes(128)]
        gpu.launch(sim.load(text(good())), "k", (1,), (64,), params, shared_bytes=8192)
    with pytest.raises(sim.Fault, match=r"multiple of 128"):
        launch(good().replace(LOAD + " [%r2]", LOAD + " [%r2+64]"), sim.Schedule("early"), source())
    assert replace(LABELS).region(2048 + 64) == "ab.a[1]+64"
    assert isinstance(Bench().block, tuple)


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_a_load_that_nobody_waits_for_is_reported_at_exit(schedule: sim.Schedule) -> None:
    body = good().replace(WAIT.format(n=1, parity=0) + READ, "")
    with pytest.raises(
        sim.Fault, match=r"nobody waited for the copies that complete on ab\.full\[0\]|bytes outstanding"
    ):
        launch(body, schedule, source())
