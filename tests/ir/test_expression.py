"""The author's own epilogue function: what is traced, how it is stored and printed, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gemmgen import functions as fn
from gemmgen.backends.epilogue import c_text
from gemmgen.ir import Apply, Gate
from gemmgen.ir.expression import FUNCTIONS, parse


def test_a_function_is_stored_as_its_text() -> None:
    step = Apply(lambda acc, bias, gate: fn.silu(acc + bias) * gate)
    assert step.expression == "silu(acc + bias) * gate"
    assert step.operands == ("bias", "gate")
    assert Apply.from_json(step.to_json()) == step == Apply(expression="silu(acc+bias) * gate")


def test_the_accumulator_may_have_any_name() -> None:
    assert Apply(lambda x, bias: 2 * x - bias).expression == "2 * acc - bias"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda acc, x: acc - (x - 1), "acc - (x - 1)"),
        (lambda acc, x: -acc * abs(x) + 1.5, "-acc * abs(x) + 1.5"),
        (lambda acc, x: fn.where(acc >= x, acc, -0.25), "where(acc >= x, acc, -0.25)"),
        (lambda acc, x: acc**2 / (1 + x), "acc * acc / (1 + x)"),
        (lambda acc, x: fn.maximum(x, 0) + fn.minimum(acc, 1), "maximum(x, 0) + minimum(acc, 1)"),
    ],
)
def test_operators(function: Callable[..., Any], text: str) -> None:
    assert Apply(function).expression == text


def test_gates_are_named_or_traced() -> None:
    assert (Gate().expression, Gate("gelu").expression) == ("silu(gate) * up", "gelu(gate) * up")
    step = Gate(lambda g, u, limit: fn.minimum(fn.silu(g), limit) * u)
    assert (step.expression, step.operands) == ("minimum(silu(gate), limit) * up", ("limit",))
    assert Gate.from_json(step.to_json()) == step
    with pytest.raises(TypeError, match="takes gate and up and then operands by name; this one takes"):
        Gate(lambda acc: acc)
    with pytest.raises(ValueError, match="calls softmax with 1 arguments; known functions and how many they take are"):
        Gate("softmax")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("acc - (x - 1)", "acc - (x - 1.0f)"),
        ("acc - x - 1", "acc - x - 1.0f"),
        ("-(acc + x) * x", "-(acc + x) * x"),
        ("acc / (x * x)", "gemmgen::divide(acc, x * x)"),
        ("abs(acc) * silu(x)", "fabsf(acc) * gemmgen::silu(x)"),
        ("where(acc < x, 1e-30, acc) * 2", "(acc < x ? 1e-30f : acc) * 2.0f"),
        ("--acc", "-(-acc)"),
    ],
)
def test_expressions_in_cuda(text: str, printed: str) -> None:
    assert c_text(parse(text)) == printed


def test_every_function_can_be_called() -> None:
    for name, count in FUNCTIONS.items():
        arguments = ["acc > 0" if name == "where" else "acc", "1", "2"][:count]
        assert Apply(expression=f"{name}({', '.join(arguments)})").operands == ()
        assert name == "abs" or callable(getattr(fn, name))


def branching(acc: Any) -> Any:
    return acc if acc > 0 else 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (branching, "known only on the GPU: replace if"),
        (lambda acc: max(acc, 0), "minimum\\(\\) and maximum\\(\\)"),
        (lambda acc: math.exp(acc), "use the functions of gemmgen.functions"),
        (lambda acc: torch.relu(acc), "relu"),
        (lambda acc: acc + torch.ones(2), "finite numbers"),
        (lambda acc: acc**3, "only 2 is known"),
        (lambda acc: acc * math.inf, "finite numbers"),
        (lambda acc: None, "None in return"),
        (lambda acc, unread: acc, "does not read it; remove it"),
        (lambda acc, *rest: acc, "takes the accumulator and then operands by name"),
        (lambda: 1.0, "takes the accumulator and then operands by name"),
    ],
)
def test_what_cannot_be_traced(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Apply(function)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acc +", "no Python expression"),
        ("acc if acc > 0 else 0", "cannot be in it"),
        ("acc ** 3", "cannot be in it"),
        ("acc > 0", "is a comparison; choose between numbers with where"),
        ("where(acc, 1, 2)", "must be a comparison"),
        ("1 + (acc > 0)", "is a condition where a number is needed"),
        ("softmax(acc)", "calls softmax with 1 arguments; known functions"),
        ("silu(acc, 1)", "calls silu with 2 arguments"),
        ("acc.real", "cannot be in it"),
        ("'text'", "cannot be in it"),
        ("1e999 * acc", "cannot be in it"),
    ],
)
def test_what_is_no_expression(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Apply(expression=text)
