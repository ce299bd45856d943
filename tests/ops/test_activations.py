"""Activations as functions of one number: how close they are, and that a neighbour does not matter."""

from __future__ import annotations

import pytest
import torch
from chains import BASES
from reference import FUNCTIONS

import gemmgen
from gemmgen.backends import emit
from gemmgen.ir import Activation, Apply, DType, Operand

EDGES = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, -200.0, -43.5, -19.0, 0.0, -0.0, 1e-30, -1e-30])


def applied(arch: str, function: str, x: torch.Tensor) -> torch.Tensor:
    """The function of a matrix by a kernel that does nothing else."""
    base = BASES[arch](DType.F32)
    operand = Operand(name="x", dtype=DType.F32, box=("m", "n"))
    steps = (Apply(expression="x"), Activation(function=function), base.epilogue[-1])  # type: ignore[arg-type]
    spec = base.replace(name=f"only_{function}", operands=(*base.operands, operand), epilogue=steps)
    a, b = torch.zeros(len(x), 16).bfloat16(), torch.zeros(x.shape[1], 16).bfloat16()
    with gemmgen.simulate(arch, sms=2):
        return gemmgen.op(spec)(a=a, b=b, x=x).double()  # type: ignore[union-attr]


SIGMOIDS = {
    "2.0 * silu(x - 1.0) * -x + 0.5": lambda x: 2 * torch.nn.functional.silu(x - 1) * -x + 0.5,
    "silu(x) * gelu_tanh(x)": lambda x: torch.nn.functional.silu(x) * torch.nn.functional.gelu(x, approximate="tanh"),
    "relu(x) - gelu_tanh(-x) * squared_relu(x)": lambda x: x.relu()
    - torch.nn.functional.gelu(-x, approximate="tanh") * x.relu() ** 2,
    "gelu(x) * (3.0 - 1.0) + silu(x)": lambda x: 2 * torch.nn.functional.gelu(x) + torch.nn.functional.silu(x),
}


@pytest.mark.parametrize("expression", SIGMOIDS)
@pytest.mark.parametrize("arch", BASES)
def test_an_author_s_sigmoids_share_reciprocals_too(arch: str, expression: str) -> None:
    """Written as for one number, compiled for two columns, with numbers of their own."""
    base = BASES[arch](DType.F32)
    operand = Operand(name="x", dtype=DType.F32, box=("m", "n"))
    spec = base.replace(
        name="shared_reciprocals",
        operands=(*base.operands, operand),
        epilogue=(Apply(expression=f"{expression} + 0.0 * acc"), base.epilogue[-1]),
    )
    assert "gemmgen::Both x" in emit(spec) and expression.split("(")[0] in emit(spec)
    x = torch.linspace(-7, 7, 66 * 64)[torch.randperm(66 * 64)].view(66, 64)
    a, b = torch.zeros(66, 16).bfloat16(), torch.zeros(64, 16).bfloat16()
    with gemmgen.simulate(arch, sms=2):
        found = gemmgen.op(spec)(a=a, b=b, x=x)
    torch.testing.assert_close(found, SIGMOIDS[expression](x.double()).float(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("expression", ["sigmoid(x)", "silu(x)", "sigmoid(x) * silu(x)"])
def test_of_nan_there_is_nan_and_of_its_neighbour_there_is_not(expression: str) -> None:
    x = torch.tensor([torch.nan, 1.0, -2.0, torch.nan, torch.nan, torch.nan, -60.0, 30.0]).repeat(4, 1)
    base = BASES["sm90"](DType.F32)
    operand = Operand(name="x", dtype=DType.F32, box=("m", "n"))
    steps = (Apply(expression=f"{expression} + 0.0 * acc"), base.epilogue[-1])
    spec = base.replace(name="not_a_number", operands=(*base.operands, operand), epilogue=steps)
    a, b = torch.zeros(4, 16).bfloat16(), torch.zeros(8, 16).bfloat16()
    with gemmgen.simulate("sm90", sms=2):
        found = gemmgen.op(spec)(a=a, b=b, x=x)
    assert isinstance(found, torch.Tensor) and torch.equal(found.isnan(), x.isnan())


@pytest.mark.parametrize(
    "expression",
    [
        "silu(acc) / 2.0",
        "where(acc > 0.0, silu(acc), acc)",
        "relu(acc)",
        "exp(silu(acc))",
        "sigmoid(acc) * silu(acc)",
        "silu(2.0)",
    ],
)
def test_what_cannot_be_said_of_two_columns_is_said_of_each(expression: str) -> None:
    base = BASES["sm90"](DType.F32)
    text = emit(base.replace(epilogue=(Apply(expression=expression), base.epilogue[-1])))
    assert "[](float acc)" in text and "Both" not in text


def off(found: torch.Tensor, function: str, x: torch.Tensor) -> torch.Tensor:
    """Relative errors."""
    exact = FUNCTIONS[function](x.double())
    return ((found - exact) / exact).abs()


@pytest.mark.parametrize(
    ("function", "least", "bits"), [("gelu", -5.0, 16), ("silu", -40.0, 17), ("gelu_tanh", -4.0, 17)]
)
def test_small_results_are_close_too(function: str, least: float, bits: int) -> None:
    """Left of 0 everything cancels that can: so many bits are right all the same where the exponent is not large."""
    x = torch.linspace(least, 6, 66 * 64).view(66, 64)
    assert off(applied("sm90", function, x), function, x).max() < 2**-bits


@pytest.mark.parametrize(("least", "most", "bits"), [(5, 9, 15), (9, 12.9, 13)])
def test_the_far_tail_of_gelu(least: float, most: float, bits: int) -> None:
    x = -torch.linspace(least, most, 4 * 64).view(4, 64)
    assert off(applied("sm90", "gelu", x), "gelu", x).max() < 2**-bits


@pytest.mark.parametrize("function", ["gelu", "silu", "gelu_tanh"])
@pytest.mark.parametrize("arch", BASES)
def test_a_neighbour_does_not_matter(arch: str, function: str) -> None:
    """Two columns share a reciprocal: whatever the other is, Inf or NaN too, a number becomes what it becomes alone."""
    usual = torch.tensor([-30.0, -3.0, -0.5, 0.7, 20.0])
    x = torch.stack(torch.meshgrid(EDGES, usual, indexing="ij"), dim=-1).flatten(0, 1)
    both = torch.cat([x, x.flip(1)], dim=1).repeat(1, 4)
    found = applied(arch, function, both)
    alone = applied(arch, function, usual[:, None].repeat(1, 8))[:, 0].repeat(len(EDGES))
    for column in (1, 2):
        torch.testing.assert_close(found[:, column], alone, rtol=2**-18, atol=0)
    edges = found[:: len(usual), 0]
    assert edges[0] == torch.inf and edges[2].isnan() and edges[3] == torch.tensor(1e30)
    assert edges[8:].abs().max() < 1e-29
