"""From cells of 4-bit codes in shared memory to a product: ldmatrix b4x16_p64, the shift by two, mma.sync."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from core_ptx import Bench, kernel

from gemmgen import sim

SHARED = ".shared .align 128 .b8 a_tile[512]; .shared .align 128 .b8 b_tile[256]; .shared .align 8 .b8 bar[8];"
PARAMS = ".param .u64 out, .param .u64 a, .param .u64 b"
FILL = """
mov.u32 %r1, %tid.x; mov.u32 %r2, a_tile; mov.u32 %r3, b_tile; ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b];
mul.wide.u32 %d3, %r1, 16; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3; mad.lo.u32 %r4, %r1, 16, %r2;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d1]; st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
setp.ge.u32 %p1, %r1, 16; mad.lo.u32 %r4, %r1, 16, %r3; @%p1 bra FILLED;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d2]; st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8}; FILLED: bar.sync 0;
"""
# matrix i of A (rows 8 (i % 2) and up, k 16 (i / 2) and up) lies at byte 128 i, matrix i of B (k 16 i and up) likewise
LOAD = """
mad.lo.u32 %r4, %r1, 16, %r2; and.b32 %r9, %r1, 15; mad.lo.u32 %r9, %r9, 16, %r3;
ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%r10, %r11, %r12, %r13}, [%r4];
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r20, %r21}, [%r9];
"""
SHIFT = "".join(f"shl.b32 %r{i}, %r{i}, 2;" for i in range(10, 14))
MULTIPLY = """
mov.f32 %f0, 0f00000000; mov.b32 %r30, 0x7F7F7F80; mov.b32 %r31, 0x7F7F7F7E;
mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0
{%f1, %f2, %f3, %f4}, {%r10, %r11, %r12, %r13}, {%r20, %r21}, {%f0, %f0, %f0, %f0}, {%r30}, {0, 0}, {%r31}, {1, 0};
ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d1, %d2;
st.global.v4.f32 [%d1], {%f1, %f2, %f3, %f4};
"""


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes of A [16, 32], values of B [8, 32], and both as the cells and rows of 16 bytes that the kernel stores."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 16, (16, 32)).astype(np.uint8)
    b = rng.integers(-8, 9, (8, 32)).astype(ml_dtypes.float8_e4m3fn)
    cells = np.full((32, 16), 0xFF, np.uint8)  # what follows the codes must not matter
    for i in range(4):
        part = a[8 * (i % 2) : 8 * (i % 2) + 8, 16 * (i // 2) : 16 * (i // 2) + 16]
        cells[8 * i : 8 * i + 8, :8] = part[:, 0::2] | part[:, 1::2] << 4
    rows = b.view(np.uint8).reshape(8, 2, 16).swapaxes(0, 1).reshape(16, 16)
    return a, b, cells, np.ascontiguousarray(rows)


def run(body: str) -> np.ndarray:
    _, _, cells, rows = problem()
    out = np.zeros((32, 4), np.float32)
    Bench().run(kernel(FILL + LOAD + body + MULTIPLY, PARAMS, SHARED), out, cells, np.concatenate([rows, rows]))
    return out


def test_cells_reach_the_product() -> None:
    """A is scaled by 2 (byte 0 of its word), B by 1 (byte 1 of its word): lanes and bytes nobody names are unlike."""
    a, b, _, _ = problem()
    d = 2.0 * (a.view(ml_dtypes.float4_e2m1fn).astype(np.float64) @ b.astype(np.float64).T)
    lane, register = np.indices((32, 4))
    np.testing.assert_array_equal(run(SHIFT), d[lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2])


def test_a_forgotten_shift_is_found() -> None:
    with pytest.raises(sim.Fault, match=r"operand A, .* e2m1 lies in bits 2 to 5 of its container"):
        run("")


def test_a_lane_that_arrives_for_its_warp_after_ldmatrix_is_a_warning() -> None:
    """Kernels that ship free a slot this way."""
    arrive = """
    setp.ne.u32 %p2, %r1, 0; @%p2 bra ARRIVED; mov.u32 %r40, bar; mbarrier.init.shared::cta.b64 [%r40], 1;
    mbarrier.arrive.shared::cta.b64 _, [%r40]; ARRIVED:
    """
    _, _, cells, rows = problem()
    out = np.zeros((32, 4), np.float32)
    text = kernel(FILL + LOAD + SHIFT + arrive + MULTIPLY, PARAMS, SHARED)
    report = Bench().run(text, out, cells, np.concatenate([rows, rows]))
    assert any("arrive for their warp" in warning for warning in report.warnings)
