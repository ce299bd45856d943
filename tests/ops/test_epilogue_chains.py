"""Chains of epilogue steps on the simulator of each architecture, against what the steps mean in float64."""

from __future__ import annotations

import chains
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gemmgen.ir import DType

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
    ("log(1 + sigmoid(acc)) * sqrt(abs({x}))", ("matrix",)),
    ("-acc - (2 - gelu(acc)) + {x} * ({y} - {z})", ("m", "n", "matrix")),
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
        st.builds(chains.reduction, st.just(index), FUNCTIONS, st.sampled_from(["n", "mn"])),
        st.sampled_from(EXPRESSIONS).map(lambda pair: chains.apply(index, pair[0], *pair[1])),
    )


CHAINS = st.integers(1, 6).flatmap(lambda count: st.tuples(*map(links, range(count))))


@pytest.mark.parametrize("arch", chains.BASES)
@settings(
    max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(chain=CHAINS, output=OUTPUTS, m=st.integers(1, 150), n=st.integers(1, 10), seed=st.integers(0, 99))
def test_any_chain(arch: str, chain: tuple[chains.Link, ...], output: DType, m: int, n: int, seed: int) -> None:
    spec = chains.chained(arch, output, list(chain))
    chains.run_and_check(spec, {"m": m, "n": 16 * n, "k": 72}, seed)


@pytest.mark.parametrize("arch", chains.BASES)
def test_every_function_of_an_expression(arch: str) -> None:
    chain = [chains.apply(index, text, *alongs) for index, (text, alongs) in enumerate(EXPRESSIONS)]
    chains.run_and_check(chains.chained(arch, DType.F32, chain), {"m": 70, "n": 40, "k": 64}, seed=1)
