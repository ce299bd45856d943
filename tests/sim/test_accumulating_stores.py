"""Stores that add to what the output holds: on every architecture, staged and by lanes, each element once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import exact_factor

import gemmgen
from gemmgen import catalog
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Arch, DType, KernelSpec, Store
from gemmgen.ops.kernels import kernel_of

SIZES = Sizes(m=150, n=136, k=200)
THREE_GROUPS = catalog.Shape(192, 128, groups=3, unroll=1, overlap=True, rounds=True)


def added(spec: KernelSpec) -> KernelSpec:
    return catalog.accumulating(spec)


SPECS = [
    added(catalog.bf16_gemm("nt", catalog.Shape(64, 64, groups=1), DType.F32)),
    added(catalog.bf16_gemm("nt", catalog.Shape(64, 128, groups=1, unroll=2), DType.F32, direct_store=True)),
    added(catalog.bf16_gemm("nt", catalog.Shape(16, 64, groups=1, swap=True), DType.F32)),
    added(catalog.fp8_gemm_nt(THREE_GROUPS, DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(catalog.Shape(256, 40, unroll=1), DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(catalog.Shape(128, 40, groups=1, unroll=1, overlap=True), DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(catalog.Shape(32, 32, groups=1, unroll=1, ctas_per_sm=2, splits=2), DType.F32)),
    added(catalog.bf16_gemm_sm100("nt", catalog.PairShape(64), DType.F32)),
    added(catalog.bf16_gemm_sm100("nt", catalog.PairShape(64), DType.F32, direct_store=True)),
    added(catalog.bf16_gemm_sm100("nt", catalog.PairShape(16, swap=True), DType.F32)),
    added(catalog.bf16_gemm_sm120("nt", catalog.WarpShape(64, 64), DType.F32)),
    added(catalog.bf16_gemm_sm120("nt", catalog.WarpShape(16, 128, warps=(8, 1), swap=True), DType.F32)),
]


@pytest.mark.parametrize("schedule", ["random", "starve"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_output_has_its_sum_added(spec: KernelSpec, schedule: str) -> None:
    """Ragged, several tiles; the reference adds what the output held."""
    outcome = execute(spec, SIZES, torch.device("cpu"), schedule, seed=3)
    assert not outcome.wrong, outcome.errors
    assert not outcome.warnings


def test_sums_are_exact_and_nothing_else_is_touched() -> None:
    spec = SPECS[0]
    a, b = (exact_factor(rows, 64, torch.bfloat16, rows) for rows in (70, 72))
    room = torch.full((72, 88), 5.0)
    with gemmgen.simulate("sm90", sms=2):
        for _ in range(3):
            gemmgen.op(spec)(a=a, b=b, d=room[1:71, 8:80])
    wanted = torch.full((72, 88), 5.0)
    wanted[1:71, 8:80] += 3 * (a.float() @ b.float().T)
    assert torch.equal(room, wanted)


def test_there_must_be_something_to_add_to() -> None:
    a, b = torch.randn(8, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    with gemmgen.simulate("sm90"), pytest.raises(TypeError, match=r"^d: missing; .* adds to what it holds, so pass"):
        gemmgen.op(SPECS[0])(a=a, b=b)


def storing(spec: KernelSpec, **changes: Any) -> KernelSpec:
    store = spec.epilogue[-1]
    assert isinstance(store, Store)
    return spec.replace(epilogue=(*spec.epilogue[:-1], store.replace(accumulate=True)), **changes)


def test_refusals() -> None:
    plain = catalog.bf16_gemm("nt", catalog.Shape(64, 64, groups=1))
    with pytest.raises(ValueError, match="'d' holds bf16, and memory adds in fp32 here; use a Residual of a matrix"):
        storing(plain)
    rows = catalog.in_row_groups(catalog.bf16_gemm("nt", catalog.Shape(64, 64, groups=1), DType.F32), "ends")
    with pytest.raises(ValueError, match="rows that the end of a group cuts off are copied, not added"):
        storing(rows)


def test_emitted_text_says_so() -> None:
    for spec in SPECS:
        assert "which adds" in kernel_of(spec).text.source
    assert {spec.arch for spec in SPECS} == set(Arch)
