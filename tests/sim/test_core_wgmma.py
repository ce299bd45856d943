"""wgmma: right under every schedule, results that exist only after the wait, and each rule once broken."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

N, K = 16, 64
MODES = sim.all_schedules(2)
REGS = N // 2
SHARED = ".extern .shared .align 1024 .b8 smem[];"
PARAMS = ".param .u64 out, .param .u64 image"
ACC = "{" + ", ".join(f"%f{i}" for i in range(REGS)) + "}"

FILL = """
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; ld.param.u64 %d1, [image]; mov.u32 %r3, 0;
FILL: mad.lo.u32 %r4, %r3, 128, %r1; setp.ge.u32 %p1, %r4, 640; @%p1 bra FILLED; mul.wide.u32 %d2, %r4, 16;
add.s64 %d2, %d1, %d2; ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d2]; mad.lo.u32 %r9, %r4, 16, %r2;
st.shared.v4.u32 [%r9], {%r5, %r6, %r7, %r8}; add.u32 %r3, %r3, 1; bra FILL; FILLED: {proxy} bar.sync 0;
and.b32 %r10, %r2, 0x3FFFF; shr.u32 %r10, %r10, 4; cvt.u64.u32 %d3, %r10; mov.u64 %d4, 0x4000004000010000;
or.b64 %d5, %d3, %d4; add.s64 %d6, %d5, 512; setp.ne.u32 %p5, 0, 0; setp.eq.u32 %p6, 0, 0;
"""


def zero() -> str:
    return "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(REGS))


def multiply(step: int, accumulate: str = "%p6", target: str = ACC) -> str:
    return (
        f"add.s64 %d7, %d5, {2 * step}; add.s64 %d8, %d6, {2 * step};"
        f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {target}, %d7, %d8, {accumulate}, 1, 1, 0, 0;"
    )


FENCE, COMMIT, WAIT = (f"wgmma.{name}.sync.aligned" for name in ("fence", "commit_group", "wait_group"))
SAVE = "ld.param.u64 %d9, [out]; mul.wide.u32 %d10, %r1, 32; add.s64 %d9, %d9, %d10;" + "".join(
    f"st.global.f32 [%d9+{4 * i}], %f{i};" for i in range(REGS)
)


def swizzled(matrix: np.ndarray) -> bytes:
    """Rows of 128 bytes, 16-byte chunks exchanged by the row number (128-byte swizzle)."""
    chunks = matrix.view(np.uint8).reshape(-1, 8, 16)
    out = np.empty_like(chunks)
    for row in range(len(chunks)):
        out[row, np.arange(8) ^ (row % 8)] = chunks[row]
    return out.tobytes()


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(ml_dtypes.bfloat16) for rows in (64, N))
    return a, b, np.frombuffer(swizzled(a) + swizzled(b), np.uint8).copy()


def run(body: str, schedule: sim.Schedule, proxy: str = "fence.proxy.async.shared::cta;") -> np.ndarray:
    _a, _b, image = operands()
    out = np.zeros((128, REGS), np.float32)
    bench = Bench(schedule, block=(128,), shared_bytes=16384)
    bench.run(kernel(FILL.replace("{proxy}", proxy) + body, PARAMS, SHARED), out, image)
    return out


def expected() -> np.ndarray:
    """D[64, N] as registers: thread t holds rows 16w + t/4 and + 8, columns in pairs."""
    a, b, _ = operands()
    d = a.astype(np.float32) @ b.astype(np.float32).T
    thread, value = np.indices((128, REGS))
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (value // 2 % 2)
    return d[row, 8 * (value // 4) + 2 * (thread % 4) + value % 2]


FOUR = "".join(multiply(step) for step in range(4))
GOOD = zero() + f"{FENCE};" + FOUR + f"{COMMIT}; {WAIT} 0;" + SAVE


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_product_of_swizzled_operands(schedule: sim.Schedule) -> None:
    assert (run(GOOD, schedule) == expected()).all()


def test_scale_d_zero_ignores_the_accumulator() -> None:
    body = f"{FENCE};" + multiply(0, "%p5") + "".join(multiply(s) for s in (1, 2, 3)) + f"{COMMIT}; {WAIT} 0;" + SAVE
    assert (run(body, sim.Schedule("late")) == expected()).all()


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_results_survive_moves_made_before_the_wait(schedule: sim.Schedule) -> None:
    """The compiler copies outputs, also in pairs, before the wait; and chains the next wgmma onto the copies."""
    away = "".join(f"mov.f32 %f{100 + i}, %f{i};" for i in range(REGS))
    copies = "{" + ", ".join(f"%f{100 + i}" for i in range(REGS)) + "}"
    pack = "mov.b64 %d20, {%f100, %f101};"
    body = zero() + f"{FENCE};" + multiply(0) + multiply(1) + away + multiply(2, target=copies)
    body += multiply(3, target=copies) + f"{COMMIT};" + pack + f"{WAIT} 0;"
    body += "".join(f"mov.f32 %f{i}, %f{100 + i};" for i in range(REGS)) + "mov.b64 {%f0, %f1}, %d20;" + SAVE
    assert (run(body, schedule) == expected()).all()


@pytest.mark.parametrize("schedule", MODES[:3], ids=lambda s: s.mode)
def test_groups_are_waited_for_in_order(schedule: sim.Schedule) -> None:
    second = "{" + ", ".join(f"%f{200 + i}" for i in range(REGS)) + "}"
    clear = "".join(f"mov.f32 %f{200 + i}, 0f00000000;" for i in range(REGS))
    body = (
        zero() + clear + f"{FENCE};" + FOUR + f"{COMMIT};" + multiply(0, target=second) + f"{COMMIT}; {WAIT} 1;" + SAVE
    )
    assert (run(body + f"{WAIT} 0;", schedule) == expected()).all()


def test_arithmetic_on_a_result_in_flight_is_nan() -> None:
    early_use = "".join(f"add.f32 %f{i}, %f{i}, 0f00000000;" for i in range(0, REGS, 2))
    body = zero() + f"{FENCE};" + FOUR + f"{COMMIT};" + early_use + f"{WAIT} 0;" + SAVE
    with pytest.raises(sim.Race, match=r"overwritten before wgmma.wait_group"):
        run(body, sim.Schedule("early"))
    body = (
        zero() + f"{FENCE};" + FOUR + f"{COMMIT}; add.f32 %f300, %f0, 0f00000000; {WAIT} 0; mov.f32 %f0, %f300;" + SAVE
    )
    out = run(body, sim.Schedule("early"))
    assert np.isnan(out[:, 0]).all() and (out[:, 1:] == expected()[:, 1:]).all()


def test_missing_wait_leaves_nan_or_is_reported() -> None:
    with pytest.raises(sim.Fault, match=r"never waited for"):
        run(GOOD.replace(f"{WAIT} 0;", ""), sim.Schedule("early"))
    with pytest.raises(sim.Fault, match=r"never waited for"):
        run(GOOD.replace(f"{COMMIT};", ""), sim.Schedule("early"))


def test_missing_proxy_fence() -> None:
    with pytest.raises(
        sim.Race, match=r"wgmma of warp \d.*reads through the async proxy.*fence\.proxy\.async is missing"
    ):
        run(GOOD, sim.Schedule("early"), proxy="")


def test_missing_barrier_between_filling_and_multiplying() -> None:
    with pytest.raises(sim.Race, match=r"no barrier orders"):
        _without_barrier()


def _without_barrier() -> np.ndarray:
    _, _, image = operands()
    out = np.zeros((128, REGS), np.float32)
    text = FILL.replace("{proxy} bar.sync 0;", "fence.proxy.async;") + GOOD
    Bench(block=(128,), shared_bytes=16384).run(kernel(text, PARAMS, SHARED), out, image)
    return out


def test_accumulator_changed_after_the_fence() -> None:
    with pytest.raises(sim.Fault, match=r"without a wgmma\.fence"):
        run(GOOD.replace(f"{FENCE};", ""), sim.Schedule("early"))
    change = f"{FENCE}; cvt.rn.f32.u32 %f3, %r1;"
    with pytest.raises(sim.Race, match=r"register .* of an accumulator changed after the last wgmma\.fence"):
        run(GOOD.replace(f"{FENCE};", change), sim.Schedule("early"))
    run(GOOD.replace(f"{FENCE};", change + f"{FENCE};"), sim.Schedule("early"))


@pytest.mark.parametrize("schedule", MODES, ids=lambda s: f"{s.mode}{s.seed}")
def test_operands_must_not_change_before_the_wait(schedule: sim.Schedule) -> None:
    clobber = "mad.lo.u32 %r20, %r1, 16, %r2; st.shared.u32 [%r20], %r1;"
    with pytest.raises(sim.Race, match=r"still in flight|may still read it"):
        run(GOOD.replace(f"{WAIT} 0;", clobber + f"{WAIT} 0;"), schedule)
    after = GOOD.replace(f"{WAIT} 0;", f"{WAIT} 0; bar.sync 0;" + clobber)
    assert (run(after, schedule) == expected()).all()


def test_warps_of_a_group_must_agree() -> None:
    body = "shr.u32 %r30, %r1, 5; cvt.u64.u32 %d30, %r30; add.s64 %d5, %d5, %d30;" + GOOD
    with pytest.raises(sim.Fault, match=r"different wgmma operations or descriptors"):
        run(body, sim.Schedule("early"))


def test_diverged_warp_and_reserved_descriptor_bits() -> None:
    body = "setp.lt.u32 %p7, %r1, 3; @%p7 bra LATER; " + GOOD + " bra OUT; LATER: exit; OUT:"
    with pytest.raises((sim.Fault, sim.Deadlock)):
        run(body, sim.Schedule("early"))
    with pytest.raises(sim.Fault, match=r"reserved bits"):
        run("or.b64 %d5, %d5, 0x4000;" + GOOD, sim.Schedule("early"))


def from_registers(schedule: sim.Schedule, before: str = "", after: str = "") -> tuple[np.ndarray, np.ndarray]:
    """A's fragment of the first k step comes from registers; the rest of the product is left out. Result, and D."""
    a, b, image = operands()
    rows = np.arange(128)
    out = np.zeros((128, REGS), np.float32)
    held = np.zeros((128, 4), np.uint32)
    for register in range(4):
        row = 16 * (rows // 32) + rows % 32 // 4 + 8 * (register % 2)
        column = 8 * (register // 2) + 2 * (rows % 4)
        pair = np.stack([a[row, column], a[row, column + 1]], axis=1)
        held[:, register] = pair.view(np.uint32)[:, 0]
    load = "ld.param.u64 %d11, [held]; mul.wide.u32 %d12, %r1, 16; add.s64 %d11, %d11, %d12;"
    load += "ld.global.v4.u32 {%r40, %r41, %r42, %r43}, [%d11];"
    body = FILL.replace("{proxy}", "fence.proxy.async;") + load + zero() + f"{FENCE};"
    body += f"{before} wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {ACC}, {{%r40, %r41, %r42, %r43}},"
    body += " %d6, %p6, 1, 1, 0;"
    body += f"{COMMIT}; {after} {WAIT} 0;" + SAVE
    text = kernel(body, PARAMS + ", .param .u64 held", SHARED)
    Bench(schedule, block=(128,), shared_bytes=16384).run(text, out, image, held)
    return out, a[:, :16].astype(np.float32) @ b[:, :16].astype(np.float32).T


def test_a_from_registers() -> None:
    for schedule in MODES[:3]:
        out, d = from_registers(schedule)
        assert out[0, 0] == d[0, 0] and out[37, 5] == d[16 + 1, 8 + 2 + 1]
        assert out.sum() == d.sum()


def test_registers_of_a_keep_their_values_from_fence_to_wait() -> None:
    with pytest.raises(sim.Race, match=r"register .* of A changed after the last wgmma\.fence"):
        from_registers(MODES[0], before="add.u32 %r40, %r40, %r1;")
    with pytest.raises(sim.Race, match=r"holds A was changed before wgmma\.wait_group"):
        from_registers(MODES[0], after="add.u32 %r40, %r40, 1;")


def test_an_earlier_wait_does_not_release_what_a_later_wgmma_reads() -> None:
    second = "{" + ", ".join(f"%f{200 + i}" for i in range(REGS)) + "}"
    body = (
        zero() + f"{FENCE};" + multiply(0, "%p5") + f"{COMMIT};" + multiply(0, "%p5", second) + f"{COMMIT}; {WAIT} 1;"
    )
    clobber = "bar.sync 0; mad.lo.u32 %r20, %r1, 16, %r2; st.shared.u32 [%r20], %r1;"
    with pytest.raises(sim.Race, match="still in flight"):
        run(body + clobber + f"{WAIT} 0;" + SAVE, sim.Schedule("early"))
    run(body + f"{WAIT} 0;" + clobber + SAVE, sim.Schedule("early"))
