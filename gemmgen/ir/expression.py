"""Arithmetic of an author's own epilogue function: a small subset of Python expressions, traced, printed and parsed.

The text of an expression is what specs store: ``silu(acc + bias) * gate``. Knows Python's syntax tree, nothing of ours.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

ACCUMULATOR = "acc"
"""What an expression calls the value that the step before it left."""
PAIR = ("gate", "up")
"""What an expression calls the two values that a gate joins."""

FUNCTIONS = {
    "abs": 1,
    "erf": 1,
    "exp": 1,
    "gelu": 1,
    "gelu_tanh": 1,
    "log": 1,
    "maximum": 2,
    "minimum": 2,
    "relu": 1,
    "rsqrt": 1,
    "sigmoid": 1,
    "silu": 1,
    "sqrt": 1,
    "squared_relu": 1,
    "tanh": 1,
    "where": 3,
}
"""Functions of an expression and how many arguments they take."""

BINARY: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def parse(text: str) -> ast.expr:
    """The syntax tree of an expression; raises ``ValueError`` naming the part that is not in the subset."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"expression {text!r} is no Python expression: {error.msg}") from None
    if _check(tree, text):
        raise ValueError(f"expression {text!r} is a comparison; choose between numbers with where(condition, x, y)")
    return tree


def names(tree: ast.expr, given: tuple[str, ...] = (ACCUMULATOR,)) -> tuple[str, ...]:
    """Operands that an expression reads, in the order in which they first appear; ``given`` are none of them."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    found.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in found if node.id not in given))


def _check(node: ast.expr, text: str) -> bool:
    """Refuse what is outside the subset. Whether the node is a condition rather than a number."""
    if isinstance(node, ast.Name):
        return False
    if isinstance(node, ast.Constant) and _is_finite(node.value):
        return False
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return _numbers(text, node.left, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _numbers(text, node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        return not _numbers(text, node.left, *node.comparators)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node, node.func.id, text)
    raise ValueError(
        f"expression {text!r}: {ast.unparse(node)!r} cannot be in it; it may hold names, finite numbers, + - * /, "
        f"comparisons inside where(), and {', '.join(FUNCTIONS)}"
    )


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _call(node: ast.Call, function: str, text: str) -> bool:
    if FUNCTIONS.get(function) != len(node.args):
        known = ", ".join(f"{name}/{count}" for name, count in FUNCTIONS.items())
        raise ValueError(
            f"expression {text!r} calls {function} with {len(node.args)} arguments; known functions and how many they "
            f"take are {known}"
        )
    condition, *rest = node.args
    if function != "where":
        return _numbers(text, *node.args)
    if not _check(condition, text):
        raise ValueError(f"expression {text!r}: the first argument of where() must be a comparison, such as acc > 0")
    return _numbers(text, *rest)


def _numbers(text: str, *nodes: ast.expr) -> bool:
    for node in nodes:
        if _check(node, text):
            raise ValueError(f"expression {text!r}: {ast.unparse(node)!r} is a condition where a number is needed")
    return False


# ---------------------------------------------------------------------------------------------- tracing


class Value:
    """A number inside a function that is being traced: arithmetic on it is written down, not computed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: ast.expr) -> None:
        self.node = node

    def __add__(self, other: Any) -> Value:
        return _binary(self, ast.Add(), other)

    def __radd__(self, other: Any) -> Value:
        return _binary(other, ast.Add(), self)

    def __sub__(self, other: Any) -> Value:
        return _binary(self, ast.Sub(), other)

    def __rsub__(self, other: Any) -> Value:
        return _binary(other, ast.Sub(), self)

    def __mul__(self, other: Any) -> Value:
        return _binary(self, ast.Mult(), other)

    def __rmul__(self, other: Any) -> Value:
        return _binary(other, ast.Mult(), self)

    def __truediv__(self, other: Any) -> Value:
        return _binary(self, ast.Div(), other)

    def __rtruediv__(self, other: Any) -> Value:
        return _binary(other, ast.Div(), self)

    def __pow__(self, power: Any) -> Value:
        if power != 2:
            raise TypeError(f"a traced function raises to the power {power!r}; only 2 is known, so write a product")
        return self * self

    def __neg__(self) -> Value:
        return Value(ast.UnaryOp(ast.USub(), self.node))

    def __abs__(self) -> Value:
        return call("abs", self)

    def __lt__(self, other: Any) -> Value:
        return _compare(self, ast.Lt(), other)

    def __le__(self, other: Any) -> Value:
        return _compare(self, ast.LtE(), other)

    def __gt__(self, other: Any) -> Value:
        return _compare(self, ast.Gt(), other)

    def __ge__(self, other: Any) -> Value:
        return _compare(self, ast.GtE(), other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return _compare(self, ast.Eq(), other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return _compare(self, ast.NotEq(), other)

    def __bool__(self) -> bool:
        raise TypeError(
            f"a traced function asks whether {ast.unparse(self.node)} is true, but its values are known only on the "
            "GPU: replace if, and, or, min() and max() by where(), minimum() and maximum()"
        )

    def __float__(self) -> float:
        raise TypeError(
            f"a traced function turns {ast.unparse(self.node)} into a number of the host; use the functions of "
            f"gemmgen.functions instead of those of math or torch: {', '.join(FUNCTIONS)}"
        )


def call(function: str, *arguments: Any) -> Value:
    """A function of the subset applied to traced values and numbers."""
    return Value(ast.Call(ast.Name(function), [_node(argument, function) for argument in arguments], []))


def trace(function: Callable[..., Any], values: tuple[str, ...] = (ACCUMULATOR,)) -> str:
    """The expression that a Python function computes.

    Its first parameters are ``values``, the accumulator unless said otherwise; the others are operands by name. Raises
    ``TypeError`` for what cannot be traced: control flow on values, unknown calls, other kinds of parameters, results.
    """
    parameters = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) < len(values) or any(each.kind not in plain for each in parameters):
        first = "the accumulator" if values == (ACCUMULATOR,) else " and ".join(values)
        raise TypeError(
            f"an epilogue function takes {first} and then operands by name; this one takes "
            f"{inspect.signature(function)}, so write it like lambda {', '.join(values)}, bias: {values[0]} + bias"
        )
    given = [*values, *(each.name for each in parameters[len(values) :])]
    result = function(*(Value(ast.Name(name)) for name in given))
    text = ast.unparse(_node(result, "return"))
    unread = [name for name in given[len(values) :] if name not in names(parse(text), values)]
    if unread:
        raise TypeError(f"the epilogue function takes {unread[0]!r} but {text!r} does not read it; remove it")
    return text


def _node(value: Any, where: str) -> ast.expr:
    if isinstance(value, Value):
        return value.node
    if _is_finite(value):
        number = ast.Constant(abs(value))
        return ast.UnaryOp(ast.USub(), number) if math.copysign(1.0, value) < 0 else number
    raise TypeError(
        f"a traced function uses {value!r} in {where}; only its parameters and finite numbers can be used there"
    )


def _binary(left: Any, operator: ast.operator, right: Any) -> Value:
    return Value(ast.BinOp(_node(left, BINARY[type(operator)]), operator, _node(right, BINARY[type(operator)])))


def _compare(left: Any, operator: ast.cmpop, right: Any) -> Value:
    sign = COMPARISONS[type(operator)]
    return Value(ast.Compare(_node(left, sign), [operator], [_node(right, sign)]))


# ---------------------------------------------------------------------------------------------- evaluating


def evaluate(tree: ast.expr, values: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """An expression on anything that has Python's arithmetic; ``functions`` says what its calls mean."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name():
                return values[node.id]
            case ast.Constant():
                return node.value
            case ast.UnaryOp():
                return -value(node.operand)
            case ast.BinOp():
                return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
            case ast.Compare():
                return _OPERATIONS[type(node.ops[0])](value(node.left), value(node.comparators[0]))
            case ast.Call(func=ast.Name(id=function)):
                return functions[function](*map(value, node.args))
        raise AssertionError(ast.dump(node))

    return value(tree)


_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y,
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
}
