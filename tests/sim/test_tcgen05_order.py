"""Order of asynchronous tcgen05 work: each fence, wait and commit left out of a small kernel is reported by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcgen05_kernels import PIECES, Mma, k_major, k_major_descriptors, run_cuda, run_mma, scale_image

from gemmgen import sim

SCHEDULES = sim.all_schedules()


def product() -> Mma:
    """An exact mxf8f6f4 product of four instructions with scales."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2, (rows, 128)).astype(np.uint8) * 0x38 for rows in (128, 16))  # 0 or 1 in e4m3
    return Mma(
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale",
        [0x08840000 | i << 29 | i << 4 for i in range(4)],
        k_major(a, 128),
        k_major(b, 128),
        k_major_descriptors(128, 128, 128),
        k_major_descriptors(16, 128, 128),
        16,
        scale_image(np.full((128, 4), 127, np.uint8)),
        scale_image(np.full((16, 4), 127, np.uint8)),
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_the_kernel_itself_is_clean(schedule: sim.Schedule) -> None:
    mma = product()
    assert run_mma(mma, schedule).view(np.float32).max() > 20


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
@pytest.mark.parametrize(
    ("piece", "text", "error", "message"),
    [
        ("fence_async", "", sim.Race, "fence.proxy.async is missing"),
        ("fence_init", "", sim.Fault, "no fence .* follows its mbarrier.init"),
        (
            "sync",
            "__syncwarp();",
            (sim.Race, sim.Fault),
            "no barrier orders|not synchronised|no mbarrier is initialised",
        ),
        ("after", "", sim.Race, "fence::after_thread_sync is missing after the wait"),
        ("wait", "", sim.Race, "nothing orders that before: a tcgen05.commit"),
        ("wait_ld", "", sim.Fault, "while a tcgen05.ld or .st of warp . is in flight"),
        ("sync_end", "", sim.Fault, "tcgen05.dealloc of TMEM columns 0 to 511 while warp .* may still use it"),
        ("dealloc", "", sim.Fault, "exits with TMEM still allocated"),
        ("commit", "", sim.Deadlock, "waits at"),
        ("alloc_columns", "48", sim.Fault, "power of two"),
        ("alloc_columns", "256", sim.Fault, "column 256 is not allocated|512 TMEM columns at 0"),
        ("relinquish", PIECES["dealloc"].replace("tmem)", "0u)"), sim.Fault, "not allocated|no barrier"),
    ],
)
def test_each_piece_is_needed(
    piece: str, text: str, error: type[Exception], message: str, schedule: sim.Schedule
) -> None:
    mma = product()
    mma.pieces = {piece: text}
    with pytest.raises(error, match=message):
        run_mma(mma, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_operands_overwritten_before_the_commit_was_waited_for(schedule: sim.Schedule) -> None:
    mma = product()
    mma.pieces = {"commit": PIECES["commit"] + 'asm volatile("st.shared.u32 [%0], 0;" :: "r"(sa_) : "memory");'}
    with pytest.raises(sim.Race, match=r"the tensor pipe of CTA .* may still read it"):
        run_mma(mma, schedule)


def test_commit_by_another_thread_tells_nothing() -> None:
    mma = product()
    mma.pieces = {"commit": "} if (threadIdx.x == 1) {" + PIECES["commit"]}
    with pytest.raises(sim.Race, match="nothing orders that before"):
        run_mma(mma)


AGAIN = """
BEFORE; __syncthreads();
if (threadIdx.x == 0) { AFTER; issue(0, 0); COMMIT }
barrier_wait(bar, 1); AFTER; __syncthreads();
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
@pytest.mark.parametrize("missing", ["BEFORE;", "AFTER;", "__syncthreads();", ""])
def test_an_accumulator_is_used_again_after_fences_and_a_barrier(missing: str, schedule: sim.Schedule) -> None:
    mma = product()
    again = AGAIN.replace("COMMIT", PIECES["commit"])
    assert missing in again
    mma.pieces = {"sync_end": again.replace(missing, "", 1)}
    if not missing:
        run_mma(mma, schedule)
        return
    with pytest.raises(sim.Race, match=r"overwrites TMEM columns 0 to 15, which warp . read"):
        run_mma(mma, schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_a_store_without_the_fence_is_a_warning(schedule: sim.Schedule) -> None:
    """Known-good kernels store to TMEM right after a commit-signalled barrier."""
    mma = product()
    mma.pieces = {
        "after": 'asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};"'
        ' :: "r"(tmem + (warp << 21)), "r"(0u)); WAIT_ST; AFTER;'
    }
    out = run_mma(mma, schedule)
    assert (out[:, 0] == 0).all() and out[:, 1].any()


def test_alloc_after_relinquish() -> None:
    mma = product()
    again = 'asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");'
    mma.pieces = {"relinquish": again}
    run_mma(mma)
    alloc = (
        'asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(shared(&tmem_word)));'
    )
    mma.pieces = {"relinquish": again + alloc}
    with pytest.raises(sim.Fault, match=r"after tcgen05\.relinquish_alloc_permit"):
        run_mma(mma)


def test_cta_groups_do_not_mix() -> None:
    mma = product()
    mma.pieces = {"dealloc": PIECES["dealloc"].replace("cta_group::1", "cta_group::2")}
    with pytest.raises(sim.Fault, match="cta_group::2 in a kernel that used cta_group::1"):
        run_mma(mma)


# tcgen05.st, ld shapes and their waits

STORE_LOAD = """
extern "C" __global__ void k(u32* out, u32* in) {
  __shared__ u32 word;
  u32 warp = threadIdx.x / 32;
  if (warp == 0)
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(shared(&word)));
  __syncthreads();
  u32 tmem = *(volatile u32*)&word, r[4];
  for (int i = 0; i < 4; ++i) r[i] = in[threadIdx.x * 4 + i];
  asm volatile("tcgen05.st.sync.aligned.32x32b.x4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(tmem + LANE), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
  AFTER_ST
  asm volatile("tcgen05.ld.sync.aligned.FORM {%0, %1, %2, %3}, [%4]EXTRA;"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(tmem + LANE + OFFSET) : "memory");
  BEFORE_LD
  WAIT_LD;
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];
  __syncthreads();
  if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" :: "r"(tmem));
}
"""


def store_load(schedule: sim.Schedule | None = None, **pieces: str) -> tuple[np.ndarray, np.ndarray]:
    text = STORE_LOAD
    defaults = {"AFTER_ST": "WAIT_ST;", "BEFORE_LD": "", "FORM": "32x32b.x4.b32", "LANE": "(warp << 21)"}
    for name, value in {**defaults, "EXTRA": "", "OFFSET": "0", **pieces}.items():
        text = text.replace(name, value)
    source = np.random.default_rng(1).integers(0, 2**32, (128, 4), dtype=np.uint32)
    out = np.zeros((160, 4), np.uint32)
    run_cuda(text, out, source.copy(), schedule=schedule)
    return (out if "BEFORE_LD" in pieces else out[:128]), source


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_store_then_load(schedule: sim.Schedule) -> None:
    out, source = store_load(schedule)
    np.testing.assert_array_equal(out, source)


def test_a_warp_reads_its_own_lanes_when_the_address_names_lane_0() -> None:
    out, source = store_load(LANE="0")
    np.testing.assert_array_equal(out, source)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_store_needs_its_wait(schedule: sim.Schedule) -> None:
    with pytest.raises(sim.Race, match=r"still in flight; tcgen05\.wait is missing"):
        store_load(schedule, AFTER_ST="")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_registers_hold_tokens_until_the_wait(schedule: sim.Schedule) -> None:
    """What leaves a register before the wait is a NaN, not the loaded value, under any schedule; the rest is intact."""
    out, source = store_load(schedule, BEFORE_LD="out[512 + threadIdx.x] = r[0];")
    np.testing.assert_array_equal(out[:128], source)
    early = out[128:].reshape(-1)
    assert np.isnan(early.view(np.float32)).all() and not (early == source[:, 0]).any()


def test_another_quarter_is_out_of_reach() -> None:
    with pytest.raises(sim.Fault, match="warp 1 reaches lanes 32 to 63"):
        store_load(LANE="(warp == 1 ? 2u << 21 : warp << 21)")
    with pytest.raises(sim.Fault, match="starts at lane 0"):
        store_load(LANE="(16u << 16)")


def test_columns_outside_the_allocation() -> None:
    with pytest.raises(sim.Fault, match="column 32 is not allocated"):
        store_load(OFFSET="30")
    with pytest.raises(sim.Fault, match="512 columns"):
        store_load(OFFSET="510")


def test_16_lane_shapes_start_at_lane_16_too() -> None:
    """16x64b.x2 reads 4 columns of 16 lanes: thread t holds lane t / 4 + 8 (t % 2), columns (t / 2) % 2 and 2 more."""
    for offset in (0, 16):
        out, source = store_load(FORM="16x128b.x2.b32", OFFSET=f"({offset}u << 16)", AFTER_ST="WAIT_ST;")
        t = np.arange(32)
        rows = source.reshape(4, 32, 4)[:, offset : offset + 16]
        found = out.reshape(4, 32, 4)
        np.testing.assert_array_equal(found[:, t, 0], rows[:, t // 4, t % 4])
        np.testing.assert_array_equal(found[:, t, 1], rows[:, t // 4 + 8, t % 4])


def test_packed_loads_join_low_halves() -> None:
    text = STORE_LOAD.replace("FORM {%0, %1, %2, %3}, [%4]", "32x32b.x2.pack::16b.b32 {%0, %1}, [%4]")
    text = text.replace("AFTER_ST", "WAIT_ST;").replace("BEFORE_LD", "").replace("LANE", "(warp << 21)")
    text = text.replace("EXTRA", "").replace("OFFSET", "0")
    source = np.random.default_rng(2).integers(0, 2**32, (128, 4), dtype=np.uint32)
    out = np.zeros((128, 4), np.uint32)
    run_cuda(text, out, source.copy())
    low = source & 0xFFFF
    np.testing.assert_array_equal(out[:, :2], low[:, 0::2] | low[:, 1::2] << 16)


def test_halves_of_16x32bx2_start_at_the_known_column_only() -> None:
    out, source = store_load(FORM="16x32bx2.x4.b32", EXTRA=", 4")
    found, rows = out.reshape(4, 2, 16, 4), source.reshape(4, 2, 16, 4)
    np.testing.assert_array_equal(found[:, 0], rows[:, 0])
    assert (found[:, 1] == 0xFFFFFFFF).all(), "columns 4 to 7 were never written"
    with pytest.raises(sim.UnknownInstruction, match="starts at column 8"):
        store_load(FORM="16x32bx2.x4.b32", EXTRA=", 8")


# tcgen05.cp


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
@pytest.mark.parametrize(
    ("shape", "row_of"),
    [
        ("128x128b", lambda lane: lane),
        ("64x128b.warpx2::02_13", lambda lane: lane % 64),
        ("64x128b.warpx2::01_23", lambda lane: lane % 32 + 32 * (lane // 64)),
        ("32x128b.warpx4", lambda lane: lane % 32),
        ("128x256b", lambda lane: lane),
    ],
)
def test_copies(shape: str, row_of: Callable[[np.ndarray], np.ndarray], schedule: sim.Schedule) -> None:
    """Rows of 16 bytes one after another (32-byte rows: two such columns of 2048 bytes); D is what the copy brought."""
    words = 8 if shape == "128x256b" else 4
    mma = product()
    mma.columns = 8
    mma.a_descriptors, mma.b_descriptors, mma.idesc = [0], [0], [0]
    source = np.random.default_rng(3).integers(0, 2**32, (words // 4, 128, 4), dtype=np.uint32)
    mma.a_image = source.view(np.uint8).reshape(-1)
    mma.a_scales = mma.b_scales = None
    copy = f"tcgen05.cp.cta_group::1.{shape} [%0], %1;"
    descriptor = "(u64)((sa_ & 0xFFFFFF) >> 4) | (8ull << 32) | (128ull << 16) | (1ull << 46)"
    mma.pieces = {"before_mma": f'asm volatile("{copy}" :: "r"(tmem), "l"({descriptor}) : "memory"); if (na < 0)'}
    found = run_mma(mma, schedule)
    expected = source[:, row_of(np.arange(128))]
    np.testing.assert_array_equal(found[:, :4], expected[0])
    if words == 8:
        np.testing.assert_array_equal(found[:, 4:], expected[1])


# allocation

TWO_ALLOCATIONS = """
extern "C" __global__ void k(u32* out) {
  __shared__ u32 words[2];
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;"
               :: "r"(shared(words + warp)) : "memory");
  u32 mine = *(volatile u32*)(words + warp), r;
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(mine), "r"(threadIdx.x));
  WAIT_ST;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(r) : "r"(mine));
  WAIT_LD;
  out[threadIdx.x] = r + (lane == 0 ? 1000 * mine : 0);
  FREE
}
"""
FREE = 'asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" :: "r"(mine));'


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.mode)
def test_alloc_waits_for_columns(schedule: sim.Schedule) -> None:
    out = np.zeros(64, np.uint32)
    run_cuda(TWO_ALLOCATIONS.replace("FREE", FREE), out, schedule=schedule, block=64)
    assert out.tolist() == list(range(64))
    with pytest.raises(sim.Deadlock, match=r"for 512 TMEM columns \(512 of 512 are taken\)"):
        run_cuda(TWO_ALLOCATIONS.replace("FREE", ""), out, schedule=schedule, block=64)


def test_dealloc_takes_what_alloc_gave() -> None:
    for wrong, message in (("512", "256"), ("mine", "mine + 32")):
        text = TWO_ALLOCATIONS.replace(
            "FREE", FREE[: FREE.index("%0")] + FREE[FREE.index("%0") :].replace(wrong, message)
        )
        with pytest.raises(sim.Fault, match="allocated are 512 at 0"):
            run_cuda(text, np.zeros(64, np.uint32), block=32)


def test_messages_name_labelled_columns() -> None:
    labels = sim.Labels(columns=[("acc", 0, 8, 2), ("scales", 256, 4, 1)])
    mma = product()
    mma.pieces = {"wait": ""}
    with pytest.raises(sim.Race, match=r"TMEM columns 0 to .* \(acc\[0\]"):
        run_mma(mma, labels=labels)
