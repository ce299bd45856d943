"""Operands: the global-memory tensors (or host scalars) that a kernel touches, by the problem axes they cover."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from gemmgen.ir.dtype import DType
from gemmgen.ir.node import Name, Node
from gemmgen.ir.reserved import RESERVED, check_free

OUTERMOST = ("s", "g")
"""Axes of slices and of groups, which come first in a box and are of no one matrix."""
_AXIS = re.compile(r"^([mnksg])(?:/([1-9][0-9]*))?$")


def split_axis(axis: str) -> tuple[str, int]:
    """``"k/128"`` is axis ``k`` at one element per 128: ``("k", 128)``; ``"m"`` is ``("m", 1)``."""
    match = _AXIS.match(axis)
    if match is None:
        raise ValueError(
            f"axis {axis!r} is not m, n, k, s or g, nor one of them divided by a whole number such as 'k/128'"
        )
    return match[1], int(match[2] or 1)


class HeadSplit(Node):
    """Columns of heads of ``left + right`` with a gap of ``mid`` columns in the middle of each, which nobody writes.

    Column n of the product lies at ``n + (n + right) // (left + right) * mid``.
    """

    left: Annotated[int, Field(ge=0)]
    mid: Annotated[int, Field(ge=0)]
    right: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _pairs_stay_together(self) -> HeadSplit:
        if self.left % 2 or self.right % 2 or self.head == 0:
            raise ValueError(
                f"heads of {self.left} + {self.right} columns; both are even and one is not 0, because columns are "
                "written two at a time"
            )
        return self

    @property
    def head(self) -> int:
        """Columns of the product that make a head."""
        return self.left + self.right

    def columns(self, n: int) -> int:
        """Columns of an output for ``n`` of the product, gaps included."""
        return n + n // self.head * self.mid


class Operand(Node):
    """A tensor in global memory, or a scalar when ``box`` is empty: passed by value, or read from a tensor of one
    element if it is ``on_device``.

    ``box`` names the problem axes from the outermost logical dimension to the innermost, ``("m", "k")`` say;
    ``"k/128"`` has one element per 128 of k, rounded up. ``major`` is the axis that is contiguous in memory,
    the last one unless said otherwise. A first axis ``"s"`` has a slice for each split of k, see ``SplitK``, and
    ``"g"`` one for each group, see ``RowGroups``. ``heads`` of an output leaves gaps between its columns.
    ``ragged`` scales of groups of k have for each group as many as its k makes, rounded up: its first one is a new one.
    """

    name: Name
    dtype: DType
    box: tuple[str, ...]
    major: str | None = None
    on_device: bool = False
    heads: HeadSplit | None = None
    ragged: bool = False

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str) -> str:
        return check_free("operand", name, RESERVED)

    @field_validator("box")
    @classmethod
    def _axes_are_known(cls, box: tuple[str, ...]) -> tuple[str, ...]:
        axes = [split_axis(axis)[0] for axis in box]
        if len(set(axes)) != len(axes):
            raise ValueError(f"box {box} names a problem axis twice")
        for outermost, what in (("s", "slices"), ("g", "groups")):
            if outermost in axes[1:]:
                raise ValueError(f"box {box} has {what} inside others; {outermost!r} is the first axis")
        if len([axis for axis in axes if axis not in OUTERMOST]) > 2:
            raise ValueError(f"box {box} has {len(box)} axes; an operand covers at most 2, and 's' or 'g' before them")
        return box

    @model_validator(mode="after")
    def _scalars_are_on_the_host_or_not(self) -> Operand:
        if self.on_device and self.box:
            raise ValueError(f"operand {self.name!r} has box {self.box}; on_device is for scalars, so remove it")
        return self

    @model_validator(mode="after")
    def _major_is_an_axis(self) -> Operand:
        if self.major is not None and self.major not in [split_axis(axis)[0] for axis in self.box]:
            raise ValueError(f"operand {self.name!r}: major {self.major!r} is not an axis of box {self.box}")
        return self

    @property
    def inner(self) -> str:
        """The contiguous axis as written in ``box``."""
        if not self.box:
            raise ValueError(f"operand {self.name!r} is a scalar: it has no contiguous axis")
        return next((axis for axis in self.box if split_axis(axis)[0] == self.major), self.box[-1])

    @property
    def outer(self) -> str:
        """The strided axis as written in ``box``, the one next to the contiguous one (operands of two axes or more)."""
        return [axis for axis in self.box if axis != self.inner][-1]

    @property
    def is_scalar(self) -> bool:
        """Whether the operand is passed by value."""
        return not self.box and not self.on_device

    @property
    def plane(self) -> tuple[str, ...]:
        """The axes that meet one tile: those of ``box`` without that of slices or groups."""
        return self.box[1:] if self.box[:1] in (("s",), ("g",)) else self.box

    @property
    def grouped(self) -> bool:
        """Whether every group has its own."""
        return self.box[:1] == ("g",)

    @property
    def axes(self) -> tuple[str, ...]:
        """The problem axes covered, without divisors."""
        return tuple(split_axis(axis)[0] for axis in self.box)
