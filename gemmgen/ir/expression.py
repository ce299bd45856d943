"""Arithmetic of an author's own epilogue function: a small subset of Python expressions, traced, printed and parsed.

The text of an expression is what specs store: ``silu(acc + bias) * gate``. Knows Python's syntax tree, nothing of ours.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

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
MOST_PARTS, MOST_NESTED = 1000, 128
"""How large an expression may be: what is used twice stands in it twice, so few lines of Python can make a huge one."""
EXPONENTS = range(1, 17)
FP32 = (2.0**-150, 2.0**128 - 2.0**103)
"""What lies between these magnitudes, both excluded, becomes neither 0 nor infinite in fp32."""
HELD = "0 or from 1e-45 to 3.4e38 in magnitude, as fp32 holds them"


def constant(value: object) -> int | float | None:
    """The number that Python or numpy holds, None if it is no number or fp32 would make 0, Inf or NaN of it."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
    except OverflowError:  # of a fraction
        return None
    return number if number == 0 or FP32[0] < abs(number) < FP32[1] else None


def parse(text: str) -> ast.expr:
    """The syntax tree of an expression; raises ``ValueError`` naming the part that is not in the subset."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"expression {text!r} is no Python expression: {error.msg}") from None
    except (MemoryError, RecursionError):  # of Python's parser
        tree = None
    if tree is None or not _is_small(tree):
        raise ValueError(f"expression {reprlib.repr(text)} {TOO_LARGE}")
    if _check(tree, text):
        raise ValueError(f"expression {text!r} is a comparison; choose between numbers with where(condition, x, y)")
    return tree


def names(tree: ast.expr, given: tuple[str, ...] = (ACCUMULATOR,)) -> tuple[str, ...]:
    """Operands that an expression reads, in the order in which they first appear; ``given`` are none of them."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    found.sort(key=lambda node: node.col_offset)
    return tuple(dict.fromkeys(node.id for node in found if node.id not in given))


TOO_LARGE = (
    f"has more than {MOST_PARTS} parts, or more than {MOST_NESTED} inside one another, where what is used twice counts "
    "twice; split it into several steps"
)


def _is_small(tree: ast.expr) -> bool:
    """Whether an expression is within the limits, level by level: functions that recurse would not survive others."""
    level, parts = [tree], 0
    for _ in range(MOST_NESTED):
        parts += len(level)
        level = [each for node in level for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        if not level or parts > MOST_PARTS:
            break
    return not level and parts <= MOST_PARTS


def _check(node: ast.expr, text: str) -> bool:
    """Refuse what is outside the subset. Whether the node is a condition rather than a number."""
    if isinstance(node, ast.Name):
        return False
    if isinstance(node, ast.Constant) and constant(node.value) is not None:
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
        f"expression {text!r}: {ast.unparse(node)!r} cannot be in it; it may hold names, finite numbers "
        f"({HELD}), + - * /, comparisons inside where(), and {', '.join(FUNCTIONS)}"
    )


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
            raise ValueError(
                f"expression {text!r}: {ast.unparse(node)!r} is a condition where a number is needed, as "
                f"where({ast.unparse(node)}, 1, 0) is one"
            )
    return False


# ---------------------------------------------------------------------------------------------- tracing


def _operator(operator: type[ast.operator] | type[ast.cmpop], *, swapped: bool = False) -> Callable[..., Value]:
    """A method that writes an operator down; ``swapped`` where the value is on its right."""

    def method(value: Value, other: Any) -> Value:
        return _binary(other, operator, value) if swapped else _binary(value, operator, other)

    return method


def _refused(what: str) -> Callable[..., Any]:
    """A method for what cannot be written down; ``{0}`` in the sentence is the value."""

    def method(value: Value, *others: object) -> Any:
        raise TypeError(f"a traced function {what.format(value)}")

    return method


TRACEABLE = f"+ - * /, comparisons inside where(), and the functions of gemmgen.functions: {', '.join(FUNCTIONS)}"
_OF_THE_HOST = _refused(
    "turns {0} into a number of the host; use the functions of gemmgen.functions instead of those of math or torch: "
    + ", ".join(FUNCTIONS)
)
_INDEX = _refused("takes {0} as a sequence, but it is a single number: the function is applied element by element")
_LOGIC = _refused(
    "joins or negates {0} as a condition; choose with where(a, where(b, x, y), y) for a & b, with "
    "where(a, x, where(b, x, y)) for a | b, and with where(a, y, x) for ~a"
)


class Value:
    """A number inside a function that is being traced: arithmetic on it is written down, not computed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: ast.expr) -> None:
        if not _is_small(node):
            raise TypeError(f"what a traced function computes {TOO_LARGE}")
        self._node = node

    def __repr__(self) -> str:
        return ast.unparse(self._node)

    __add__, __radd__ = _operator(ast.Add), _operator(ast.Add, swapped=True)
    __sub__, __rsub__ = _operator(ast.Sub), _operator(ast.Sub, swapped=True)
    __mul__, __rmul__ = _operator(ast.Mult), _operator(ast.Mult, swapped=True)
    __truediv__, __rtruediv__ = _operator(ast.Div), _operator(ast.Div, swapped=True)
    __lt__ = _operator(ast.Lt)
    __le__ = _operator(ast.LtE)
    __gt__ = _operator(ast.Gt)
    __ge__ = _operator(ast.GtE)
    __eq__ = _operator(ast.Eq)  # type: ignore[assignment]
    __ne__ = _operator(ast.NotEq)  # type: ignore[assignment]

    def __pow__(self, power: Any) -> Value:
        if constant(power) is None or power not in EXPONENTS:
            raise TypeError(
                f"a traced function raises {self} to the power {power!r}; exponents are whole numbers from "
                f"{EXPONENTS[0]} to {EXPONENTS[-1]}, so write it with /, sqrt() or exp(power * log(x))"
            )
        return math.prod(itertools.repeat(self, int(power) - 1), start=self)

    def __rpow__(self, base: Any) -> Value:
        raise TypeError(
            f"a traced function raises {base!r} to the power {self}, but exponents are whole numbers; write "
            "exp(power * log(base))"
        )

    def __neg__(self) -> Value:
        return Value(ast.UnaryOp(ast.USub(), self._node))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return call("abs", self)

    __bool__ = _refused(
        "asks whether {0} is true, but its values are known only on the GPU: replace if, and, or, min() and max() by "
        "where(), minimum() and maximum()"
    )
    __float__ = __int__ = __index__ = __complex__ = _OF_THE_HOST
    __round__ = __trunc__ = __floor__ = __ceil__ = _OF_THE_HOST
    __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _refused("uses % on {0}; what can be traced are " + TRACEABLE)
    __floordiv__ = __rfloordiv__ = _refused("uses // on {0}; what can be traced are " + TRACEABLE)
    __matmul__ = __rmatmul__ = _refused("uses @ on {0}; what can be traced are " + TRACEABLE)
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _LOGIC
    __getitem__ = __len__ = __iter__ = _INDEX

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and numpy ask for some of these, to see whether they are there
            raise AttributeError(name)
        raise _unknown(f"{self}.{name}")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **others: Any) -> Value:
        if function.__name__ not in NUMPY or method != "__call__" or others:
            raise _unknown(f"numpy's {function.__name__}")
        left, right = (each[()] if hasattr(type(each), "ndim") else each for each in inputs)  # of arrays without axes
        return _binary(left, NUMPY[function.__name__], right)

    def __array_function__(self, function: Any, *others: Any) -> Any:
        raise _unknown(f"numpy's {function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, *others: Any) -> Any:
        raise _unknown(f"torch's {function.__name__}")


NUMPY: dict[str, type[ast.operator] | type[ast.cmpop]] = {
    "add": ast.Add,
    "subtract": ast.Sub,
    "multiply": ast.Mult,
    "divide": ast.Div,
    "less": ast.Lt,
    "less_equal": ast.LtE,
    "greater": ast.Gt,
    "greater_equal": ast.GtE,
    "equal": ast.Eq,
    "not_equal": ast.NotEq,
}
"""What numpy calls the operators: its numbers ask for them by these names."""


def call(function: str, *arguments: Any) -> Value:
    """A function of the subset applied to traced values and numbers."""
    return Value(ast.Call(ast.Name(function), [_tree(argument, function) for argument in arguments], []))


def trace(function: Callable[..., Any], values: tuple[str, ...] = (ACCUMULATOR,)) -> str:
    """The expression that a Python function computes.

    Its first parameters are ``values``, the accumulator unless said otherwise; the others are operands by name. Raises
    ``TypeError`` for what cannot be traced: control flow on values, unknown calls, other kinds of parameters, defaults,
    results.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # functions in C may not say what they take
        raise _unknown(getattr(function, "__name__", repr(function))) from None
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) < len(values) or any(each.kind not in plain for each in parameters):
        first = "the accumulator" if values == (ACCUMULATOR,) else " and ".join(values)
        raise TypeError(
            f"an epilogue function takes {first} and then operands by name; this one takes "
            f"{inspect.signature(function)}, so write it like lambda {', '.join(values)}, bias: {values[0]} + bias"
        )
    for each in parameters:
        if each.default is not inspect.Parameter.empty:
            raise TypeError(
                f"the epilogue function's {str(each)!r} has a default, but parameters name operands, which a call must "
                "give; write the constant inside the function, or use a variable from around it"
            )
    given = [*values, *(each.name for each in parameters[len(values) :])]
    text = ast.unparse(_tree(function(*(Value(ast.Name(name)) for name in given)), "return"))
    try:
        read = names(parse(text), values)
    except ValueError as error:
        raise TypeError(f"traced {error}") from None
    unread = [name for name in given[len(values) :] if name not in read]
    if unread:
        raise TypeError(f"the epilogue function takes {unread[0]!r} but {text!r} does not read it; remove it")
    return text


def _unknown(name: str) -> TypeError:
    return TypeError(f"a traced function uses {name}, which is unknown; what can be traced are {TRACEABLE}")


def _tree(value: Any, where: str) -> ast.expr:
    if isinstance(value, Value):
        return value._node
    number = constant(value)
    if number is not None:
        magnitude = ast.Constant(abs(number))
        return ast.UnaryOp(ast.USub(), magnitude) if math.copysign(1.0, number) < 0 else magnitude
    raise TypeError(
        f"a traced function uses {reprlib.repr(value)} in {where}; only its parameters and finite numbers can be used "
        f"there, {HELD}"
    )


def _binary(left: Any, operator: type[ast.operator] | type[ast.cmpop], right: Any) -> Value:
    if issubclass(operator, ast.cmpop):
        sign = COMPARISONS[operator]
        return Value(ast.Compare(_tree(left, sign), [operator()], [_tree(right, sign)]))
    sign = BINARY[operator]
    return Value(ast.BinOp(_tree(left, sign), operator(), _tree(right, sign)))


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
