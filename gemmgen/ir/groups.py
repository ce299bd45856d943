"""Groups: several problems of a shape in a launch, with factors of their own; where they lie is read on the device.

The rules that a spec with groups keeps; ``KernelSpec`` checks them.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gemmgen.ir.dtype import DType
from gemmgen.ir.node import Name, Node
from gemmgen.ir.roles import Tcgen05
from gemmgen.ir.schedule import Persistent
from gemmgen.ir.steps import Reduce

if TYPE_CHECKING:
    from gemmgen.ir.spec import KernelSpec

FOUND_PARTS = 1024
"""So many times the alignment is the most rows that a launch looks for groups in by row ids."""
FOUND_GROUPS = 2**19 - 1
"""The most groups that it finds: what it keeps of an id are 19 bits."""
FOUND_ROWS = 2**12 - 1
"""The largest alignment there: what it keeps of a part's rows are 12 bits."""


class RowGroups(Node):
    """m is cut into groups of rows, each multiplied by a B of its own, as experts of a mixture are.

    ``layout`` is the int32 operand that says where they lie. ``by`` says what it holds:

    - ``ids``, for every row the number of its group, or -1. A tile of rows is of the group of its first row, and none
      where that is -1, so groups start at multiples of the tile and padding follows their rows. Of CTAs that multiply
      together, the rows of all are one tile.
      With an ``alignment`` groups start at multiples of that many rows, and tiles begin where a group does and at
      every tile's rows from there. Where a group goes on behind a multiple, all rows up to it are taken to be the
      group's; of the last rows up to a multiple, the first ones are, and what follows is padding.
    - ``ends``, for every group the row behind its last; it starts where the one before ended, rounded up to a multiple
      of ``alignment``. With 1 there is no padding. ``zero_padding`` fills rows of outputs between groups, and what
      scales they have, with 0.
    - ``counts``, for every group how many rows it has of its own matrix: what has m in its box has ``"g"`` before it.

    Rows of no group are neither written, nor do they influence others, whatever they hold.
    """

    kind: Literal["rows"] = "rows"
    by: Literal["ids", "ends", "counts"]
    layout: Name
    alignment: Annotated[int, Field(ge=1)] = 1
    zero_padding: bool = False

    @property
    def found(self) -> bool:
        """Whether a launch looks for groups by row ids before tiles are known."""
        return self.by == "ids" and self.alignment > 1

    def first_rows(self, tile_m: int) -> int:
        """What the first rows of tiles of ``tile_m`` rows are multiples of, where groups lie behind one another."""
        return gcd(self.alignment, tile_m) if self.by == "ids" else self.alignment


class KGroups(Node):
    """k is cut into groups, each of which gives an output of its own, as weight gradients of experts are.

    ``layout`` is the int32 operand that says where: ``ends``, for every group the k behind its last, where the next
    one starts, rounded up to a multiple of ``alignment``; ``counts``, how much of k each has, one behind the other
    likewise. What has k in its box is one matrix for all groups; outputs have ``"g"`` before their axes.

    With ``apart`` factors are matrices of their own for each group, k contiguous, one behind the other in memory;
    counts are multiples of ``alignment``. Scales are one matrix all the same.
    """

    kind: Literal["k"] = "k"
    by: Literal["ends", "counts"]
    layout: Name
    alignment: Annotated[int, Field(ge=1)] = 1
    apart: bool = False


Groups = Annotated[RowGroups | KGroups, Field(discriminator="kind")]
LAYOUT_BOXES = {"ids": ("m",), "ends": ("g",), "counts": ("g",)}


def groups_fit(spec: KernelSpec) -> None:
    """Operands have the axis of groups where their kind of groups has it, and only there."""
    if spec.groups is None:
        _no_group_axis(spec)
        return
    groups, where = spec.groups, f"spec {spec.name!r} has groups"
    layout, box = spec.operand(groups.layout), LAYOUT_BOXES[groups.by]
    if layout.dtype != DType.I32 or layout.box != box:
        raise ValueError(
            f"{where}: layout {layout.name!r} has box {layout.box} of {layout.dtype}; by {groups.by} needs {box} of i32"
        )
    if not isinstance(spec.schedule, Persistent):
        raise ValueError(
            f"{where} and schedule {spec.schedule.kind}; who works on which tile is known on the device "
            "alone, so use Persistent"
        )
    if isinstance(groups, RowGroups):
        _rows_fit(spec, groups, where)
    else:
        _k_fits(spec, groups, where)


def _no_group_axis(spec: KernelSpec) -> None:
    for operand in spec.operands:
        if "g" in operand.axes or operand.dtype == DType.I32:
            raise ValueError(
                f"spec {spec.name!r}: operand {operand.name!r} has box {operand.box} of {operand.dtype}, which groups "
                "alone have; set groups"
            )


def _rows_fit(spec: KernelSpec, groups: RowGroups, where: str) -> None:
    own = groups.by == "counts"
    if not any("g" in operand.axes for operand in spec.operands):
        raise ValueError(
            f"{where} by {groups.by}, but no operand has an axis 'g': nothing says how many there are; put 'g' first "
            "in what each group has its own of"
        )
    for operand in spec.operands:
        if operand.name != groups.layout and "m" in operand.axes and ("g" in operand.axes) != own:
            raise ValueError(
                f"{where} by {groups.by}: operand {operand.name!r} has box {operand.box}; "
                + (
                    "each group has rows of its own, so put 'g' first"
                    if own
                    else "all groups' rows are one matrix, so remove 'g'"
                )
            )
    if groups.zero_padding and groups.by != "ends":
        raise ValueError(f"{where} by {groups.by} and zero_padding; only groups by ends have any")
    if groups.alignment > 1 and groups.by == "counts":
        raise ValueError(f"{where} by counts and an alignment; each has rows of its own, from the first on")
    together = isinstance(spec.math.body, Tcgen05) and not spec.math.body.swap_ab and spec.math.body.ctas > 1
    if groups.by == "ids" and spec.cluster.m > 1 and not together:
        raise ValueError(f"{where} by ids and a cluster along m, whose tiles may be of two groups; use Cluster(m=1)")


def _k_fits(spec: KernelSpec, groups: KGroups, where: str) -> None:
    if groups.apart and (groups.by != "counts" or groups.alignment % 16):
        raise ValueError(
            f"{where} of k that are apart, by {groups.by} with an alignment of {groups.alignment}; rows are whole 16 "
            "bytes for the copy engine, so use counts and a multiple of 16"
        )
    reduced = {step.to for step in spec.epilogue if isinstance(step, Reduce)}
    for operand in spec.operands:
        if operand.name in reduced and "g" not in operand.axes:
            raise ValueError(
                f"{where} of k: {operand.name!r} has box {operand.box}; each group's product is reduced by itself, so "
                "put 'g' first"
            )
        if operand.name == groups.layout or len(operand.axes) < 2:
            continue
        if ("k" in operand.axes) == ("g" in operand.axes):
            raise ValueError(
                f"{where} of k: operand {operand.name!r} has box {operand.box}; what covers k is one matrix for all "
                "groups, and what does not has 'g' first"
            )
