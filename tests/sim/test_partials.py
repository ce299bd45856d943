"""Products that take turns at two sets of registers: across K blocks within rounds of the ring, and within a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from grouped import Problem, layout_by

from gemmgen.backends import lower, table
from gemmgen.catalog import Shape, fp8_gemm_nt, in_row_groups
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Bias, DType, KernelSpec, Operand
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.simulation import SCHEDULES

LOW = Shape(64, 32, groups=1, width=16, slots=4, unroll=1, rounds=True, strips=2, partials=2)
BELOW = replace(LOW, m=128, n=16, slots=2, strips=1)
BOTH = Shape(256, 16, width=8, slots=3, unroll=1, rounds=True, lanes=True, partials=2)
PAIR = Shape(128, 32, width=16, slots=2, unroll=1, rounds=True, strips=2, cluster=(2, 1), partials=2)
CUT = Shape(64, 96, groups=1, width=48, slots=2, unroll=1, rounds=True, strips=2, cut=3, partials=2)


def from_a_bias() -> KernelSpec:
    """A bias that stays in the chain."""
    spec = fp8_gemm_nt(LOW)
    bias = Operand(name="bias", dtype=DType.F32, box=("n",))
    return spec.replace(operands=(*spec.operands, bias), epilogue=(Bias(vector="bias"), *spec.epilogue))


def narrow(k_blocks: int, m: int = 9) -> Sizes:
    """The last block ends within 128 of k."""
    return Sizes(m=m, n=72, k=max(0, 128 * k_blocks - 16))


CASES: dict[str, tuple[KernelSpec, Sizes]] = {
    **{f"{blocks} blocks": (fp8_gemm_nt(LOW), narrow(blocks)) for blocks in (1, 2, 3, 4, 5, 7, 8, 9)},
    "tiles that begin inside a round": (fp8_gemm_nt(LOW), Sizes(m=70, n=72, k=5 * 128)),
    "no block": (fp8_gemm_nt(LOW, DType.F32, True), narrow(0)),
    "below each other": (fp8_gemm_nt(BELOW), narrow(5, 66)),
    "no rounds": (fp8_gemm_nt(replace(LOW, rounds=False, unroll=2)), narrow(5)),
    "a ring of one slot": (fp8_gemm_nt(replace(LOW, slots=1)), narrow(3)),
    "scales by lanes": (fp8_gemm_nt(BOTH), Sizes(m=150, n=40, k=4 * 128)),
    "scales of A by lanes": (fp8_gemm_nt(replace(LOW, strips=1), sfa_major="k"), narrow(5)),
    "a pair of CTAs": (fp8_gemm_nt(PAIR), Sizes(m=140, n=40, k=3 * 128)),
    "cut tiles": (fp8_gemm_nt(CUT), Sizes(m=9, n=472, k=3 * 128)),
    "shares of tiles": (fp8_gemm_nt(replace(LOW, share=True)), narrow(9)),
    "a bias": (from_a_bias(), narrow(5)),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_their_own_block(name: str) -> None:
    """Under one schedule each, in turn; under all of them the kernel is right that mistakes are planted in."""
    spec, sizes = CASES[name]
    assert "float part[2]" in kernel_of(spec).text.source
    turn = list(CASES).index(name)
    outcome = execute(spec, sizes, torch.device("cpu"), SCHEDULES[turn % len(SCHEDULES)], seed=turn)
    assert not outcome.wrong and outcome.warnings == (), outcome.errors


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
def test_groups_of_every_size(by: str) -> None:
    """Empty ones, one row, rows of the next group behind; NaN where no row is."""
    dense = fp8_gemm_nt(PAIR if by == "counts" else LOW)
    given = layout_by(by, (0, 37, 1, 0, 70), dense.tile.m)
    for seed, schedule in enumerate(("random", "starve")):
        Problem(dense, in_row_groups(dense, by), given, dense.tile.n, 3 * 128).run(schedule, seed=seed, sms=2)


@pytest.mark.parametrize(
    ("shape", "products", "registers"),
    [
        (Shape(128, 256, width=64, partials=2), 4, 128 + 64),
        (Shape(128, 192, width=96, partials=2), 2, 96 + 96),
        (Shape(128, 176, width=88, partials=2), 2, 88 + 88),
        (Shape(128, 160, width=80, partials=2), 2, 80 + 80),
        (Shape(256, 128, width=64, partials=2), 4, 128 + 64),
        (Shape(256, 144, width=48, partials=2), 6, 144 + 48),
        (Shape(256, 144, width=72, partials=2, registers=(24, 240)), 4, 144 + 72),
    ],
)
def test_large_tiles_have_room(shape: Shape, products: int, registers: int) -> None:
    plan = lower(fp8_gemm_nt(shape))
    assert plan.name.endswith(f"{shape.m}x{shape.n}_p2") and "2 sets of partial sums" in table(plan)
    assert (plan.mma.units, plan.mma.accumulators + plan.mma.partials * plan.mma.width // 2) == (products, registers)
