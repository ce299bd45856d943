"""Stores that add to what the output holds: on every architecture, staged and by lanes, each element once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import exact_factor, exact_scales

import gemmgen
from gemmgen import catalog
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Arch, Bias, DType, KernelSpec, Operand, Store
from gemmgen.ops.kernels import kernel_of

SIZES = Sizes(m=150, n=136, k=200)
THREE_GROUPS = catalog.Shape(192, 128, groups=3, unroll=1, overlap=True, rounds=True)

STAGED_APART = catalog.Shape(128, 32, groups=1, slots=2, unroll=1, overlap=True, rounds=True, staging=1)


def added(spec: KernelSpec) -> KernelSpec:
    return catalog.accumulating(spec)


SPECS = [
    added(catalog.bf16_gemm("nt", catalog.Shape(64, 64, groups=1), DType.F32)),
    added(catalog.bf16_gemm("nt", catalog.Shape(64, 128, groups=1, unroll=2), DType.F32, direct_store=True)),
    added(catalog.bf16_gemm("nt", catalog.Shape(16, 64, groups=1, swap=True), DType.F32)),
    added(catalog.fp8_gemm_nt(THREE_GROUPS, DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(catalog.Shape(256, 40, unroll=1), DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(catalog.Shape(128, 40, groups=1, unroll=1, overlap=True), DType.F32, sfb_columns=1)),
    added(catalog.fp8_gemm_nt(STAGED_APART, DType.F32, sfb_columns=1)),
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


@pytest.mark.parametrize("schedule", ["early", "late", "random", "starve"])
def test_products_staged_apart_for_every_number_of_k_blocks(schedule: str) -> None:
    """Groups of k with no K block, where nothing is added, one, which is the first and the last, two, and more."""
    product = added(catalog.fp8_gemm_nt(STAGED_APART, DType.F32, sfb_columns=1))
    spec = catalog.in_k_groups(product, "counts", 128, apart=True)
    assert kernel_of(product).plan.store.apart and kernel_of(spec).plan.store.apart
    counts, m, n = (128, 0, 256, 640, 128, 0), 72, 96
    blocks = [count // 128 for count in counts]
    a, b = ([exact_factor(rows, count, torch.float8_e4m3fn, rows + count) for count in counts] for rows in (m, n))
    sfa, sfb = (exact_scales(sum(blocks), rows, rows) for rows in (m, n))
    before = torch.randint(-8, 9, (len(counts), m, n)).float()
    wanted = before.double()
    for group, (each, other, x, y) in enumerate(zip(a, b, sfa.split(blocks), sfb.split(blocks), strict=True)):
        left, right = (f.double() * s.mT.repeat_interleave(128, 1) for f, s in ((each, x), (other, y)))
        wanted[group] += left @ right.T
    factors = {
        "a": torch.cat([f.flatten() for f in a]).view(m, -1),
        "b": torch.cat([f.flatten() for f in b]).view(n, -1),
    }
    d, layout = before.clone(), torch.tensor(counts, dtype=torch.int32)
    with gemmgen.simulate("sm90", schedule=schedule, sms=1) as simulation:
        gemmgen.op(spec)(**factors, sfa=sfa.mT, sfb=sfb.mT, d=d, layout=layout)
    assert torch.equal(d.double(), wanted)
    assert not simulation.reports[0].warnings


@pytest.mark.parametrize(
    "product",
    [
        catalog.bf16_gemm("tn", catalog.Shape(64, 64, groups=1), DType.F32),
        catalog.bf16_gemm_sm100("tn", catalog.PairShape(64), DType.F32),
        catalog.bf16_gemm_sm120("tn", catalog.WarpShape(64, 64), DType.F32),
    ],
    ids=lambda product: product.arch,
)
def test_a_group_without_any_k_gets_what_its_chain_makes_of_nothing(product: KernelSpec) -> None:
    bias = Operand(name="bias", dtype=DType.F32, box=("n",))
    biased = product.replace(operands=(*product.operands, bias), epilogue=(Bias(vector="bias"), *product.epilogue))
    spec = catalog.in_k_groups(added(biased), "counts")
    a, b = (torch.randn(40, rows).bfloat16() for rows in (72, 40))
    vector, d = torch.randn(40), torch.ones(2, 72, 40)
    with gemmgen.simulate(product.arch, sms=2):
        gemmgen.op(spec)(a=a.mT, b=b.mT, d=d, bias=vector, layout=torch.tensor([0, 40], dtype=torch.int32))
    assert torch.equal(d[0], 1 + vector.expand(72, 40))
    torch.testing.assert_close(d[1], 1 + vector + a.float().T @ b.float())


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
