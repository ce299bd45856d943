"""The author's own epilogue function: what is traced, how it is stored and printed, and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gemmgen import functions as fn
from gemmgen.backends.epilogue import c_text
from gemmgen.ir import Apply, Gate, SoftCap
from gemmgen.ir.expression import FUNCTIONS, MOST_NESTED, call, parse


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
        (lambda acc, x: acc**3 - +x, "acc * acc * acc - x"),
        (lambda acc, x: acc ** np.float32(2) * x**1, "acc * acc * x"),
        (lambda acc, x: fn.maximum(x, 0) + fn.minimum(acc, 1), "maximum(x, 0) + minimum(acc, 1)"),
    ],
)
def test_operators(function: Callable[..., Any], text: str) -> None:
    assert Apply(function).expression == text


@pytest.mark.parametrize("half", [0.5, np.float16(0.5), np.float32(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_constants_on_either_side(half: Any) -> None:
    assert Apply(lambda acc: (acc * half + half) / half - half).expression == "(acc * 0.5 + 0.5) / 0.5 - 0.5"
    assert Apply(lambda acc: half / (half + acc)).expression == "0.5 / (0.5 + acc)"
    assert Apply(lambda acc: half - half * acc).expression == "0.5 - 0.5 * acc"
    reached = Apply(lambda acc: fn.where(half <= acc, half, acc)).expression
    assert reached in ("where(0.5 <= acc, 0.5, acc)", "where(acc >= 0.5, 0.5, acc)")
    assert Apply(lambda acc: np.int64(3) * acc * -np.int32(2)).expression == "3 * acc * -2"


def test_traced_values_are_copied_and_shown() -> None:
    value = call("exp", 1) * 2
    assert [repr(each) for each in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)))] == [
        "exp(1) * 2"
    ] * 3
    assert not hasattr(value, "__array_interface__")


def repeated(times: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(acc: Any) -> Any:
        for _ in range(times):
            acc = step(acc)
        return acc

    return function


@pytest.mark.parametrize("step", [lambda x: x + 1.0, fn.exp, lambda x: -x])
def test_what_is_nested_too_deep_is_refused(step: Callable[[Any], Any]) -> None:
    text = Apply(repeated(MOST_NESTED - 1, step)).expression
    assert Apply(expression=text).expression == text and c_text(parse(text))
    with pytest.raises(TypeError, match="128 inside one another, where what is used twice counts twice; split it"):
        Apply(repeated(2000, step))


def test_what_grows_too_large_is_refused_at_once() -> None:
    Apply(repeated(4, lambda x: x * x * 0.5 + x))
    with pytest.raises(TypeError, match="what a traced function computes has more than 1000 parts"):
        Apply(repeated(18, lambda x: x * x * 0.5 + x))
    for text in ("acc" + " + 1" * 2000, "-" * 20000 + "acc", "acc" + " + 1" * 100000):
        with pytest.raises(ValueError, match="has more than 1000 parts"):
            Apply(expression=text)


def test_a_function_and_a_text_are_not_given_together() -> None:
    with pytest.raises(TypeError, match="a function and expression='acc \\* 2' are both given; give one of them"):
        Apply(lambda acc: acc, expression="acc * 2")
    with pytest.raises(TypeError, match="are both given"):
        Gate("gelu", expression="gate * up")


@pytest.mark.parametrize("cap", [1e300, 1e39, 3.4028235677973366e38, 1e-320, 2.0**-150])
def test_constants_are_numbers_of_fp32(cap: float) -> None:
    with pytest.raises(ValidationError, match=r"cap .* is no number of fp32, in which steps compute; take one from"):
        SoftCap(cap=cap)
    with pytest.raises(TypeError, match=r"0 or from 1e-45 to 3\.4e38 in magnitude"):
        Apply(lambda acc: acc - cap)
    with pytest.raises(ValueError, match=r"0 or from 1e-45 to 3\.4e38 in magnitude"):
        Apply(expression=f"acc - {cap!r}")


@pytest.mark.parametrize("cap", [3.4028235e38, 1e-45])
def test_the_outermost_numbers_of_fp32_are_constants(cap: float) -> None:
    assert SoftCap(cap=cap).cap == cap
    assert Apply(lambda acc: acc * -cap).expression == f"acc * -{cap!r}"


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


TRACED = "what can be traced are .* the functions of gemmgen.functions: abs, erf, exp"


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
        (lambda acc: torch.ones(2) + acc, "finite numbers"),
        (lambda acc: np.ones(2) + acc, "finite numbers"),
        (lambda acc: np.bool_(True) * acc, "True_ in"),
        (lambda acc: torch.exp(acc), f"uses torch's exp, which is unknown; {TRACED}"),
        (lambda acc: torch.nn.functional.silu(acc), f"uses torch's silu, which is unknown; {TRACED}"),
        (lambda acc: torch.where(acc > 0, acc, 0), f"uses torch's where, which is unknown; {TRACED}"),
        (lambda acc: np.tanh(acc), f"uses numpy's tanh, which is unknown; {TRACED}"),
        (lambda acc: np.where(acc > 0, acc, 0), f"uses numpy's where, which is unknown; {TRACED}"),
        (lambda acc: acc.exp(), f"uses acc.exp, which is unknown; {TRACED}"),
        (torch.relu, f"uses relu, which is unknown; {TRACED}"),
        (lambda acc: acc % 2, f"uses % on acc; {TRACED}"),
        (lambda acc: 2 // acc, f"uses // on acc; {TRACED}"),
        (lambda acc: acc @ acc, f"uses @ on acc; {TRACED}"),
        (lambda acc, x: fn.where((acc > 0) & (x > 0), acc, 0), "where\\(a, where\\(b, x, y\\), y\\) for a & b"),
        (lambda acc, x: fn.where((acc > 0) | (x > 0), acc, 0), "joins or negates acc > 0 as a condition; choose with"),
        (lambda acc: fn.where(~(acc > 0), acc, 0), "where\\(a, y, x\\) for ~a"),
        (lambda acc: round(acc), "turns acc into a number of the host; use"),
        (lambda acc: int(acc), "turns acc into a number of the host; use"),
        (lambda acc: acc[0], "takes acc as a sequence, but it is a single number"),
        (lambda acc: sum(acc), "takes acc as a sequence, but it is a single number"),
        (lambda acc, bias: acc**bias, "raises acc to the power bias; exponents are whole numbers from 1 to 16"),
        (lambda acc: acc**0.5, "raises acc to the power 0.5; exponents are whole numbers from 1 to 16"),
        (lambda acc: acc**17, "raises acc to the power 17; exponents are whole numbers from 1 to 16"),
        (lambda acc: 2**acc, "raises 2 to the power acc, but exponents are whole numbers; write exp"),
        (lambda acc: (acc > 0) * acc, "'acc > 0' is a condition where a number is needed, as where\\(acc > 0, 1, 0\\)"),
        (
            lambda acc, x: (acc > 0) * x,
            "'acc > 0' is a condition where a number is needed, as where\\(acc > 0, 1, 0\\)",
        ),
        (lambda acc: acc > 0, "is a comparison; choose between numbers with where"),
        (lambda acc: fn.where(acc, 1, 0), "must be a comparison"),
        (lambda acc, s=2.0: acc * s, "'s=2.0' has a default, .*; write the constant inside the function, or use a var"),
        (lambda acc: acc * 10**400, "finite numbers"),
        (lambda acc: acc * (1e38 * 10), "uses 1e\\+39 in"),
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
