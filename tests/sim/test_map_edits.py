"""Tensor maps that a kernel edits: every field, and what each missing fence, copy or wait is reported as."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import Bench, kernel
from map_kernels import (
    ACQUIRE,
    BY_ANOTHER_WARP,
    BY_FENCED_COPY,
    BY_STORES,
    COPY,
    EDIT,
    LOAD,
    ONE,
    RELEASE,
    WARP,
    Matrices,
    cuda_of,
    of,
    run,
)

from gemmgen import sim
from gemmgen.runtime.nvrtc import compile_cubin
from gemmgen.sim import tensor_map as tm

MODES = sim.all_schedules(2)
NAMES = [f"{schedule.mode}{schedule.seed}" for schedule in MODES]
EARLY = sim.Schedule("early")


# fields


FIELDS = [
    ("global_address", "b64", None, 0x1000),
    ("rank", "b32", None, 1),
    ("box_dim", "b32", 1, 4),
    ("global_dim", "b32", 2, 77),
    ("global_stride", "b64", 1, 1 << 33),
    ("element_stride", "b32", 0, 2),
    ("elemtype", "b32", None, 6),
    ("interleave_layout", "b32", None, 1),
    ("swizzle_mode", "b32", None, 2),
    ("fill_mode", "b32", None, 1),
]


@pytest.mark.parametrize("space", ["global", "shared::cta"])
@pytest.mark.parametrize(("field", "width", "ordinal", "value"), FIELDS, ids=[field[0] for field in FIELDS])
def test_each_field_is_replaced_in_either_space(
    field: str, width: str, ordinal: int | None, value: int, space: str
) -> None:
    before = tm.encode_tensor_map("bfloat16", 0, [64, 16, 4], [128, 2048], [64, 8, 1], None, "128b")
    operands = f"{'' if ordinal is None else f'{ordinal}, '}{value}"
    place, copy_in, copy_out = "%d1", "", ""
    if space != "global":
        place = "%r1"
        copy_in = "".join(f"ld.global.b64 %d2, [%d1+{i}]; st.shared.b64 [%r1+{i}], %d2;\n" for i in range(0, 128, 8))
        copy_out = "".join(f"ld.shared.b64 %d2, [%r1+{i}]; st.global.b64 [%d1+{i}], %d2;\n" for i in range(0, 128, 8))
    edit = f"tensormap.replace.tile.{field}.{space}.b1024.{width} [{place}], {operands};"
    data = np.frombuffer(before, np.uint8).copy()
    body = f"ld.param.u64 %d1, [out]; mov.u32 %r1, smem;\n{copy_in}{edit}\n{copy_out}"
    Bench(block=(1,)).run(kernel(body, shared=".shared .align 128 .b8 smem[128];"), data)
    assert data.tobytes() == tm.replace_field(before, field, ordinal, value) != before


@pytest.mark.parametrize(
    "text",
    [
        "tensormap.replace.tile.global_address.global.b1024.b32 [%d1], %r2;",
        "tensormap.replace.tile.global_dim.global.b1024.b32 [%d1], %r2;",
        "tensormap.replace.tile.rank.global.b1024.b32 [%d1], 0, %r2;",
        "tensormap.replace.tile.colour.global.b1024.b32 [%d1], %r2;",
        "fence.proxy.tensormap::generic.acquire.gpu [%d1], 64;",
        "fence.proxy.tensormap::generic.acquire.gpu;",
        "fence.proxy.tensormap::generic.release [%d1], 128;",
        "fence.proxy.tensormap::generic.acq_rel.gpu;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1], [%r1], 64;",
    ],
)
def test_forms_that_ptx_lacks(text: str) -> None:
    with pytest.raises(sim.UnknownInstruction):
        Bench(block=(32,)).run(kernel(text), np.zeros(128, np.uint8))


# order


@pytest.mark.parametrize("schedule", MODES, ids=NAMES)
@pytest.mark.parametrize("body", [BY_STORES, BY_FENCED_COPY, BY_ANOTHER_WARP], ids=["stores", "fenced copy", "warp"])
def test_an_edited_map_loads_matrices_of_any_base_and_pitch(body: str, schedule: sim.Schedule) -> None:
    got, report = run(body, schedule)
    assert np.array_equal(got, Matrices().expected())
    assert not report.warnings


SYNC = "    __syncthreads();\n"
OTHER = "threadIdx.x == 32"
MISSING = {
    "release": (
        of(ONE, EDIT, COPY, ACQUIRE, LOAD),
        "no fence.proxy.tensormap::generic.release follows the write by warp 0",
    ),
    "acquire": (
        of(ONE, EDIT, COPY, RELEASE, LOAD),
        "no fence.proxy.tensormap::generic.acquire of this address comes before",
    ),
    "second acquire": (
        of(ONE, EDIT, COPY, RELEASE, "if (i == 0)" + ACQUIRE, LOAD),
        "it has been written since the last fence.proxy.tensormap::generic.acquire",
    ),
    "second release": (
        of(ONE, EDIT, COPY, "if (i == 0)" + RELEASE, ACQUIRE, LOAD),
        "no fence.proxy.tensormap::generic.release follows",
    ),
    "acquire of this map": (
        of(ONE, EDIT, COPY, RELEASE, ACQUIRE.replace("slot", "slot + 1"), LOAD),
        "acquire of this addr",
    ),
    "release after the copy": (of(ONE, EDIT, RELEASE, COPY, ACQUIRE, LOAD), "release follows the write by warp 0"),
    "acquire after the release": (of(ONE, EDIT, COPY, ACQUIRE, RELEASE, LOAD), "release follows the write by warp 0"),
    "fence of the right proxy": (
        of(ONE, EDIT, COPY, "ptx::fence_proxy_async(); __threadfence();", ACQUIRE, LOAD),
        "release follows the write by warp 0",
    ),
    "synchronisation before the fenced copy": (
        of(ONE, EDIT) + WARP + of(ONE, ACQUIRE, LOAD),
        "no warp synchronisation",
    ),
    "acquire after the fenced copy": (
        of(ONE, EDIT) + "    __syncwarp();\n" + WARP + of(ONE, LOAD),
        "no fence.proxy.tensormap::generic.acquire of this address",
    ),
    "barrier after the release": (
        of(OTHER, EDIT, COPY, RELEASE) + of(ONE, ACQUIRE, LOAD),
        "no barrier orders the release|comes before|written since|no fence",
    ),
    "release by who wrote": (
        of(OTHER, EDIT, COPY) + SYNC + of(ONE, ACQUIRE, LOAD),
        "no fence.proxy.tensormap::generic.release follows the write by warp 1",
    ),
    "barrier after the acquire": (
        of(OTHER, EDIT, COPY, RELEASE) + SYNC + of(OTHER, ACQUIRE) + of(ONE, LOAD),
        "no synchronisation orders that|comes before|written since",
    ),
    "the lane that wrote": (
        of(ONE, EDIT) + "    __syncwarp();\n" + of("threadIdx.x == 1", COPY) + of(ONE, RELEASE, ACQUIRE, LOAD),
        r"release follows the write by warp 0 \(lane 1\)",
    ),
    "the lane that acquired": (
        of(ONE, EDIT, COPY, RELEASE) + "    __syncwarp();\n" + of("threadIdx.x == 1", ACQUIRE) + of(ONE, LOAD),
        "only lanes 1 of warp 0 acquired it",
    ),
}


@pytest.mark.parametrize("mode", ["early", "late", "random"])
@pytest.mark.parametrize("missing", MISSING)
def test_what_is_missing_is_named(missing: str, mode: str) -> None:
    body, message = MISSING[missing]
    with pytest.raises(sim.Race, match=message):
        run(body, sim.Schedule(mode))


@pytest.mark.parametrize("schedule", MODES, ids=NAMES)
def test_another_warp_may_release_and_acquire(schedule: sim.Schedule) -> None:
    body = of(OTHER, EDIT, COPY) + SYNC + of("threadIdx.x == 5", RELEASE, ACQUIRE) + SYNC + of(ONE, LOAD)
    assert np.array_equal(run(body, schedule)[0], Matrices().expected())


def test_without_the_acquire_a_copy_uses_the_map_it_knew() -> None:
    body = of(ONE, EDIT, COPY, RELEASE, "if (i == 0)" + ACQUIRE, LOAD)
    got, report = run(body, EARLY, races="warn")
    assert np.array_equal(got, np.broadcast_to(Matrices().expected()[0], got.shape))
    assert any("written since the last" in warning for warning in report.warnings)


def test_a_map_is_not_read_from_shared_memory() -> None:
    with pytest.raises(sim.Fault, match="is in shared memory; copy the map to global memory first"):
        run(of(ONE, EDIT, RELEASE, "slot = &map;", LOAD), EARLY)


def test_a_bulk_copy_publishes_no_map() -> None:
    copy = """ptx::fence_proxy_async();
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(slot), "r"(edited) : "memory");
      ptx::bulk_commit(); asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");\n"""
    with pytest.raises(sim.Race, match="a bulk copy wrote it"):
        run(of(ONE, EDIT, copy, RELEASE, ACQUIRE, LOAD), EARLY)


def test_scopes_reach_other_ctas() -> None:
    """CTA 1 edits what CTA 0 loads with."""
    sync = "    ptx::sync_cluster();\n"
    own = '    u32 rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); slot = slots + 0;\n'
    edit = of("threadIdx.x == 0 && rank == 1", EDIT, COPY, RELEASE)
    loads = of(ONE, ACQUIRE, LOAD)
    body = own + edit + sync + loads
    assert np.array_equal(run(body + sync, sim.Schedule("late"), cluster=2)[0], Matrices().expected())
    narrow = body.replace(RELEASE, '      asm volatile("fence.proxy.tensormap::generic.release.cta;" ::: "memory");\n')
    with pytest.raises(sim.Race, match=r"another CTA; release and acquire need \.cluster scope"):
        run(narrow + sync, sim.Schedule("late"), cluster=2)


@pytest.mark.parametrize("body", [BY_STORES, BY_FENCED_COPY], ids=["stores", "fenced copy"])
def test_the_wrappers_assemble(body: str) -> None:
    assert compile_cubin(cuda_of(body), "sm90", "maps.cu").resources["k"].spill_store_bytes == 0


# copies in flight

AHEAD = Matrices((32, 32), (32, 32))
NEXT = EDIT.replace("matrix", "matrices[1]") + COPY + RELEASE


def test_a_map_that_changes_under_a_copy_is_reported() -> None:
    """Right results, as in kernels that ship; a warning, because nothing promises them."""
    hurried = of(ONE, EDIT, COPY, RELEASE, ACQUIRE, LOAD, NEXT)
    for mode in ("early", "late"):
        got, report = run(hurried, sim.Schedule(mode), matrices=AHEAD)
        assert np.array_equal(got, AHEAD.expected())
        assert any(
            "changes a tensor map that" in warning and "may still read" in warning for warning in report.warnings
        )


def test_a_map_that_another_warp_changes_under_a_copy_is_a_race() -> None:
    flag = "*reinterpret_cast<volatile u32*>(slots + 1)"
    issue = of(ONE, EDIT, COPY, RELEASE, ACQUIRE, LOAD, f"{flag} = i;")
    body = issue + of(OTHER, f"while ({flag} != i) {{}}\n*slot = base;")
    for mode in ("early", "late"):
        with pytest.raises(sim.Race, match=r"warp 1 changes a tensor map that .* may still read; no barrier orders"):
            run(body, sim.Schedule(mode))


@pytest.mark.parametrize("wait", ["ptx::mbarrier_wait(bar, i & 1);", "ptx::bulk_commit(); ptx::bulk_wait_read<0>();"])
def test_a_map_may_change_once_the_copy_is_done_or_its_group_has_read(wait: str) -> None:
    got, report = run(of(ONE, EDIT, COPY, RELEASE, ACQUIRE, LOAD, wait, NEXT), sim.Schedule("late"), matrices=AHEAD)
    assert np.array_equal(got, AHEAD.expected())
    assert not report.warnings
