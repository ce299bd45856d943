"""Chains of epilogue steps on the simulator of each architecture, against what the steps mean in float64."""

from __future__ import annotations

import chains
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gemmgen
from gemmgen.ir import DType, HeadSplit, Reduce

ALONG = st.sampled_from(["m", "n"])
DTYPES = st.sampled_from([DType.BF16, DType.F16, DType.F32])
OUTPUTS = st.sampled_from([DType.BF16, DType.F16, DType.F32, DType.E4M3, DType.E5M2])
FUNCTIONS = st.sampled_from(["sum", "sum_of_squares", "amax"])
EXPRESSIONS = [
    ("silu(acc + {x}) * {y}", ("n", "matrix")),
    ("where(acc > {x}, acc, {y} * acc)", ("scalar", "n")),
    ("maximum(minimum(acc, 2), -{x})", ("scalar",)),
    ("tanh(acc) - erf({x}) / (1 + abs({y}))", ("m", "n")),
    ("acc * rsqrt({x} * {x} + 1) + exp(-abs(acc))", ("m",)),
    ("log(2 + sigmoid(acc)) * sqrt(abs({x}))", ("matrix",)),
    ("-acc - (2 - gelu(acc)) + {x} * ({y} - {z})", ("m", "n", "matrix")),
]

GATES = [
    ("silu(gate) * up", ()),
    ("squared_relu(gate) * up", ()),
    ("minimum(gate, {x}) * sigmoid({y} * gate) * (up + 1)", ("scalar", "n")),
    ("relu(gate + {x}) * up - {y}", ("m", "matrix")),
]


def links(index: int) -> st.SearchStrategy[chains.Link]:
    """Any link of a chain; ``index`` keeps the names of its operands apart from those of others."""
    return st.one_of(
        st.builds(chains.scale, st.just(index), st.sampled_from(["m", "n", "matrix"]), DTYPES),
        st.builds(chains.scale, st.just(index), st.just("scalar"), st.just(DType.F32), st.booleans()),
        st.builds(chains.bias, st.just(index), ALONG, DTYPES),
        st.builds(chains.residual, st.just(index), DTYPES, st.booleans()),
        st.builds(chains.activation, st.sampled_from(["relu", "squared_relu", "gelu", "gelu_tanh", "silu"])),
        st.builds(chains.keep, st.just(index), OUTPUTS),
        st.builds(chains.reduction, st.just(index), FUNCTIONS, st.sampled_from(["n", "m", "mn"])),
        st.sampled_from(EXPRESSIONS).map(lambda pair: chains.apply(index, pair[0], *pair[1])),
    )


CHAINS = st.integers(1, 6).flatmap(lambda count: st.tuples(*map(links, range(count))))
GATED = st.none() | st.tuples(st.integers(0, 6), st.sampled_from(GATES))
"""No gate, or where in the chain it stands, and its function."""
HEADS = st.none() | st.sampled_from([(64, 16, 64), (64, 48, 0), (0, 16, 128)]).map(
    lambda splits: HeadSplit(left=splits[0], mid=splits[1], right=splits[2])
)


@pytest.mark.parametrize("arch", chains.BASES)
@settings(
    max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    chain=CHAINS,
    gated=GATED,
    output=OUTPUTS,
    heads=HEADS,
    m=st.integers(1, 150),
    n=st.integers(1, 10),
    seed=st.integers(0, 99),
)
def test_any_chain(
    arch: str,
    chain: tuple[chains.Link, ...],
    gated: tuple[int, tuple[str, tuple[str, ...]]] | None,
    output: DType,
    heads: HeadSplit | None,
    m: int,
    n: int,
    seed: int,
) -> None:
    links = list(chain)
    if gated is not None:
        at, (text, alongs) = gated
        first = next((index for index, link in enumerate(links) if isinstance(link.step, Reduce)), at)
        links.insert(min(at, first), chains.gate(len(links), text, *alongs))
    spec = chains.chained(arch, output, links)
    columns = 16 * n
    if heads is not None:
        spec, columns = chains.with_heads(spec, heads), heads.head * -(-columns // heads.head)
    chains.run_and_check(spec, {"m": m, "n": columns * (1 if gated is None else 2), "k": 72}, seed)


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
