"""The links of a prologue or epilogue chain. A step reads what the step before it defined."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gemmgen.ir.dtype import DType
from gemmgen.ir.node import Name, Node


class Scale(Node):
    """Multiply by an operand: a host scalar, a vector along m (per row) or along n (per column)."""

    kind: Literal["scale"] = "scale"
    by: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.by,)


class Bias(Node):
    """Add a vector along m (one value a row) or along n (one value a column)."""

    kind: Literal["bias"] = "bias"
    vector: Name

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.vector,)


class Residual(Node):
    """Add ``beta`` times a matrix of the output's shape; ``beta`` names a host scalar, 1 if left out.

    The matrix may be the output itself: every element is read before it is overwritten.
    """

    kind: Literal["residual"] = "residual"
    matrix: Name
    beta: Name | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.matrix,) if self.beta is None else (self.matrix, self.beta)


class Cast(Node):
    """Round to an element type, to nearest even."""

    kind: Literal["cast"] = "cast"
    to: DType

    @property
    def operands(self) -> tuple[str, ...]:
        return ()


class Store(Node):
    """Write to an operand: by TMA through a ring of staging buffers, or from registers if ``through`` is left out."""

    kind: Literal["store"] = "store"
    to: Name
    through: Name | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        return (self.to,)


Step = Annotated[Scale | Bias | Residual | Cast | Store, Field(discriminator="kind")]
