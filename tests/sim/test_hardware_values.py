"""Bits that an H100 gave where the PTX documentation leaves them open: NaN, conversions, sums rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from core_ptx import lanes
from test_core_wgmma import COMMIT, FENCE, SAVE, WAIT, multiply, run, zero

from gemmgen import sim


def results(instruction: str, *operands: list[int]) -> list[str]:
    """The result words of an instruction on 32-bit registers, one lane for each column of operands."""
    rows = [np.resize(np.array(row, np.uint32), 32) for row in operands]
    found = lanes(instruction, rows, np.uint32, "b32", "b32")
    return [hex(word) for word in found[: len(operands[0])]]


def test_fused_bf16_pairs_are_rounded_once() -> None:
    """A third operand far below the tie of the product decides it."""
    a = [0xADA54166, 0xBEF6E840, 0x6860146C, 0x57B404E8, 0x39703F13]
    b = [0xF64041AF, 0xA124912E, 0x4A6CFF3C, 0x27B09ECC, 0x77C8A82D]
    c = [0x80C83C27, 0xB18E1B07, 0x3C25FD17, 0x86EC1344, 0xAB37A826]
    expected = ["0x6477439d", "0xb18e3a03", "0x734ffd17", "0x3ff71344", "0x71bba885"]
    assert results("fma.rn.bf16x2 res, in0, in1, in2;", a, b, c) == expected


@pytest.mark.parametrize("operation", ["neg", "abs"])
def test_packed_signs_leave_one_nan(operation: str) -> None:
    assert results(f"{operation}.bf16x2 res, in0;", [0x7F813E29, 0xFF89BF2A]) == (
        ["0x7fffbe29", "0x7fff3f2a"] if operation == "neg" else ["0x7fff3e29", "0x7fff3f2a"]
    )


def test_conversions_of_nan() -> None:
    nan = [0x7FC00000, 0xFFC00001, 0x7F800001]
    for mode in ("rni", "rzi", "rmi", "rpi"):
        assert results(f"cvt.{mode}.f32.f32 res, in0;", nan) == ["0x7fffffff"] * 3
    assert results("cvt.rna.tf32.f32 res, in0;", nan) == ["0x7fc00000", "0xffc00000", "0x7f800000"]
    assert results("cvt.rn.tf32.f32 res, in0;", nan) == ["0x7fffe000"] * 3


def test_rna_of_a_result_in_flight_is_nan_and_no_other_result() -> None:
    body = zero() + f"{FENCE}; {multiply(0)} {COMMIT}; cvt.rna.tf32.f32 %r20, %f0; {WAIT} 0; mov.b32 %f0, %r20;" + SAVE
    assert np.isnan(run(body, sim.Schedule("late"))[:, 0]).all()
