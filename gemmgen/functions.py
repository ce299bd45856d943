"""Functions for the author's own epilogue: ``Apply(lambda acc, bias, gate: silu(acc + bias) * gate)``.

They take traced values and numbers and write down what the kernel will compute in fp32; see ``gemmgen.ir.Apply``.
Numbers below 2^-126 count as 0 in ``exp``, ``sqrt``, ``rsqrt``, ``/`` and what is made of them.
"""

from __future__ import annotations

from typing import Any

from gemmgen.ir.expression import Value, call


def erf(x: Any) -> Value:
    """The error function."""
    return call("erf", x)


def exp(x: Any) -> Value:
    """e to the power x."""
    return call("exp", x)


def gelu(x: Any) -> Value:
    """``x * (1 + erf(x / sqrt(2))) / 2``."""
    return call("gelu", x)


def gelu_tanh(x: Any) -> Value:
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``."""
    return call("gelu_tanh", x)


def log(x: Any) -> Value:
    """Natural logarithm."""
    return call("log", x)


def maximum(x: Any, y: Any) -> Value:
    """The larger one; the other one if one is NaN."""
    return call("maximum", x, y)


def minimum(x: Any, y: Any) -> Value:
    """The smaller one; the other one if one is NaN."""
    return call("minimum", x, y)


def relu(x: Any) -> Value:
    """x where it is positive, else 0; NaN stays NaN."""
    return call("relu", x)


def rsqrt(x: Any) -> Value:
    """``1 / sqrt(x)``."""
    return call("rsqrt", x)


def sigmoid(x: Any) -> Value:
    """``1 / (1 + exp(-x))``."""
    return call("sigmoid", x)


def silu(x: Any) -> Value:
    """``x * sigmoid(x)``."""
    return call("silu", x)


def sqrt(x: Any) -> Value:
    """Square root."""
    return call("sqrt", x)


def squared_relu(x: Any) -> Value:
    """``relu(x) * relu(x)``."""
    return call("squared_relu", x)


def tanh(x: Any) -> Value:
    """Hyperbolic tangent."""
    return call("tanh", x)


def where(condition: Any, x: Any, y: Any) -> Value:
    """x where the comparison holds, else y."""
    return call("where", condition, x, y)
