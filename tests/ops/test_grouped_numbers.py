"""Operators of row groups on the simulator: every group's rows are its product, bit for bit, and no others change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from grouped_problems import Layout, Problem, bf16_problem, counts_of, ends, fp8_problem, ids

import gemmgen
from gemmgen import ops
from gemmgen.catalog import head_split_output
from gemmgen.ir import Cast, DType, Epilogue, Gate, HeadSplit, Operand, Quantise, Reduce, Store
from gemmgen.ops import copies

COUNTS = (5, 0, 70, 1)


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    ops.set_mk_alignment_for_contiguous_layout(64)
    with gemmgen.simulate("sm90", sms=3):
        yield
    ops.set_mk_alignment_for_contiguous_layout(128)


FORMS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "ids": (ids(COUNTS, 64, tail=1), {}),
    "psum": (ends(COUNTS, 64, tail=3), {"use_psum_layout": True, "ensure_zero_padding": False}),
    "offsets": (ends(COUNTS, tail=2), {"offsets": True, "expected_m_for_psum_layout": 30}),
}


@pytest.fixture
def turned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that lie along k are turned first, as they are where there are many."""
    if request.param:
        monkeypatch.setattr(copies, "LAUNCH", -1e9)


@pytest.mark.parametrize("turned", [False, True], indirect=True)
@pytest.mark.parametrize(("form", "sfa"), [("ids", "k"), ("psum", "m"), ("offsets", "k")])
def test_fp8_rows_one_behind_the_other(form: str, sfa: str, turned: None) -> None:
    layout, named = FORMS[form]
    problem = fp8_problem(layout, sfa=sfa)
    d = problem.output()
    assert ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, layout.given, **named) is d
    assert torch.equal(d, problem.product.to(d.dtype))


def test_bf16_rows_one_behind_the_other_in_fp32() -> None:
    layout, named = FORMS["ids"]
    problem = bf16_problem(layout)
    d = problem.output(torch.float32)
    ops.m_grouped_bf16_gemm_nt_contiguous(problem.a, problem.b, d, layout.given, **named)
    assert torch.equal(d, problem.product.float())


def test_groups_that_start_at_multiples_of_few_rows() -> None:
    """Of tiles by row ids only swapped ones divide them."""
    ops.set_mk_alignment_for_contiguous_layout(16)
    problem = fp8_problem(ids(COUNTS, 16, tail=1))
    d = problem.output()
    ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.layout.given)
    assert torch.equal(d, problem.product.to(d.dtype))


@pytest.mark.parametrize("turned", [False, True], indirect=True)
@pytest.mark.parametrize(("sfa", "expected"), [("k", None), ("m", 4)])
def test_fp8_masked(sfa: str, expected: int | None, turned: None) -> None:
    layout = counts_of((3, 0, 20), 20)
    problem = fp8_problem(layout, sfa=sfa)
    d = problem.output()
    assert ops.fp8_m_grouped_gemm_nt_masked(problem.a, problem.b, d, masked_m=layout.given, expected_m=expected) is d
    assert torch.equal(d, problem.product.to(d.dtype))


def test_bf16_masked_with_neighbours_and_a_hint_that_is_wrong() -> None:
    """P05: groups of 9 rows, whose last tile would reach into the next one's."""
    layout = counts_of((9, 2, 0), 9)
    problem = bf16_problem(layout)
    for expected in (1, 4000):
        d = problem.output()
        ops.m_grouped_bf16_gemm_nt_masked(problem.a, problem.b, d, layout.given, expected)
        assert torch.equal(d, problem.product.to(d.dtype))


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("make", [fp8_problem, bf16_problem], ids=["fp8", "bf16"])
def test_masked_counts_from_none_to_all_rows(make: Callable[..., Problem], arch: str) -> None:
    """P05: ends before, at and behind every boundary of fragments and tiles, with the next group's rows behind."""
    capacity = 33
    layout = counts_of(range(capacity + 1), capacity)
    problem = make(layout)
    d = problem.output()
    called = ops.m_grouped_fp8_gemm_nt_masked if make is fp8_problem else ops.m_grouped_bf16_gemm_nt_masked
    with gemmgen.simulate(arch, sms=3):
        called(problem.a, problem.b, d, layout.given)
    assert torch.equal(d, problem.product.to(d.dtype))


def test_k_contiguous_factors_passed_the_other_way_round() -> None:
    layout = ends((4, 9))
    problem = fp8_problem(layout, columns=1)
    (b, sfb), d = problem.b, problem.output()
    turned = b.mT, sfb.mT
    ops.m_grouped_fp8_gemm_nn_contiguous(problem.a, turned, d, layout.given, recipe=(1, 1, 128), offsets=True)
    assert torch.equal(d, problem.product.to(d.dtype))


def test_bf16_b_contiguous_along_n() -> None:
    layout = ends((4, 9))
    problem = bf16_problem(layout)
    b = problem.b.mT.contiguous()
    d = ops.m_grouped_bf16_gemm_nn_contiguous(problem.a, b, None, layout.given, offsets=True)
    assert torch.equal(d, problem.product.to(d.dtype))


def test_bias_and_activation_of_every_group() -> None:
    layout = counts_of((3, 0, 8), 8)
    problem = bf16_problem(layout)
    bias = torch.arange(3 * 72).view(3, 72).float() - 100
    d = problem.output()
    ops.bf16_m_grouped_gemm_nt_masked(problem.a, problem.b, d, layout.given, 8, bias=bias, activation="relu")
    wanted = problem.product.clone()
    for group in range(3):
        rows = layout.rows_of(wanted, group)
        rows.add_(bias[group].double()).relu_()
    assert torch.equal(d, wanted.to(d.dtype))


def test_mxfp8_outputs() -> None:
    layout = ends((6, 0, 11), tail=1)
    problem = fp8_problem(layout, n=128)
    d_fp8, d_sf = ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(
        problem.a, problem.b, None, None, layout.given, offsets=True
    )
    data, scales = ops.cast_to_mxfp8(problem.product[:17].float())
    assert torch.equal(d_fp8[:17].view(torch.uint8), data.view(torch.uint8))
    assert torch.equal(d_sf[:17].view(torch.uint8), scales.view(torch.uint8))


def swiglu_fp8() -> Epilogue:
    """silu(gate) * up of neighbours in b's rows, in e4m3 with an fp32 scale for 128 columns, as sm90 reads them."""
    data = Operand(name="d", dtype=DType.E4M3, box=("m", "n/2"))
    scales = Operand(name="sf", dtype=DType.F32, box=("m", "n/256"), major="m")
    steps = (Gate("silu", layout="interleaved"), Quantise(to="d", scales="sf"))
    return Epilogue(name="swiglu_fp8", operands=(data, scales), steps=steps)


def swiglu(product: torch.Tensor) -> torch.Tensor:
    gate, up = product.view(len(product), product.shape[1] // 16, 2, 8).unbind(2)
    return (torch.nn.functional.silu(gate) * up).flatten(1)


def test_an_expert_mlp_in_two_launches() -> None:
    """The first product's outputs are the second one's factor as they are."""
    layout = counts_of((3, 0, 9), 9)
    up = fp8_problem(layout, n=256, sfa="m")
    hidden = gemmgen.fuse("m_grouped_fp8_gemm_nt_masked", swiglu_fp8())(up.a, up.b, layout.given, 8)
    assert isinstance(hidden, tuple) and hidden[1].stride() == (12, 1, 12)
    down = fp8_problem(layout, n=64, k=128)
    d = down.output()
    assert ops.m_grouped_fp8_gemm_nt_masked(hidden, down.b, d, layout.given, 8) is d
    for group, (_, count) in enumerate(layout.spans):
        data, scales = (layout.rows_of(each, group).double() for each in hidden)
        wanted = swiglu(layout.rows_of(up.product, group))
        assert bool(((data * scales - wanted).abs() <= wanted.abs() * 2**-4 + scales * 2**-9).all())
        assert bool((data.abs().amax(1) == 448).all())
        weights, sfb = (each[group].double() for each in down.b)
        second = (data * scales) @ (weights * sfb).T
        assert torch.allclose(layout.rows_of(d, group).double(), second, rtol=2**-8, atol=1e-4)
        assert bool((d[group, count:] == 776).all())


def test_epilogues_of_numbers_and_vectors() -> None:
    """An author's chain is written as for a dense product; vectors along n have a part for every group."""
    operands = (
        Operand(name="by", dtype=DType.F32, box=()),
        Operand(name="shift", dtype=DType.BF16, box=("n",)),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    )
    steps = (gemmgen.Scale(by="by"), gemmgen.Bias(vector="shift"), Cast(to=DType.BF16), Store(to="d"))
    chain = Epilogue(name="scaled_shifted", operands=operands, steps=steps)
    layout = ends((4, 3))
    problem = bf16_problem(layout)
    shift = torch.arange(2 * 72).view(2, 72).bfloat16()
    made = gemmgen.fuse("m_grouped_bf16_gemm_nt_contiguous", chain)
    d = made(problem.a, problem.b, grouped_layout=layout.given, by=0.5, shift=shift, offsets=True)
    wanted = problem.product * 0.5 + shift.double().repeat_interleave(torch.tensor([4, 3]), 0)
    assert isinstance(d, torch.Tensor) and torch.equal(d, wanted.bfloat16())
    assert made is gemmgen.fuse("m_grouped_bf16_gemm_nt_contiguous", chain)


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_heads_of_groups_leave_gaps(form: str) -> None:
    """Columns move within a row, and rows of groups end where they did; the gaps and what is between stay."""
    heads = HeadSplit(left=4, mid=3, right=8)
    made = gemmgen.fuse(f"m_grouped_bf16_gemm_nt_{form}", head_split_output(DType.BF16, heads))
    layout = ends((4, 0, 3)) if form == "contiguous" else counts_of((4, 0, 3), 8)
    problem = bf16_problem(layout)
    wide = heads.columns(problem.product.shape[-1])
    d = torch.full((*problem.product.shape[:-1], wide), 776.0).bfloat16()
    last = (layout.given,) if form == "contiguous" else (layout.given, 4)
    made(problem.a, problem.b, *last, d=d, **({"offsets": True} if form == "contiguous" else {}))
    n = torch.arange(problem.product.shape[-1])
    places = n + (n + heads.right) // heads.head * heads.mid
    for group in range(3):
        rows = layout.rows_of(d, group)
        assert torch.equal(rows[..., places], layout.rows_of(problem.product, group).bfloat16())
        rows[:] = 776.0
    assert bool((d == 776).all())


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_sums_of_rows_of_groups(form: str) -> None:
    """Few rows, for which tiles that swap are cheapest: kernels that can reduce are taken."""
    operands = (
        Operand(name="squares", dtype=DType.F32, box=("m",)),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    )
    steps = (Reduce(function="sum_of_squares", along="n", to="squares"), Cast(to=DType.BF16), Store(to="d"))
    made = gemmgen.fuse(f"m_grouped_bf16_gemm_nt_{form}", Epilogue(name="squared", operands=operands, steps=steps))
    layout = ends((4, 0, 3)) if form == "contiguous" else counts_of((4, 0, 3), 8)
    problem = bf16_problem(layout)
    last = (layout.given,) if form == "contiguous" else (layout.given, 4)
    d, squares = made(problem.a, problem.b, *last, **({"offsets": True} if form == "contiguous" else {}))
    assert squares.shape == d.shape[:-1]
    for group, (_, count) in enumerate(layout.spans):
        wanted = layout.rows_of(problem.product, group)
        assert torch.equal(layout.rows_of(d, group), wanted.bfloat16())
        assert count == 0 or torch.equal(layout.rows_of(squares, group).double(), wanted.square().sum(1))


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_sums_of_columns_of_groups(form: str) -> None:
    """One result for each expert, allocated and 0 for those without tokens: what a bias's gradient is."""
    operands = (
        Operand(name="sums", dtype=DType.F32, box=("n",)),
        Operand(name="total", dtype=DType.F32, box=(), on_device=True),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    )
    reduced = (Reduce(function="sum", along="m", to="sums"), Reduce(function="sum", along="mn", to="total"))
    chain = Epilogue(name="summed", operands=operands, steps=(*reduced, Cast(to=DType.BF16), Store(to="d")))
    made = gemmgen.fuse(f"m_grouped_bf16_gemm_nt_{form}", chain)
    layout = ends((4, 0, 3)) if form == "contiguous" else counts_of((4, 0, 3), 8)
    problem = bf16_problem(layout)
    last = (layout.given,) if form == "contiguous" else (layout.given, 4)
    d, sums, total = made(problem.a, problem.b, *last, **({"offsets": True} if form == "contiguous" else {}))
    assert sums.shape == (3, d.shape[-1]) and total.shape == (3,)
    for group in range(3):
        wanted = layout.rows_of(problem.product, group)
        assert torch.equal(layout.rows_of(d, group), wanted.bfloat16())
        assert torch.equal(sums[group].double(), wanted.sum(0)) and total[group] == wanted.sum()


def test_rows_between_groups_become_zero_when_asked() -> None:
    layout = ends((5, 0, 66, 3), 64)
    problem = bf16_problem(layout)
    d = problem.output()
    ops.m_grouped_bf16_gemm_nt_contiguous(problem.a, problem.b, d, layout.given, use_psum_layout=True)
    wanted = problem.product.clone()
    wanted[5:64] = wanted[130:192] = 0
    assert torch.equal(d, wanted.to(d.dtype))


@pytest.mark.parametrize("numbers", [[99, -5, 7], [2**31 - 1, 0, -(2**31)]])
def test_layouts_of_nonsense_neither_fault_nor_write_elsewhere(numbers: list[int]) -> None:
    given = torch.tensor(numbers, dtype=torch.int32)
    problem = bf16_problem(counts_of((8, 8, 8), 8))
    room = torch.full((5, 8, 72), 7.0).bfloat16()
    ops.m_grouped_bf16_gemm_nt_masked(problem.a, problem.b, room[1:4], given)
    assert torch.all(room[0] == 7) and torch.all(room[4] == 7)
    assert torch.all(room[1:4][given <= 0] == 7)


def test_row_ids_that_change_every_row() -> None:
    """As a caller's warm-up has it: ids are row mod groups, or one random id a block."""
    problem = bf16_problem(ids((64, 64), 64))
    given = (torch.arange(128) % 2).int()
    d = problem.output()
    ops.m_grouped_bf16_gemm_nt_contiguous(problem.a, problem.b, d, given)
    wanted = problem.a.double() @ problem.b[0].double().T
    assert torch.equal(d[:63:2].double(), wanted[:63:2].bfloat16().double())
