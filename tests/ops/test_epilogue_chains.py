"""Chains of epilogue steps on the simulator of each architecture, against what the steps mean in float64."""

from __future__ import annotations

from typing import Any

import chains
import pytest
import torch
from drawn_chains import DRAWN, EXPRESSIONS, FIXED, GATES, check_chain
from hypothesis import given, settings

import gemmgen
from gemmgen.ir import DType


@pytest.mark.parametrize("arch", chains.BASES)
@settings(FIXED, max_examples=6)
@given(**DRAWN)
def test_any_chain(arch: str, **case: Any) -> None:
    check_chain(arch, **case)


@pytest.mark.parametrize("arch", chains.BASES)
@pytest.mark.parametrize(
    ("schedule", "function"), [("early", "silu"), ("late", "gelu_tanh"), ("random", "sigmoid"), ("starve", "relu")]
)
def test_a_gate_between_operands_of_both_widths(arch: str, schedule: str, function: str) -> None:
    before = [chains.bias(0, "n"), chains.residual(1), chains.keep(2, DType.F32)]
    sums = [
        chains.reduction(7, "sum_of_squares", "n"),
        chains.reduction(8, "amax", "mn"),
        chains.reduction(9, "sum", "m"),
    ]
    behind = [chains.bias(4, "n"), chains.keep(5), chains.residual(6), *sums]
    spec = chains.chained(arch, DType.BF16, [*before, chains.gate(3, f"{function}(gate) * up"), *behind])
    chains.run_and_check(spec, {"m": 131, "n": 176, "k": 40}, seed=2, schedule=schedule)


@pytest.mark.parametrize("arch", chains.BASES)
def test_a_gate_wants_whole_groups(arch: str) -> None:
    spec = chains.chained(arch, DType.BF16, [chains.gate(0, GATES[0][0])])
    a, b = torch.zeros(3, 64).bfloat16(), torch.zeros(24, 64).bfloat16()
    sentence = "b: n is 24; a gate joins 8 columns with 8 others, so n must be a multiple of 16; pad n to 32 with zeros"
    with gemmgen.simulate(arch), pytest.raises(ValueError, match=sentence):
        gemmgen.op(spec)(a=a, b=b)
    with pytest.raises(ValueError, match=sentence):
        gemmgen.op(spec)(a=a.to("meta"), b=b.to("meta"))


@pytest.mark.parametrize("arch", chains.BASES)
def test_every_function_of_an_expression(arch: str) -> None:
    chain = [chains.apply(index, text, *alongs) for index, (text, alongs) in enumerate(EXPRESSIONS)]
    chains.run_and_check(chains.chained(arch, DType.F32, chain), {"m": 70, "n": 40, "k": 64}, seed=1)
