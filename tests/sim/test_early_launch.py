"""Memory that kernels ahead of an early launch may still use: every kind of access to it must come after the wait."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import HEAD, REGISTERS, pointer

from gemmgen import sim

WAIT = "griddepcontrol.wait;"
START = """
griddepcontrol.launch_dependents;
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r1, 4;
add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3; mad.lo.u32 %r3, %r1, 4, %r2; mov.u32 %r4, 0; add.u32 %r5, %r2, 4096;
mov.b64 %d6, map; cvta.param.u64 %d6, %d6; mov.b64 %d7, to; cvta.param.u64 %d7, %d7; setp.ne.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r1, 0; setp.ge.u32 %p3, %r1, 16;
@%p1 bra READY; mbarrier.init.shared::cta.b64 [%r5], 1; fence.mbarrier_init.release.cluster; READY: bar.sync 0;
st.shared.u32 [%r3], %r1; fence.proxy.async; bar.sync 0;
"""
ARM = "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;"
LANDED = "W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r5], 0; @!%p4 bra W;"
STORED = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
BULK = "mbarrier::complete_tx::bytes"
READS = {
    "ld": "ld.global.u32 %r6, [%d4];",
    "ld of a generic address": "ld.u32 %r6, [%d4];",
    "ld.nc": "ld.global.nc.v2.u32 {%r6, %r7}, [%d1];",
    "cp.async": "cp.async.ca.shared.global [%r3], [%d4], 4; cp.async.wait_all;",
    "bulk load": ARM + f"@%p2 cp.async.bulk.shared::cluster.global.{BULK} [%r2], [%d1], 128, [%r5];" + LANDED,
    "tensor load": ARM
    + f"@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.{BULK} [%r2], [%d6, {{%r4, %r4}}], [%r5];"
    + LANDED,
}
WRITES = {
    "st": "st.global.u32 [%d5], %r1;",
    "atom": "atom.global.add.u32 %r6, [%d5], 1;",
    "red": "red.global.add.u32 [%d2], 1;",
    "bulk store": f"@%p2 cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 128; {STORED}",
    "bulk reduction": f"@%p2 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d2], [%r2], 128; {STORED}",
    "tensor store": f"@%p2 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d7, {{%r4, %r4}}], [%r2]; {STORED}",
    "tensor reduction": "@%p2 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
    f"[%d7, {{%r4, %r4}}], [%r2]; {STORED}",
}
ACCESSES = READS | WRITES
ALLOWED = "prefetch.global.L2 [%d4]; prefetch.tensormap [%d6]; ld.param.u64 %d8, [in];"
COLUMNS, PITCH = 32, 48  # rows of 32 numbers, and 16 behind each that are somebody else's


def run(body: str, in_use: str = "in out", part: tuple[int, int] | None = None, warps: int = 1) -> sim.Report:
    """A kernel with a matrix to read and one to write; ``in_use`` names those that kernels ahead may still use."""
    gpu = sim.Gpu()
    arrays = {name: np.zeros((8, PITCH), np.uint32) for name in ("in", "out")}
    places = {name: gpu.map(array, name) for name, array in arrays.items()}
    maps = [
        sim.encode_tensor_map("uint32", at, [COLUMNS, 8], [4 * PITCH], [COLUMNS, 1], [1, 1], "none")
        for at in places.values()
    ]
    params = ".param .u64 in, .param .u64 out, .param .align 64 .b8 map[128], .param .align 64 .b8 to[128]"
    shared = ".extern .shared .align 1024 .b8 smem[];"
    text = f"{HEAD}\n.visible .entry k({params})\n{{\n{REGISTERS}\n{shared}\n{START}{body}\nret;\n}}\n"
    start, nbytes = part or (0, arrays["in"].nbytes)
    return gpu.launch(
        sim.load(text),
        "k",
        grid=(1,),
        block=(32 * warps,),
        params=[*map(pointer, places.values()), *maps],
        shared_bytes=8192,
        labels=sim.Labels(roles=[("load", 0, 1), ("math", 1, 1)]),
        in_use=[(places[name] + start, nbytes) for name in in_use.split()],
    )


@pytest.mark.parametrize("what", ACCESSES)
def test_an_access_before_the_wait_is_found(what: str) -> None:
    name, did, may = ("in", "read", "write") if what in READS else ("out", "write", "use")
    place = rf"{name}(\+0|, box at \(0, 0\))"
    message = rf"^k, CTA \(0, 0, 0\), warp 0 \(load\): `.* \(PTX line \d+\): {place}: lanes (0|0-31) {did} it before "
    message += rf"their griddepcontrol\.wait; a kernel ahead may still {may} it$"
    with pytest.raises(sim.Fault, match=message):
        run(ACCESSES[what] + WAIT)


@pytest.mark.parametrize("what", ACCESSES)
def test_an_access_after_the_wait_passes(what: str) -> None:
    assert not run(WAIT + ACCESSES[what]).warnings


@pytest.mark.parametrize("what", ACCESSES)
def test_what_nobody_declared_may_be_touched_before_the_wait(what: str) -> None:
    assert not run(ACCESSES[what] + WAIT, in_use="out" if what in READS else "in").warnings
    assert not run(ACCESSES[what], in_use="").warnings


@pytest.mark.parametrize("what", ["tensor load", "tensor store", "bulk load", "bulk store", "cp.async", "ld", "st"])
def test_a_range_ends_where_it_was_said_to_end(what: str) -> None:
    """All of these touch 128 bytes: what lies behind them, between rows, is another's."""
    assert not run(ACCESSES[what], part=(128, 64)).warnings
    with pytest.raises(sim.Fault, match=r"before their griddepcontrol\.wait"):
        run(ACCESSES[what], part=(124, 68))


def test_prefetches_and_parameters_are_no_accesses() -> None:
    assert not run(ALLOWED).warnings


def test_every_lane_waits_for_itself() -> None:
    half = "@%p3 griddepcontrol.wait;"
    with pytest.raises(sim.Fault, match=r"in\+0: lanes 0-15 read it before"):
        run(half + READS["ld"])
    assert not run(half + "@%p3 " + READS["ld"]).warnings
    diverged = "@%p3 bra THERE; griddepcontrol.wait; THERE:"
    with pytest.raises(sim.Fault, match=r"out\+64: lanes 16-31 write it before"):
        run(diverged + WRITES["st"])


def test_the_wait_of_another_warp_does_not_count() -> None:
    """Not even where a barrier orders it before."""
    first = "setp.ge.u32 %p5, %r1, 32; @%p5 bra MEET; griddepcontrol.wait; MEET: bar.sync 0;"
    with pytest.raises(sim.Fault, match=r"warp 1 \(math\).*lanes 0-31 write it before"):
        run(first + WRITES["st"], warps=2)
    assert not run(WAIT + "bar.sync 0;" + WRITES["st"], warps=2).warnings


def test_the_next_launch_of_a_gpu_is_another() -> None:
    gpu, text = sim.Gpu(), f"{HEAD}\n.visible .entry k(.param .u64 in)\n{{\n{REGISTERS}\n"
    module = sim.load(text + "ld.param.u64 %d1, [in]; ld.global.u32 %r1, [%d1];\nret;\n}\n")
    place = gpu.map(np.zeros(4, np.uint32), "in")
    with pytest.raises(sim.Fault, match=r"before their griddepcontrol\.wait"):
        gpu.launch(module, "k", (1,), (32,), [pointer(place)], in_use=[(place, 16)])
    gpu.launch(module, "k", (1,), (32,), [pointer(place)])


def test_what_is_in_use_lies_in_memory() -> None:
    with pytest.raises(sim.OutOfBounds, match=r"in: access of 1600 bytes at offset 0, but it has 1536 bytes"):
        run("", in_use="in", part=(0, 1600))
