"""Chains of epilogue steps as hypothesis draws them, and how one is run and judged; for the simulator and for a GPU."""

from __future__ import annotations

import chains
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

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
        st.builds(chains.soft_cap, st.sampled_from([0.5, 3.0, 30.0])),
        st.builds(chains.keep, st.just(index), OUTPUTS),
        st.builds(chains.reduction, st.just(index), FUNCTIONS, st.sampled_from(["n", "m", "mn"])),
        st.sampled_from(EXPRESSIONS).map(lambda pair: chains.apply(index, pair[0], *pair[1])),
    )


CHAINS = st.integers(1, 6).flatmap(lambda count: st.tuples(*map(links, range(count))))
GATED = st.none() | st.tuples(st.integers(0, 6), st.sampled_from(GATES), st.sampled_from(["interleaved", "halves"]))
"""No gate, or where in the chain it stands, its function, and where its columns are."""
HEADS = st.none() | st.sampled_from([(64, 16, 64), (64, 48, 0), (0, 16, 128)]).map(
    lambda splits: HeadSplit(left=splits[0], mid=splits[1], right=splits[2])
)


DRAWN = {
    "chain": CHAINS,
    "gated": GATED,
    "output": OUTPUTS,
    "heads": HEADS,
    "m": st.integers(1, 150),
    "n": st.integers(1, 10),
    "seed": st.integers(0, 99),
}
"""What a case is made of: arguments of ``check_chain``."""
FIXED = settings(deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def check_chain(
    arch: str,
    chain: tuple[chains.Link, ...],
    gated: tuple[int, tuple[str, tuple[str, ...]], str] | None,
    output: DType,
    heads: HeadSplit | None,
    m: int,
    n: int,
    seed: int,
    device: str = "cpu",
) -> None:
    """Run a case and hold everything it writes against the reference."""
    links = list(chain)
    if gated is not None:
        at, (text, alongs), layout = gated
        sums = [each for each, link in enumerate(links) if isinstance(link.step, Reduce) and link.step.along == "m"]
        links.insert(min(at, *sums, 6), chains.gate(len(links), text, *alongs, layout=layout))
    spec = chains.chained(arch, output, links)
    columns = 16 * n
    if heads is not None:
        spec, columns = chains.with_heads(spec, heads), heads.head * -(-columns // heads.head)
    sizes = {"m": m, "n": columns * (1 if gated is None else 2), "k": 72}
    chains.run_and_check(spec, sizes, seed, device=device)
