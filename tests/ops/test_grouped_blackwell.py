"""Row groups where tensor cores apply scales: forms that scales come in, 4-bit factors, an expert's two launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from grouped_problems import K, N, Problem, counts_of, ends, fp8_problem, ids

import gemmgen
from gemmgen import ops
from gemmgen.ir import DType, Epilogue, Gate, Operand, Quantise

ARCHS = ("sm100", "sm120")


@pytest.fixture(params=ARCHS, autouse=True)
def simulator(request: pytest.FixtureRequest) -> Iterator[None]:
    with gemmgen.simulate(request.param, sms=3):
        yield


def right(problem: Problem, d: torch.Tensor) -> bool:
    return torch.equal(d, problem.product.to(d.dtype))


def test_fp32_scales_of_rows_right_behind_one_another() -> None:
    """Scales of rows of no group are NaN."""
    problem = fp8_problem(ends((5, 0, 9, 1), tail=2))
    d = problem.output()
    ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.layout.given, offsets=True)
    assert right(problem, d)


def test_a_group_for_every_row() -> None:
    problem = fp8_problem(ids((3, 0, 9), 32, tail=1), columns=1)
    d = problem.output()
    ops.set_mk_alignment_for_contiguous_layout(32)
    try:
        ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, problem.b, d, problem.layout.given, recipe=(1, 1, 128))
    finally:
        ops.set_mk_alignment_for_contiguous_layout(128)
    assert right(problem, d)


@pytest.mark.parametrize("words", [False, True])
def test_masked_scales(words: bool) -> None:
    """Packed beforehand, or brought to words in the call: the same bits."""
    problem = fp8_problem(counts_of((3, 0, 12), 12), sfa="k" if words else "m")
    (a, sfa), (b, sfb), d = problem.a, problem.b, problem.output()
    if words:
        sfa = ops.transform_sf_into_required_layout(sfa, 12, K, (1, 128), 3)
        sfb = ops.transform_sf_into_required_layout(sfb, N, K, (128, 128), 3)
        assert sfa.dtype == torch.int32 and sfa.stride() == (12, 1, 12)
    ops.m_grouped_fp8_gemm_nt_masked((a, sfa), (b, sfb), d, problem.layout.given, 4)
    assert right(problem, d)


def test_b_contiguous_along_n() -> None:
    problem = fp8_problem(ends((4, 9)), n=64)
    (b, sfb), d = problem.b, problem.output()
    ops.m_grouped_fp8_gemm_nn_contiguous(problem.a, (b.mT.contiguous(), sfb.mT), d, problem.layout.given, offsets=True)
    assert right(problem, d)


def along_rows(factor: torch.Tensor) -> torch.Tensor:
    """The same numbers contiguous along rows."""
    return factor.mT.contiguous().mT


@pytest.mark.parametrize("k", [200, 1])
def test_factors_along_rows_whatever_k_is(k: int) -> None:
    """Where they are turned first, rows of the copy start 16 bytes apart."""
    problem = fp8_problem(ends((4, 12)), n=64, k=k)
    (data, sfa), (b, sfb), d, again = problem.a, problem.b, problem.output(), problem.output()
    a = torch.zeros(16, 208, dtype=data.dtype)[:, :k].copy_(data), sfa
    ops.m_grouped_fp8_gemm_nt_contiguous(a, (along_rows(b), sfb), d, problem.layout.given, offsets=True)
    assert right(problem, d)
    turned = b.mT.contiguous(), sfb.mT
    ops.m_grouped_fp8_gemm_nn_contiguous(a, turned, again, problem.layout.given, offsets=True)
    assert torch.equal(again, d)
    problem = fp8_problem(counts_of((3, 0, 16), 16), n=64, k=k)
    (data, sfa), (b, sfb), d = problem.a, problem.b, problem.output()
    ops.m_grouped_fp8_gemm_nt_masked((along_rows(data), sfa), (along_rows(b), sfb), d, problem.layout.given)
    assert right(problem, d)


def test_4_bit_factors_along_rows_whose_k_is_no_multiple_of_32() -> None:
    problem = fp8_problem(ends((4, 0, 9)), n=64, k=80)
    (b, sfb), numbers = four_bits(problem)
    data, sfa = ops.per_token_cast_to_fp4(torch.randn(13, 80), use_ue8m0=True, gran_k=32)
    a = torch.zeros(13, 48, dtype=torch.int8)[:, :40].copy_(data)
    rows, d = ops.cast_back_from_fp4(data, sfa, 32).double(), problem.output(torch.float32)
    turned, recipes = (ops.transpose_packed_fp4(b), sfb.mT), {"recipe_a": (1, 32), "recipe_b": (1, 32)}
    given = problem.layout.given
    ops.m_grouped_fp8_fp4_gemm_nn_contiguous((a, sfa), turned, d, given, offsets=True, **recipes)  # type: ignore[arg-type]
    for group in (0, 2):
        wanted = problem.layout.rows_of(rows, group) @ numbers[group].T
        assert torch.allclose(problem.layout.rows_of(d, group).double(), wanted, rtol=1e-5, atol=1e-4)


def test_an_output_over_a_factor_that_is_copied_first() -> None:
    """Where nothing else is laid out anew; on sm100 the kernel reads the factor itself."""
    room = torch.zeros(2, 128, 64, dtype=torch.uint8)
    d = room.view(torch.bfloat16).flatten()[: 2 * 8 * 64].view(2, 8, 64)
    a, words = torch.zeros(2, 8, 128, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.zeros(2, 1, 64).int().mT
    pairs = (a, words[:, :8].mT.contiguous().mT), (room.view(torch.float8_e4m3fn).mT, words)
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps b .*; pass b.clone\(\)$"):
        ops.m_grouped_fp8_gemm_nt_masked(*pairs, d, torch.tensor([8, 8], dtype=torch.int32), recipe=(1, 1, 128))


def four_bits(problem: Problem) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """B in 4 bits with a power of two for 32 of k, and what it stands for."""
    pairs = [ops.per_token_cast_to_fp4(each.float(), use_ue8m0=True, gran_k=32) for each in problem.b[0]]
    data, scales = (torch.stack(each) for each in zip(*pairs, strict=True))
    return (data, scales), torch.stack([ops.cast_back_from_fp4(*each, 32).double() for each in pairs])


@pytest.mark.parametrize("layout", ["nn", "masked"])
def test_4_bit_weights(layout: str) -> None:
    own = layout == "masked"
    problem = fp8_problem(counts_of((3, 0, 6), 8) if own else ends((4, 0, 9)), n=64, k=256 if own else 192)
    (b, sfb), numbers = four_bits(problem)
    recipes: dict[str, Any] = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    given, d = problem.layout.given, problem.output(torch.float32)
    if own:
        ops.m_grouped_fp8_fp4_gemm_nt_masked(problem.a, (b, sfb), d, given, 4, **recipes)
    else:
        turned = ops.transpose_packed_fp4(b), sfb.mT
        ops.m_grouped_fp8_fp4_gemm_nn_contiguous(problem.a, turned, d, given, offsets=True, **recipes)
    for group in range(3):
        a, sfa = (problem.layout.rows_of(each, group).double() for each in problem.a)
        wanted = (a * sfa.repeat_interleave(128, 1)[:, : a.shape[1]]) @ numbers[group].T
        assert torch.equal(problem.layout.rows_of(d, group).double(), wanted)
    if own:
        assert bool((d[1] == 776).all()) and bool((d[0, 3:] == 776).all())


def test_two_4_bit_factors() -> None:
    """At the full 4-bit rate; rows of a are quantised likewise."""
    problem = fp8_problem(ends((4, 0, 9)), n=64, k=256)
    (b, sfb), numbers = four_bits(problem)
    a = ops.per_token_cast_to_fp4(torch.randn(13, 256), use_ue8m0=True, gran_k=32)
    rows, d = ops.cast_back_from_fp4(*a, 32).double(), problem.output(torch.float32)
    recipes: dict[str, Any] = {"recipe_a": (1, 32), "recipe_b": (1, 32)}
    ops.m_grouped_fp8_fp4_gemm_nt_contiguous(a, (b, sfb), d, problem.layout.given, offsets=True, **recipes)
    assert torch.allclose(d[:4].double(), rows[:4] @ numbers[0].T, rtol=1e-5, atol=1e-4)
    assert torch.allclose(d[4:].double(), rows[4:] @ numbers[2].T, rtol=1e-5, atol=1e-4)


def test_an_expert_mlp_in_two_launches() -> None:
    """silu(gate) * up in MXFP8, whose words are the scales of the second product's factor as they lie."""
    layout = counts_of((3, 0, 7), 7)
    up = fp8_problem(layout, n=256, k=128)
    data = Operand(name="d", dtype=DType.E4M3, box=("m", "n/2"))
    words = Operand(name="sf", dtype=DType.UE8M0X4, box=("m", "n/256"), major="m")
    steps = (Gate("silu", layout="interleaved"), Quantise(to="d", scales="sf"))
    chain = Epilogue(name="swiglu_mxfp8", operands=(data, words), steps=steps)
    hidden = gemmgen.fuse("m_grouped_fp8_gemm_nt_masked", chain)(up.a, up.b, layout.given, 4)
    assert isinstance(hidden, tuple) and hidden[1].shape == (3, 7, 1) and hidden[1].stride() == (8, 1, 8)
    down = fp8_problem(layout, n=64, k=128)
    recipes: dict[str, Any] = {"recipe_a": (1, 32), "recipe_b": (128, 128)}
    d = ops.m_grouped_fp8_gemm_nt_masked(hidden, down.b, None, layout.given, 4, **recipes)
    for group in range(3):
        rows = layout.rows_of(up.product, group)
        gate, value = rows.view(len(rows), 16, 2, 8).unbind(2)
        inner = (torch.nn.functional.silu(gate) * value).flatten(1)
        codes = (layout.rows_of(hidden[1], group) >> torch.tensor([0, 8, 16, 24])) & 255
        scales = torch.exp2(codes.double() - 127).repeat_interleave(32, 1)
        found = layout.rows_of(hidden[0], group).double() * scales
        assert bool(((found - inner).abs() <= inner.abs() * 2**-4 + scales * 2**-9).all())
        weights = down.b[0][group].double() * down.b[1][group].double().repeat_interleave(128, 1)
        wanted = found @ weights.T
        assert torch.allclose(layout.rows_of(d, group).double(), wanted, rtol=2**-7, atol=1e-3)


def test_scales_that_are_no_powers_of_two_are_refused_for_b_and_never_looked_at_in_a() -> None:
    problem = fp8_problem(ends((4, 5)))
    b, sfb = problem.b
    with pytest.raises(ValueError, match=r"^sfb: scale \(0, 0, 0\) is 3.0, one of 4 that are no power of two"):
        ops.m_grouped_fp8_gemm_nt_contiguous(
            problem.a, (b, torch.full_like(sfb, 3.0)), None, problem.layout.given, offsets=True
        )
    with pytest.raises(ValueError, match=r"^sfa: shape is \(9, 1\); one scale per 1 x 128 elements makes \(9, 2\)"):
        a = problem.a[0], problem.a[1][:, :1]
        ops.m_grouped_fp8_gemm_nt_contiguous(a, problem.b, None, problem.layout.given, offsets=True)
    with pytest.raises(ValueError, match=r"^disable_ue8m0_cast: is True and sfa is torch.float32"):
        ops.m_grouped_fp8_gemm_nt_masked(problem.a, problem.b, None, problem.layout.given, disable_ue8m0_cast=True)


QUANTISED = Epilogue(
    name="wide",
    operands=(
        Operand(name="h", dtype=DType.E4M3, box=("m", "n")),
        Operand(name="h_sf", dtype=DType.F32, box=("m", "n/128"), major="m"),
    ),
    steps=(Quantise(to="h", scales="h_sf"),),
)


@pytest.mark.parametrize("alignment", [16, 32, 64, 96, 128, 144])
def test_groups_by_ids_are_whole_behind_any_epilogue(alignment: int, request: pytest.FixtureRequest) -> None:
    """Tiles that only an epilogue needs divide the alignment too, or the call is refused: no group is left out."""
    layout = ids((alignment, 3, alignment + 1), alignment)
    problem = fp8_problem(layout)
    (a, sfa), b = problem.a, (problem.b[0][:, :64], problem.b[1])  # whole groups of gate and up
    rows = torch.tensor([row for start, count in layout.spans for row in range(start, start + count)])
    real = ((a[rows], sfa[rows]), torch.tensor([count for _, count in layout.spans]).cumsum(0).int())
    product, wide = ops.m_grouped_fp8_gemm_nt_contiguous, gemmgen.fuse("m_grouped_fp8_gemm_nt_contiguous", QUANTISED)
    ops.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        if request.node.callspec.params["simulator"] == "sm100" and alignment != 128:
            message = (
                rf"^grouped_layout: .* multiples of {alignment} rows, .* fits no tile .*; set_mk_.*\(128\) and pad"
            )
            with pytest.raises(ValueError, match=message):
                product((a, sfa), b, None, layout.given, gate="interleaved")
            return
        d = product((a, sfa), b, None, layout.given, gate="interleaved")
        h, h_sf = wide((a, sfa), b, layout.given)
    finally:
        ops.set_mk_alignment_for_contiguous_layout(128)
    assert torch.equal(d[rows], product(real[0], b, None, real[1], offsets=True, gate="interleaved"))
    wanted, wanted_sf = wide(real[0], b, real[1], offsets=True)
    assert torch.equal(h[rows].view(torch.uint8), wanted.view(torch.uint8)) and torch.equal(h_sf[rows], wanted_sf)


@pytest.mark.parametrize(("n", "rows"), [(200, 200), (256, 200), (192, 40)])
def test_b_whose_columns_are_contiguous_has_tiles_that_can_copy_it(n: int, rows: int) -> None:
    a, b = torch.randn(2 * rows, 128).bfloat16(), torch.randn(2, 128, n).bfloat16()
    d = ops.m_grouped_bf16_gemm_nn_contiguous(a, b, None, torch.tensor([rows, 2 * rows]).int(), offsets=True)
    torch.testing.assert_close(d[rows:].float(), a[rows:].float() @ b[1].float(), rtol=2e-2, atol=2e-1)


def test_every_finish_of_groups_has_a_name_and_a_tile() -> None:
    """Names of kernels that have everything in them are long, and were once longer than names might be."""
    problem = fp8_problem(ends((5, 7), 128))
    finish: dict[str, Any] = {"activation": "silu", "bias": torch.randn(2, 64), "use_psum_layout": True}
    b = (problem.b[0][:, :64], problem.b[1])
    for gate in ("interleaved", "halves"):
        d = ops.m_grouped_fp8_gemm_nt_contiguous(problem.a, b, None, problem.layout.given, gate=gate, **finish)
        assert d.shape[1] == 32


def test_a_hint_may_follow_from_a_shape_that_compilers_do_not_know() -> None:
    b, counts = torch.randn(2, 32, 128).bfloat16(), torch.tensor([3, 20], dtype=torch.int32)
    masked = torch.compile(
        lambda x: ops.m_grouped_bf16_gemm_nt_masked(x, b, None, counts, x.shape[1] // 2),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for rows in (24, 40):
        a = torch.randn(2, rows, 128).bfloat16()
        torch.testing.assert_close(masked(a)[1, :20].float(), a[1, :20].float() @ b[1].float().T, rtol=2e-2, atol=2e-1)
