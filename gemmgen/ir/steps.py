"""The links of a prologue or epilogue chain. A step reads what the step before it defined."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from gemmgen.ir.dtype import DType
from gemmgen.ir.expression import PAIR, constant, names, parse, trace
from gemmgen.ir.node import Name, Node


class _Link(Node):
    """What all steps say of themselves: the operands they name, those they read and those they write."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.operands

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


class Scale(_Link):
    """Multiply by an operand: a scalar, a vector along m (per row) or along n (per column), or a matrix."""

    kind: Literal["scale"] = "scale"
    by: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.by,)


class Bias(_Link):
    """Add a vector along m (one value a row) or along n (one value a column)."""

    kind: Literal["bias"] = "bias"
    vector: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.vector,)


class Residual(_Link):
    """Add ``beta`` times a matrix of the output's shape; ``beta`` names a host scalar, 1 if left out.

    The matrix may be the output itself: every element is read before it is overwritten.
    """

    kind: Literal["residual"] = "residual"
    matrix: Name
    beta: Name | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.matrix,) if self.beta is None else (self.matrix, self.beta)


class Activation(_Link):
    """Apply a function element by element.

    ``relu``: the larger of x and 0 (NaN stays NaN); ``squared_relu``: its square; ``gelu``: x times the normal
    distribution function, by ``erf``; ``gelu_tanh``: its approximation by ``tanh``; ``silu``: x / (1 + exp(-x)).
    Columns share reciprocals in the last two, for which silu of less than -43 and gelu_tanh of less than -7.5 is 2^-62
    of the number, not 0: of -Inf it is -Inf.
    """

    kind: Literal["activation"] = "activation"
    function: Literal["relu", "squared_relu", "gelu", "gelu_tanh", "silu"]


class SoftCap(_Link):
    """Bend values so that none is larger than ``cap`` in magnitude: ``cap * tanh(x / cap)``, as logits are capped."""

    kind: Literal["soft_cap"] = "soft_cap"
    cap: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @field_validator("cap")
    @classmethod
    def _is_a_number_of_fp32(cls, cap: float) -> float:
        if constant(cap) is None:
            raise ValueError(f"cap {cap!r} is no number of fp32, in which steps compute; take one from 1e-45 to 3.4e38")
        return cap


def _refuse_both(fields: dict[str, Any]) -> None:
    if "expression" in fields:
        raise TypeError(f"a function and expression={fields['expression']!r} are both given; give one of them")


class Apply(_Link):
    """The author's own function of the accumulator and operands, element by element in fp32.

    ``Apply(lambda acc, bias, gate: silu(acc + bias) * gate)`` is traced with the functions of ``gemmgen.functions``;
    parameters after the first name operands, each a scalar, a vector along m or n, or a matrix. They have no defaults:
    a constant stands in the function, or comes from around it. The text is stored:
    ``Apply(expression="silu(acc + bias) * gate")``. Raises ``TypeError`` for a function that cannot be traced.
    """

    kind: Literal["apply"] = "apply"
    expression: str

    def __init__(self, function: Callable[..., Any] | None = None, /, **fields: Any) -> None:
        if function is not None:
            _refuse_both(fields)
            fields["expression"] = trace(function)
        super().__init__(**fields)

    @field_validator("expression")
    @classmethod
    def _is_in_the_subset(cls, expression: str) -> str:
        return ast.unparse(parse(expression))

    @property
    def tree(self) -> ast.expr:
        """The expression as Python's syntax tree."""
        return parse(self.expression)

    @property
    def operands(self) -> tuple[str, ...]:
        return names(self.tree)


class Gate(_Link):
    """Join pairs of columns, gate and up, by a function: of n columns half as many are left.

    ``Gate()`` is SwiGLU, ``silu(gate) * up``; ``Gate("gelu")`` names another function of the gate; ``Gate(lambda gate,
    up, limit: minimum(silu(gate), limit) * up)`` is the author's own, traced as :class:`Apply` traces, with operands
    that meet what is left. ``layout`` says where pairs are: ``interleaved`` has 8 columns of gate, 8 of up, and so on;
    in ``halves`` the first half of n is gate and the other up, and B's rows are copied as if they were interleaved.

    Steps before it work on all n columns, operands of later ones have boxes of ``n/2``. n is a multiple of 16.
    """

    kind: Literal["gate"] = "gate"
    expression: str = "silu(gate) * up"
    layout: Literal["interleaved", "halves"] = "interleaved"

    def __init__(self, function: Callable[..., Any] | str | None = None, /, **fields: Any) -> None:
        if function is not None:
            _refuse_both(fields)
        if isinstance(function, str):
            fields["expression"] = f"{function}(gate) * up"
        elif function is not None:
            fields["expression"] = trace(function, PAIR)
        super().__init__(**fields)

    @field_validator("expression")
    @classmethod
    def _is_in_the_subset(cls, expression: str) -> str:
        return ast.unparse(parse(expression))

    @property
    def tree(self) -> ast.expr:
        """The expression as Python's syntax tree."""
        return parse(self.expression)

    @property
    def operands(self) -> tuple[str, ...]:
        return names(self.tree, PAIR)


class Keep(_Link):
    """Write the value at this point to another operand too, a matrix in a type of its own, rounded as ``Cast`` does.

    The chain goes on with the value as it was. So ``Keep(to="pre")`` before an activation gives both.
    """

    kind: Literal["keep"] = "keep"
    to: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to,)


class Reduce(_Link):
    """Reduce the value along columns, rows or both to an operand of f32; the chain goes on with the value unchanged.

    ``along`` is the axis that goes: ``"n"`` leaves one number a row, ``"m"`` one a column, ``"mn"`` one of the whole
    matrix. ``amax`` is the largest magnitude, NaN if any value is NaN. Sums are added in an order that the tile fixes,
    so repeats agree bit for bit: within a thread, across the lanes of its warp, across warps from the first tile to
    the last; for ``"mn"`` then across rows, lane by lane and group by group. A reduction of nothing is 0. In products
    of groups of rows each group has results of its own, ``[g, n]`` or ``[g]`` where rows go; rows of no group keep what
    they had, as those of outputs do. In products of groups of k each has results of its own of every kind.
    """

    kind: Literal["reduce"] = "reduce"
    function: Literal["sum", "sum_of_squares", "amax"]
    along: Literal["n", "m", "mn"]
    to: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to,)

    def box(self, columns: str) -> tuple[str, ...]:
        """What the operand covers where the chain has these columns, ``"n"`` or what a gate leaves of them."""
        return tuple(axis for axis in ("m", columns) if axis[0] not in self.along)


class Cast(_Link):
    """Round to an element type, to nearest even.

    A number beyond the largest of f16, e4m3 or e5m2 (65504, 448, 57344), Inf too, becomes that one with its sign; in
    bf16 it becomes Inf. NaN stays NaN. Without a block's scale, small numbers become subnormals of the type, or 0.
    """

    kind: Literal["cast"] = "cast"
    to: DType


class Quantise(_Link):
    """Write to an operand in a narrow type, block by block along n, with the scales of the blocks to another.

    The fp32 value is quantised, not one that was rounded before. How many columns share a scale follows from both
    types; see ``QUANTISED`` in ``gemmgen.ir.chain``. ``tensor_scale`` names a scalar that NVFP4 divides by before it
    looks at blocks. Rules for zeros, Inf and NaN are those of ``gemmgen.ops.quantise``, bit for bit.
    """

    kind: Literal["quantise"] = "quantise"
    to: Name
    scales: Name
    tensor_scale: Name | None = None
    through: Name | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to, self.scales, *self.reads)

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.tensor_scale is None else (self.tensor_scale,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to, self.scales)


class Store(_Link):
    """Write to an operand: by TMA through a ring of staging buffers, or from registers if ``through`` is left out.

    With ``accumulate`` it is added to what the fp32 operand holds: each element once, so that results repeat.
    """

    kind: Literal["store"] = "store"
    to: Name
    through: Name | None = None
    accumulate: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to,)


class SumOfSquares(_Link):
    """In a prologue: the squares of A's values, summed along k in fp32, to an operand along m.

    They are squared as A holds them, before a cast, and summed in an order that the tile and the splits of k fix.
    """

    kind: Literal["sum_of_squares"] = "sum_of_squares"
    to: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to,)

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.to,)


Step = Annotated[
    Scale | Bias | Residual | Activation | SoftCap | Apply | Gate | Keep | Reduce | Cast | Quantise | Store,
    Field(discriminator="kind"),
]
PrologueStep = Annotated[SumOfSquares | Cast, Field(discriminator="kind")]
"""What may be done to A's values on their way to the tensor core."""
