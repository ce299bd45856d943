"""What known-good sm100 kernels do and a strict reading would forbid: allowed, with a warning where it is a risk."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tcgen05_kernels
from tcgen05_kernels import PIECES, Mma, k_major, k_major_descriptors, run_mma, scale_image

from gemmgen import sim

BF16_ONE = np.uint16(0x3F80)
ELECT = 'u32 e; asm volatile("{.reg .pred q; elect.sync _|q, 0xffffffff; selp.u32 %0, 1, 0, q;}" : "=r"(e));'


def bf16_product(opcode: str) -> Mma:
    ones = np.full((128, 16), BF16_ONE).view(np.uint8)
    return Mma(
        opcode,
        [0x08040490],
        k_major(ones, 32),
        k_major(ones[:16], 32),
        k_major_descriptors(128, 32, 32),
        k_major_descriptors(16, 32, 32),
        16,
    )


def scaled_product() -> Mma:
    ones = np.full((128, 32), 0x38, np.uint8)
    scales = np.full((128, 4), 127, np.uint8)
    return Mma(
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale",
        [0x08840000],
        k_major(ones, 32),
        k_major(ones[:16], 32),
        k_major_descriptors(128, 32, 32),
        k_major_descriptors(16, 32, 32),
        16,
        scale_image(scales),
        scale_image(scales[:16]),
    )


def with_disabled_lanes(mask: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A product whose instruction has a disable-output-lane vector, put into the PTX."""
    plain = tcgen05_kernels.compiled
    masked = rf".reg .b32 z; mov.b32 z, {mask};\n\1, {{z, z, z, z}}, p;"
    monkeypatch.setattr(
        tcgen05_kernels, "compiled", lambda source: re.sub(r"(tcgen05\.mma[^;]*), p;", masked, plain(source))
    )
    return run_mma(bf16_product("tcgen05.mma.cta_group::1.kind::f16"))


def test_a_disable_output_lane_mask_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (with_disabled_lanes(0, monkeypatch).view(np.float32) == 16).all()


def test_a_disable_output_lane_mask_that_names_lanes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sim.Fault, match="disable-output-lane names lanes"):
        with_disabled_lanes(1, monkeypatch)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(sim.Gpu, "warn", lambda self, text: found.append(text))
    return found


def rewritten_scales(meeting: str) -> Mma:
    """Every lane of warp 0 stores a scale word anew and fences; lane 0 issues the copy."""
    mma = scaled_product()
    word = "sb + 4 * threadIdx.x"
    store = f'asm volatile("st.shared.u32 [%0], %1;" :: "r"({word}), "r"(0x7F7F7F7Fu) : "memory"); FENCE_ASYNC;'
    mma.pieces = {"before_issue": f"if (warp == 0) {{ {store} {meeting} }}"}
    return mma


def test_an_election_between_stores_and_the_copy_is_a_warning(warnings: list[str]) -> None:
    out = run_mma(rewritten_scales(ELECT))
    assert (out.view(np.float32) == 32).all()
    assert any("only a shuffle, vote or election stands between" in text for text in warnings)


def test_nothing_between_stores_and_the_copy_is_a_race() -> None:
    with pytest.raises(sim.Race, match="no warp synchronisation between"):
        run_mma(rewritten_scales(""))


def test_a_warp_barrier_between_stores_and_the_copy_is_clean(warnings: list[str]) -> None:
    run_mma(rewritten_scales("__syncwarp();"))
    assert not warnings


SPARE = (
    "__shared__ __align__(8) u64 spare; u32 other = shared(&spare);"
    " if (threadIdx.x == 0) { barrier_init(other, 1); FENCE_INIT; }"
)
COMMIT_SPARE = PIECES["commit"].replace("(bar)", "(other)")


def test_a_commit_of_complete_products_may_arrive_at_exit(warnings: list[str]) -> None:
    mma = bf16_product("tcgen05.mma.cta_group::1.kind::f16")
    mma.pieces = {"before_issue": SPARE, "commit": PIECES["commit"] + COMMIT_SPARE}
    out = run_mma(mma, sim.Schedule("late"))
    assert (out.view(np.float32) == 16).all()
    assert any("exits while tcgen05.commit" in text for text in warnings)


def test_a_commit_of_a_copy_in_flight_may_not() -> None:
    mma = scaled_product()
    copy = 'asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;"'
    copy += ' :: "r"(tmem + 400), "l"(scale_descriptor(sa)) : "memory");'
    mma.pieces = {
        "before_issue": SPARE,
        "commit": PIECES["commit"] + copy + COMMIT_SPARE,
        "sync_end": "",
        "dealloc": "",
    }
    with pytest.raises(sim.Fault, match="already exited"):
        run_mma(mma, sim.Schedule("late"))
