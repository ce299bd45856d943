"""Products whose columns are gate and up, interleaved or in two halves, of every kind of factors and on every path."""

from __future__ import annotations

import chains
import pytest
import torch

import gemmgen
from gemmgen import catalog
from gemmgen.backends import lower, table
from gemmgen.commands.inputs import k_step
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import DType, Gate, KernelSpec
from gemmgen.runtime.arguments import Problem, TensorView, tensor_map

KINDS = (
    "sm90_fp8_gemm_nt_bf16_64x128",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_1d1d_ksf_bf16_64x32",
    "sm90_fp8_gemm_nt_1d1d_bf16_64x128",
    "sm90_bf16_gemm_nt_bf16_128x256_c21",
    "sm100_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_128x64",
    "sm100_bf16_gemm_nt_bf16_256x224_clc",
    "sm100_nvfp4_gemm_nt_bf16_256x224_clc",
    "sm120_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_64x64_split2",
    "sm120_fp8_fp4_gemm_nt_e4m3x128_e2m1x32_bf16_64x64",
    "sm120_nvfp4_gemm_nt_bf16_64x64_k64_x2",
)
"""Scales by lanes and by TMA, per 128 columns and per column, words of them; clusters and pairs; split sums."""


def gated(spec: KernelSpec, layout: str) -> KernelSpec:
    """SwiGLU of a shipped kernel."""
    d = spec.output.replace(box=("m", "n/2"))
    operands = tuple(d if each.name == d.name else each for each in spec.operands)
    return spec.replace(name="gated", operands=operands, epilogue=(Gate(layout=layout), *spec.epilogue))


@pytest.mark.parametrize("name", KINDS)
def test_halves_of_every_kind(name: str) -> None:
    """Two tiles and a piece of n, of which the halves end inside blocks of 128 columns."""
    spec = gated(catalog.specs()[name], "halves")
    step, n = k_step(spec), 2 * spec.tile.n + 48 if spec.tile.n < 200 else spec.tile.n + 48
    sizes = Sizes(spec.tile.m + 3, n, -(-(2 * spec.tile.k + 16) // step) * step)
    assert not execute(spec, sizes, torch.device("cpu"), "random", 1).wrong


@pytest.mark.parametrize("name", ["sm90_fp8_gemm_nt_bf16_256x128_c21", "sm120_nvfp4_gemm_nt_bf16_64x64_k64_x2"])
def test_interleaved_factors_are_scaled_as_ever(name: str) -> None:
    spec = gated(catalog.specs()[name], "interleaved")
    sizes = Sizes(spec.tile.m + 3, spec.tile.n + 48, 2 * spec.tile.k + 16)
    assert not execute(spec, sizes, torch.device("cpu"), "starve", 1).wrong


@pytest.mark.parametrize(
    ("arch", "schedule", "function", "layout"),
    [
        ("sm90", "early", "silu", "halves"),
        ("sm90", "starve", "relu", "interleaved"),
        ("sm100", "late", "gelu_tanh", "halves"),
        ("sm100", "random", "sigmoid", "interleaved"),
        ("sm120", "starve", "silu", "halves"),
        ("sm120", "late", "relu", "interleaved"),
    ],
)
def test_a_gate_between_operands_of_both_widths(arch: str, schedule: str, function: str, layout: str) -> None:
    gate = chains.gate(3, f"{function}(gate) * up", layout=layout)
    seen = [chains.reduction(9, "sum", "n"), chains.reduction(10, "amax", "mn")]
    before = [chains.bias(0, "n"), chains.residual(1), chains.keep(2, DType.F32), *seen]
    sums = [chains.reduction(7, "sum_of_squares", "n"), chains.reduction(8, "sum", "m")]
    behind = [chains.bias(4, "n"), chains.keep(5), chains.residual(6), *sums]
    spec = chains.chained(arch, DType.BF16, [*before, gate, *behind])
    chains.run_and_check(spec, {"m": 131, "n": 112, "k": 40}, seed=2, schedule=schedule)


def test_columns_behind_a_gate_are_counted_over_several_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp stages 64 columns of bf16 at a time; of a tile of 256 a gate leaves 128."""
    monkeypatch.setitem(chains.BASES, "sm90", lambda d: catalog.bf16_gemm("nt", catalog.Shape(64, 256, groups=1), d))
    sums = [chains.reduction(1, "sum", "m"), chains.reduction(2, "amax", "n")]
    spec = chains.chained("sm90", DType.BF16, [chains.gate(0, "silu(gate) * up"), *sums])
    chains.run_and_check(spec, {"m": 70, "n": 288, "k": 40}, seed=4)


@pytest.mark.parametrize("arch", chains.BASES)
def test_a_gate_wants_whole_groups(arch: str) -> None:
    spec = chains.chained(arch, DType.BF16, [chains.gate(0, "silu(gate) * up")])
    a, b = torch.zeros(3, 64).bfloat16(), torch.zeros(24, 64).bfloat16()
    sentence = "b: n is 24; a gate joins 8 columns with 8 others, so n must be a multiple of 16; pad n to 32 with zeros"
    with gemmgen.simulate(arch), pytest.raises(ValueError, match=sentence):
        gemmgen.op(spec)(a=a, b=b)
    with pytest.raises(ValueError, match=sentence):
        gemmgen.op(spec)(a=a.to("meta"), b=b.to("meta"))


@pytest.mark.parametrize("arch", chains.BASES)
def test_halves_and_interleaved_rows_give_the_same_bits(arch: str) -> None:
    a, b, x0 = (torch.randn(shape).bfloat16() for shape in ((37, 40), (112, 40), (56,)))
    turned = b.view(2, 7, 8, 40).transpose(0, 1).reshape(112, 40)
    found = []
    for layout, rows in (("halves", b), ("interleaved", turned)):
        spec = chains.chained(arch, DType.BF16, [chains.gate(0, "silu(gate) * up + {x}", "n", layout=layout)])
        with gemmgen.simulate(arch, sms=2):
            found.append(gemmgen.op(spec)(a=a, b=rows, x0=x0))
    assert torch.equal(*found)


def test_a_map_of_two_halves() -> None:
    """Rows of k: 8 rows, 2 halves of 24 rows, 3 groups of 8; words: the same along the contiguous axis."""
    plan = lower(gated(catalog.specs()["sm120_nvfp4_gemm_nt_bf16_64x64_k64_x2"], "halves"))
    views = {"b": TensorView(4096, (48, 80), (96, 1)), "sfb": TensorView(8192, (48, 3), (1, 64))}
    problem, seen = Problem({"m": 5, "n": 48, "k": 160}, views, {}), []
    for entry in plan.tensor_maps:
        if entry.operand in views:
            tensor_map(
                plan.operand(entry.operand), entry, problem, "d", lambda *fields: seen.append(fields[2:6]) or b""
            )
    assert seen == [
        ((80, 8, 2, 3), (96, 24 * 96, 8 * 96), (64, 8, 2, 4), (1, 1, 1, 1)),
        ((8, 2, 3, 3), (24 * 4, 32, 256), (8, 2, 4, 2), (1, 1, 1, 1)),
    ]


def test_the_plan_says_where_gate_and_up_are() -> None:
    halves = table(lower(gated(catalog.specs()[KINDS[0]], "halves")))
    assert "box 128 x 128 e4m3, 128 B smem_swizzle, 8 of each half of n in turn" in halves
    assert "128 scales by lanes, one per 1, 8 of each half of n in turn" in halves
    assert "epilogue   halves gate -> cast -> store" in halves
    assert "in turn" not in table(lower(gated(catalog.specs()[KINDS[0]], "interleaved")))
