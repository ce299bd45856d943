"""Grouped products: any spec of a dense one, with A's rows, or k, shared out among groups."""

from __future__ import annotations

from gemmgen.catalog.dense import Shape
from gemmgen.ir import DType, KernelSpec, KGroups, Operand, RowGroups

LAYOUT = "layout"
"""The operand that says where groups lie."""
SWAPPED_SHAPES = tuple(Shape(rows, 128, unroll=2, swap=True) for rows in (16, 32, 64))
"""For groups of few rows: n is on the product's rows, of which there are 64 whatever a group has."""
LOW, SQUARE = Shape(64, 128, groups=1), Shape(128, 128, unroll=8, staging=4)
GROUPED_SHAPES = (
    *SWAPPED_SHAPES,
    Shape(64, 32, groups=1),
    LOW,
    SQUARE,
    Shape(128, 192, unroll=1, staging=3),
    Shape(256, 128, unroll=1),
)
"""The tiles of row groups on sm90, for every type and layout."""
WIDE_GROUPED_SHAPES = (Shape(64, 256, groups=1, width=128, unroll=1), Shape(128, 256, width=128, unroll=1))
"""For epilogues that need 256 columns of the product in a warp: gates of columns that are quantised by 128."""


def in_row_groups(spec: KernelSpec, by: str, alignment: int = 1, zero_padding: bool = False) -> KernelSpec:
    """The same product for groups of rows; each has a B, scales of B, and vectors along n of its own.

    ``by`` is what the layout holds, see ``RowGroups``: with counts, A and all that has rows have a matrix a group.
    """
    groups = RowGroups(by=by, layout=LAYOUT, alignment=alignment, zero_padding=zero_padding)  # type: ignore[arg-type]
    operands = [of_group(each, by) for each in spec.operands]
    layout = Operand(name=LAYOUT, dtype=DType.I32, box=("m",) if by == "ids" else ("g",))
    marks = (f"_by_{by}", f"_a{alignment}" if alignment > 1 else "", "_zero" if zero_padding else "")
    return spec.replace(
        name=spec.name.replace(f"{spec.arch}_", f"{spec.arch}_m_grouped_", 1) + "".join(marks),
        operands=(*operands, layout),
        groups=groups,
    )


def in_k_groups(spec: KernelSpec, by: str, alignment: int = 1, apart: bool = False) -> KernelSpec:
    """The same product of every group's range of k: ``layout`` says where it lies, see ``KGroups``.

    Matrices that do not cover k, the output and what it adds to, are one for each group; with ``apart`` factors, too.
    """
    groups = KGroups(by=by, layout=LAYOUT, alignment=alignment, apart=apart)  # type: ignore[arg-type]
    operands = [_of_k_group(each) for each in spec.operands]
    marks = (f"_by_{by}", f"_a{alignment}" if alignment > 1 else "", "_apart" if apart else "")
    return spec.replace(
        name=spec.name.replace(f"{spec.arch}_", f"{spec.arch}_k_grouped_", 1) + "".join(marks),
        operands=(*operands, Operand(name=LAYOUT, dtype=DType.I32, box=("g",))),
        groups=groups,
    )


def of_group(operand: Operand, by: str) -> Operand:
    """An operand of a dense product as groups of rows have it.

    What covers n but no rows (B, its scales, vectors along n) is of each group, and so is a number on the device; with
    counts all that has rows is, too.
    """
    own = by == "counts" and "m" in operand.axes
    per_column = "n" in operand.axes and "m" not in operand.axes
    return _grouped(operand) if own or per_column or operand.on_device else operand


def _of_k_group(operand: Operand) -> Operand:
    """An operand of a dense product as groups of k have it; words of scales are not shared by neighbours."""
    if len(operand.axes) > 1 and "k" not in operand.axes:
        return _grouped(operand)
    return operand.replace(ragged=True) if operand.dtype == DType.UE8M0X4 else operand


def _grouped(operand: Operand) -> Operand:
    return operand.replace(box=("g", *operand.box), major=operand.major, on_device=False)
