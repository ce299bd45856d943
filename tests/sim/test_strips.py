"""Scales of B in a ring of their own, many K blocks a slot, and K loops copied out for whole rounds of their ring.

Slots here hold two K blocks, so that a tile takes several, the last of them cut, and rings of two slots go round.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from grouped import Problem, layout_by

from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt, in_row_groups
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Bias, DType, Gate, KernelSpec, Operand
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.simulation import SCHEDULES

LOW = Shape(64, 32, groups=1, slots=3, unroll=1, rounds=True, strips=2)
TALL = Shape(256, 64, slots=2, unroll=1, overlap=True, rounds=True, strips=2)
SIDE = Shape(128, 128, width=64, slots=4, unroll=1, rounds=True, strips=2)
PAIR = replace(SIDE, slots=2, cluster=(2, 1))


def gated() -> KernelSpec:
    """SwiGLU of columns side by side, from a bias."""
    spec = fp8_gemm_nt(replace(LOW, n=64), sfa_major="k")
    output = spec.output.replace(box=("m", "n/2"))
    bias = Operand(name="bias", dtype=DType.F32, box=("n",))
    return spec.replace(
        name="gated_strips",
        operands=(*spec.operands[:-1], bias, output),
        epilogue=(Bias(vector="bias"), Gate(), *spec.epilogue),
    )


CASES: dict[str, tuple[KernelSpec, Sizes]] = {
    "fewer blocks than slots": (fp8_gemm_nt(LOW), Sizes(m=70, n=72, k=144)),
    "rounds and what is left": (fp8_gemm_nt(LOW), Sizes(m=70, n=72, k=11 * 128 + 16)),
    "one block": (fp8_gemm_nt(replace(LOW, n=40), DType.F32, True), Sizes(m=70, n=88, k=16)),
    "no block": (fp8_gemm_nt(LOW, DType.F32, True), Sizes(m=70, n=72, k=0)),
    "strips without rounds": (fp8_gemm_nt(replace(LOW, rounds=False, n=48)), Sizes(m=70, n=304, k=7 * 128)),
    "rounds without strips": (fp8_gemm_nt(replace(LOW, strips=1)), Sizes(m=70, n=72, k=11 * 128)),
    "copies of the body": (fp8_gemm_nt(replace(LOW, rounds=False, unroll=4)), Sizes(m=70, n=72, k=11 * 128)),
    "scales of A by lanes as well": (fp8_gemm_nt(LOW, sfa_major="k"), Sizes(m=70, n=72, k=7 * 128 + 16)),
    "beside products": (fp8_gemm_nt(TALL), Sizes(m=300, n=200, k=5 * 128)),
    "products side by side": (fp8_gemm_nt(SIDE), Sizes(m=200, n=264, k=9 * 128)),
    "cut tiles": (fp8_gemm_nt(replace(SIDE, n=192, width=None, slots=2, cut=3)), Sizes(m=300, n=400, k=5 * 128)),
    "a pair of CTAs": (fp8_gemm_nt(PAIR), Sizes(m=300, n=264, k=5 * 128)),
    "from a bias, gated": (gated(), Sizes(m=70, n=336, k=5 * 128)),
    "ids": (in_row_groups(fp8_gemm_nt(LOW), "ids"), Sizes(m=150, n=264, k=5 * 128)),
    "ends": (in_row_groups(fp8_gemm_nt(TALL), "ends"), Sizes(m=300, n=264, k=5 * 128)),
    "counts, where warpgroups skip rows": (in_row_groups(fp8_gemm_nt(PAIR), "counts"), Sizes(m=400, n=264, k=640)),
    "a scale for each column": (fp8_gemm_nt(replace(LOW, strips=1), sfb_columns=1), Sizes(m=70, n=72, k=7 * 128)),
}


@pytest.mark.parametrize("name", CASES)
def test_every_block_has_its_own(name: str) -> None:
    spec, sizes = CASES[name]
    text = kernel_of(spec).text.source
    assert ("gemmgen::Strips" in text) == (len(spec.load.body.fills) > 1)
    assert ("gemmgen::rounds" in text) == spec.math.body.whole_rounds
    for schedule in SCHEDULES:
        outcome = execute(spec, sizes, torch.device("cpu"), schedule, seed=list(CASES).index(name))
        assert not outcome.wrong and outcome.warnings == (), outcome.errors


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
def test_groups_of_every_size(by: str) -> None:
    """Empty ones, one row, rows of the next group behind; NaN where no row is."""
    counts = (0, 37, 1, 0, 130)
    dense = fp8_gemm_nt(PAIR if by == "counts" else LOW if by == "ids" else TALL)
    given = layout_by(by, counts, dense.tile.m)
    for seed, schedule in enumerate(SCHEDULES):
        Problem(dense, in_row_groups(dense, by), given, 2 * dense.tile.n + 8, 5 * 128).run(schedule, seed=seed, sms=2)


def test_what_has_no_scales_has_neither() -> None:
    assert bf16_gemm("nt", replace(LOW, rounds=False)).rings == bf16_gemm("nt", Shape(64, 32, groups=1, slots=3)).rings
