"""Sums of scaled products that start from a bias: the numbers of a chain that adds it, wherever the edge lies."""

from __future__ import annotations

import chains
import pytest
import reference
import torch

import gemmgen
from gemmgen import catalog
from gemmgen.backends import emit, lower, table
from gemmgen.catalog import Shape, dense
from gemmgen.ir import (
    Activation,
    Bias,
    Cast,
    DType,
    Epilogue,
    Gate,
    KernelSpec,
    Operand,
    Scale,
    Step,
    Store,
    Wgmma,
)

NARROW, TALL, WIDE = Shape(64, 32, groups=1), Shape(128, 32, groups=1), Shape(128, 64, width=32, slots=2)
AHEAD = Shape(256, 32, unroll=1, overlap=True)
ALONE, SHARED = Shape(64, 32, groups=1, splits=1, ctas_per_sm=2), Shape(64, 32, groups=1, splits=3, ctas_per_sm=2)


def behind(
    product: KernelSpec, along: str, *steps: Step, dtype: DType = DType.F32, extra: tuple[Operand, ...] = ()
) -> KernelSpec:
    """The product with a bias before these steps."""
    d, gated = product.output.dtype, any(isinstance(step, Gate) for step in steps)
    operands = (
        Operand(name="bias", dtype=dtype, box=(along,)),
        *extra,
        Operand(name="d", dtype=d, box=("m", "n/2" if gated else "n")),
    )
    cast = () if d == DType.F32 else (Cast(to=d),)
    chain = (Bias(vector="bias"), *steps, *cast, Store(to="d"))
    return Epilogue(name="started", operands=operands, steps=chain).of(product)


CASES = {
    "columns": behind(dense.fp8_gemm_nt(NARROW), "n", Activation(function="relu")),
    "columns of several blocks": behind(dense.fp8_gemm_nt(WIDE), "n", dtype=DType.BF16),
    "rows": behind(dense.fp8_gemm_nt(TALL, DType.F32), "m", Activation(function="silu")),
    "columns, beside the next tile's products": behind(dense.fp8_gemm_nt(AHEAD), "n", Activation(function="relu")),
    "rows, beside the next tile's products": behind(dense.fp8_gemm_nt(AHEAD, DType.F32), "m"),
    "a scale for each column": behind(dense.fp8_gemm_nt(NARROW, DType.F32, sfb_columns=1), "n"),
    "columns, a tile a CTA": behind(dense.fp8_gemm_nt(ALONE), "n", Activation(function="relu")),
    "columns, a tile a cluster": behind(dense.fp8_gemm_nt(SHARED), "n", Activation(function="silu"), dtype=DType.BF16),
    "rows, a tile a cluster": behind(dense.fp8_gemm_nt(SHARED, DType.F32), "m"),
    "launched early": catalog.launched_early(behind(dense.fp8_gemm_nt(SHARED), "n", Activation(function="relu"))),
    "before a gate": behind(
        dense.fp8_gemm_nt(WIDE), "n", Scale(by="scale"), Gate(), extra=(Operand(name="scale", dtype=DType.F32, box=()),)
    ),
}


@pytest.mark.parametrize("n", [32, 144])
@pytest.mark.parametrize("name", CASES)
def test_sums_start_from_a_bias(name: str, n: int) -> None:
    """One tile, and a few with an edge for each CTA; a K block, and some with a rest."""
    spec = CASES[name]
    assert lower(spec).starts and "StartFrom" in emit(spec)
    sizes = {"m": 40, "n": n, "k": 128} if n == 32 else {"m": 200, "n": n, "k": 300}
    chains.run_and_check(spec, {**sizes, "k": -(-sizes["k"] // 16) * 16}, seed=n)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_bias_at_any_address_and_an_odd_edge(dtype: DType) -> None:
    spec = behind(dense.fp8_gemm_nt(NARROW, direct_store=True), "n", dtype=dtype)
    sizes = {"m": 70, "n": 37, "k": 160}
    tensors, _ = chains.data(spec, sizes, seed=5)
    with gemmgen.simulate("sm90", schedule="random", seed=5, sms=2):
        nan = torch.full((1,), torch.nan, dtype=tensors["bias"].dtype)
        shifted = torch.cat([nan, tensors["bias"], nan])[1:-1]
        reference.check(gemmgen.op(spec)(**{**tensors, "bias": shifted}), spec, tensors)


@pytest.mark.parametrize("shape", [NARROW, AHEAD, SHARED])
def test_without_products_the_bias_is_left(shape: Shape) -> None:
    spec = behind(dense.fp8_gemm_nt(shape, DType.F32), "n")
    bias = torch.randn(40)
    a, b = (torch.empty(rows, 0, dtype=torch.float8_e4m3fn) for rows in (30, 40))
    sfa, sfb = torch.empty(0, 32).T[:30], torch.empty(1, 0)
    with gemmgen.simulate("sm90", sms=2):
        d = gemmgen.op(spec)(a=a, sfa=sfa, b=b, sfb=sfb, bias=bias)
    assert torch.equal(d, bias.expand(30, 40))  # type: ignore[arg-type]


def test_products_go_on_beside_epilogues_that_only_round() -> None:
    """The shipped tile's overlap stays behind a bias and relu, and goes where registers are needed."""
    a, b = Operand(name="bias", dtype=DType.F32, box=("n",)), Operand(name="d", dtype=DType.BF16, box=("m", "n"))
    rest = (Cast(to=DType.BF16), Store(to="d"))
    shipped = next(shape for shape in catalog.FP8_SHAPES if shape.overlap)
    for steps, stays in (((), True), ((Activation(function="relu"),), True), ((Activation(function="silu"),), False)):
        epilogue = Epilogue(name="e", operands=(a, b), steps=(Bias(vector="bias"), *steps, *rest))
        body = epilogue.of(catalog.fp8_gemm_nt(catalog.behind(shipped, epilogue))).math.body
        assert isinstance(body, Wgmma) and body.overlap_epilogue == stays
        assert catalog.behind(AHEAD, epilogue).overlap == stays and not catalog.behind(AHEAD).overlap


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_what_is_no_number_in_a_bias_stays_in_its_column(odd: float) -> None:
    """The first of the CTAs that share K blocks adds it; others add zeros, not none of it."""
    spec, sizes = behind(dense.fp8_gemm_nt(SHARED, DType.F32), "n"), {"m": 30, "n": 40, "k": 400}
    tensors, _ = chains.data(spec, sizes, seed=3)
    tensors = {**tensors, "bias": tensors["bias"].clone()}
    tensors["bias"][7] = odd
    with gemmgen.simulate("sm90", sms=2):
        d = gemmgen.op(spec)(**tensors)
    assert isinstance(d, torch.Tensor)
    assert [column for column in range(40) if not d[:, column].isfinite().all()] == [7]
    assert (d[:, 7].isnan() if odd != odd else d[:, 7] == torch.inf).all()


@pytest.mark.parametrize("early", [False, True])
def test_a_vector_is_asked_for_before_the_boxes_of_a_ring(early: bool) -> None:
    """Behind them it would come late; a kernel that starts early must wait first, as the one ahead may write it."""
    bf16 = behind(dense.bf16_gemm("nt", SHARED), "n")
    for spec, read in ((CASES["columns, a tile a cluster"], "start("), (bf16, "Epilogue::ahead(")):
        text = emit(catalog.launched_early(spec) if early else spec).split("DEVICE void math(")[1]
        order = [text.index(read), text.index("wait_for_barriers();")]
        assert order == sorted(order, reverse=early)
        if early:
            assert text.index("wait_for_prerequisites") < order[0]
    for spec in (
        CASES["columns"],
        CASES["columns, beside the next tile's products"],
        behind(dense.bf16_gemm("nt", NARROW), "n"),
    ):
        text = emit(catalog.launched_early(spec) if early else spec)
        entry = text[text.index('extern "C"') :]
        assert ("ahead" in entry[: entry.index("mbarrier_init")]) is not early


def test_what_keeps_the_bias_in_the_chain() -> None:
    """Products that the tensor core sums itself, shares of k, a step before it, and halves of n."""
    assert "epilogue   bias that sums start from -> activation -> cast" in table(lower(CASES["columns"]))
    product = dense.fp8_gemm_nt(NARROW)
    scale = (Operand(name="scale", dtype=DType.F32, box=()),)
    others = [
        behind(dense.bf16_gemm("nt", NARROW), "n"),
        behind(dense.fp8_gemm_nt(Shape(64, 32, groups=1, share=True)), "n"),
        behind(product, "n", Gate(layout="halves")),
    ]
    later = behind(product, "n", Scale(by="scale"), extra=scale)
    bias, scaling, *rest = later.epilogue
    others.append(later.replace(epilogue=(scaling, bias, *rest)))
    for spec in others:
        plan = lower(spec)
        assert not plan.starts and "StartFrom" not in emit(spec) and "starts" not in table(plan)
