"""Buffers that share a fence and a group of copies on sm90: turns that columns end in, whole and cut, and rows.

And products that are staged one by one beside those that follow, whatever k is and wherever the matrix ends.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from grouped import Problem, layout_by
from planted.k_grouped import of_k_groups

import gemmgen
from gemmgen.catalog import (
    Shape,
    accumulating,
    bf16_gemm,
    fp8_gemm_nt,
    in_k_groups,
    in_row_groups,
    mxfp8_output,
)
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Activation, Bias, DType, Keep, KernelSpec, Operand
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.simulation import SCHEDULES

THREE = Shape(64, 192, groups=1, slots=2, staging=3, unroll=1)
SIDE = Shape(64, 256, groups=1, width=128, slots=2, unroll=1)


def from_a_bias(spec: KernelSpec) -> KernelSpec:
    """Sums behind which a bias is read in pairs, where the tensor core adds up."""
    bias = Operand(name="bias", dtype=DType.F32, box=("n",))
    return spec.replace(
        name="biased_turns", operands=(*spec.operands, bias), epilogue=(Bias(vector="bias"), *spec.epilogue)
    )


CASES: dict[str, tuple[KernelSpec, int, Sizes]] = {
    "a tile in one turn, cut in its last box": (bf16_gemm("nt", THREE), 3, Sizes(m=70, n=336, k=64)),
    "a tile in one turn, cut in its first box": (bf16_gemm("nt", THREE), 3, Sizes(m=70, n=200, k=64)),
    "two turns a tile": (bf16_gemm("nt", Shape(64, 256, groups=1, slots=2)), 2, Sizes(m=70, n=456, k=64)),
    "two turns in flight": (
        bf16_gemm("nt", Shape(64, 256, groups=1, width=128, slots=2, staging=4)), 2, Sizes(m=70, n=456, k=64),
    ),
    "a last turn of one box": (bf16_gemm("nt", Shape(64, 144, groups=1, slots=2)), 2, Sizes(m=70, n=184, k=64)),
    "fp32": (fp8_gemm_nt(Shape(64, 128, groups=1, slots=2), DType.F32), 2, Sizes(m=70, n=200, k=144)),
    "a matrix beside them": (
        fp8_gemm_nt(Shape(64, 128, groups=1, slots=2), DType.F32, True), 1, Sizes(m=70, n=200, k=144),
    ),
    "vectors read in pairs": (from_a_bias(bf16_gemm("nt", THREE)), 3, Sizes(m=70, n=336, k=64)),
    "cut tiles": (
        fp8_gemm_nt(Shape(64, 192, groups=1, slots=2, staging=3, unroll=1, cut=3)), 3, Sizes(m=70, n=600, k=256),
    ),
    "beside products": (
        fp8_gemm_nt(Shape(64, 128, groups=1, slots=2, unroll=1, overlap=True)), 2, Sizes(m=140, n=200, k=400),
    ),
    "quantised": (mxfp8_output(False).of(bf16_gemm("nt", Shape(64, 256, groups=1, slots=2))), 2, Sizes(70, 352, 64)),
    "quantised, products side by side": (mxfp8_output(False).of(fp8_gemm_nt(SIDE)), 2, Sizes(m=70, n=352, k=144)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_box_is_copied_once(name: str) -> None:
    spec, turn, sizes = CASES[name]
    plan = kernel_of(spec).plan
    assert plan.store.turn == turn
    for schedule in SCHEDULES:
        outcome = execute(spec, sizes, torch.device("cpu"), schedule, seed=list(CASES).index(name))
        assert not outcome.wrong and outcome.warnings == (), outcome.errors


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
def test_rows_of_groups_that_end_inside_a_box(by: str) -> None:
    counts = (0, 37, 1, 0, 70)
    dense = bf16_gemm("nt", THREE)
    given = layout_by(by, counts, dense.tile.m)
    for seed, schedule in enumerate(SCHEDULES):
        Problem(dense, in_row_groups(dense, by), given, 2 * dense.tile.n - 40, 128).run(schedule, seed=seed, sms=2)


BESIDE = Shape(64, 256, groups=1, width=128, slots=2, unroll=1, overlap=True)
BELOW = Shape(128, 128, groups=1, slots=3, staging=4, unroll=1, overlap=True, rounds=True, strips=2)


def relu_of_a_bias(spec: KernelSpec) -> KernelSpec:
    """Sums start from the bias; what comes behind it reads nothing."""
    biased = from_a_bias(spec)
    return biased.replace(epilogue=(biased.epilogue[0], Activation(function="relu"), *biased.epilogue[1:]))


def kept(spec: KernelSpec) -> KernelSpec:
    """The sums before they are rounded, beside the output."""
    sums = Operand(name="sums", dtype=DType.F32, box=("m", "n"))
    return spec.replace(name="kept", operands=(*spec.operands, sums), epilogue=(Keep(to="sums"), *spec.epilogue))


APART: dict[str, KernelSpec] = {
    "beside each other": fp8_gemm_nt(BESIDE),
    "below each other, in whole rounds": fp8_gemm_nt(BELOW),
    "a turn of one buffer": fp8_gemm_nt(Shape(128, 64, groups=1, slots=2, unroll=1, overlap=True)),
    "cut tiles": fp8_gemm_nt(Shape(64, 192, groups=1, width=96, slots=2, staging=3, unroll=1, cut=3, overlap=True)),
    "from a bias": relu_of_a_bias(fp8_gemm_nt(BELOW)),
    "kept": kept(fp8_gemm_nt(BELOW)),
}


@pytest.mark.parametrize("k", [0, 80, 384, 1328])
@pytest.mark.parametrize("name", APART)
def test_products_are_staged_apart(name: str, k: int) -> None:
    """No K block, one, two and more; the second product of a tile, or both, may lie behind the matrix's edges."""
    spec = APART[name]
    plan = kernel_of(spec).plan
    assert plan.store.apart and ".stage(acc" in kernel_of(spec).text.source
    for index, schedule in enumerate(SCHEDULES):
        sizes = [Sizes(m=140, n=200, k=k), Sizes(m=300, n=520, k=k), Sizes(m=72, n=136, k=k)][index % 3]
        outcome = execute(spec, sizes, torch.device("cpu"), schedule, seed=k + index)
        assert not outcome.wrong and outcome.warnings == (), outcome.errors


@pytest.mark.parametrize("by", ["ids", "ends", "counts"])
@pytest.mark.parametrize("name", ["beside each other", "below each other, in whole rounds", "from a bias"])
def test_products_of_groups_are_staged_apart(name: str, by: str) -> None:
    counts = (0, 37, 1, 0, 130)
    dense = APART[name]
    given = layout_by(by, counts, dense.tile.m)
    for seed, schedule in enumerate(SCHEDULES):
        Problem(dense, in_row_groups(dense, by), given, 2 * dense.tile.n + 8, 384).run(schedule, seed=seed, sms=2)


@pytest.mark.parametrize("counts", [(0, 256, 0, 384), (128, 0, 0), (0, 0)])
@pytest.mark.parametrize("shape", [replace(BESIDE, n=128, width=64), Shape(128, 64, groups=1, slots=2, overlap=True)])
def test_products_of_groups_of_k_are_added_apart(shape: Shape, counts: tuple[int, ...]) -> None:
    """Nothing is added where a group has none of k, and what the tile before left goes all the same."""
    spec = in_k_groups(accumulating(fp8_gemm_nt(shape, DType.F32, sfb_columns=1)), "counts", 128, apart=True)
    assert kernel_of(spec).plan.store.apart
    subject = of_k_groups(spec, counts, m=136, n=72)
    for schedule in SCHEDULES:
        with gemmgen.simulate("sm90", schedule=schedule, sms=2):
            d = torch.ones(len(counts), 136, 72)
            gemmgen.op(spec)(**subject.inputs, d=d)
        assert torch.equal(d, subject.expected + 1)


def test_what_keeps_products_together() -> None:
    """Half a product a turn, sums of four bytes, products that do not run on, blocks of many columns, reads."""
    read = from_a_bias(fp8_gemm_nt(BESIDE))
    read = read.replace(epilogue=(Activation(function="relu"), *read.epilogue))
    for spec in (
        fp8_gemm_nt(replace(BESIDE, staging=1)),
        fp8_gemm_nt(BESIDE, DType.F32),
        fp8_gemm_nt(replace(BESIDE, overlap=False)),
        mxfp8_output(False).of(fp8_gemm_nt(BELOW)),
        read,
    ):
        assert not kernel_of(spec).plan.store.apart and ".stage(acc" not in kernel_of(spec).text.source
