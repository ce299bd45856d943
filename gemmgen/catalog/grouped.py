"""Grouped products: any spec of a dense one, with A's rows, or k, shared out among groups."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.catalog.dense import Shape
from gemmgen.ir import DType, KernelSpec, KGroups, Operand, Reduce, RowGroups

LAYOUT = "layout"
"""The operand that says where groups lie."""
SWAPPED_SHAPES = (
    Shape(16, 128, swap=True, stream=True),
    Shape(32, 64, groups=1, swap=True, stream=True),
    Shape(32, 128, swap=True, stream=True),
)
"""For groups of few rows: n is on the product's rows, of which there are 64 whatever a group has.

Among them narrow tiles are for few weights, so that no SM reads many more than another. To 240 MiB weights go first,
of tiles of 64 rows, too: 3 to 4 % less time behind a write (530 problems of 2 to 100 rows a group, H200).
"""
LOW, SQUARE = Shape(64, 128, groups=1, stream=True), Shape(128, 128)
FP8_SHAPES = (
    Shape(128, 256, width=128, unroll=1, rounds=True, strips=16),
    Shape(128, 192, unroll=1, staging=3, rounds=True, strips=32),
)
"""Strips of 16 K blocks leave room for four slots of factors where scales of A may start at any row."""
FP8_PAIR = Shape(128, 256, width=128, unroll=1, cluster=(2, 1), rounds=True, strips=32)
"""Two CTAs that share what they read of B, of a group that has rows for both."""
FP8_FINE = Shape(192, 128, groups=3, unroll=1, rounds=True, strips=32, raster=16)
"""Three warpgroups, of which two multiply while one sums, and smaller tiles to fill waves with: by ends and counts the
fastest in 32 of 64 problems of 4 to 64 groups, by 10 % at best (H200). By ids 192 rows do not divide what groups are
padded to, so a launch finds first where they lie."""
FP8_APART = replace(FP8_SHAPES[0], overlap=True)
"""Where groups lie one behind the other by their ends; by row ids and counts it gained nothing."""
FP8_TALL = Shape(256, 128, unroll=1, staging=4, overlap=True, rounds=True, strips=32)
BF16_SHAPES = (Shape(128, 256, unroll=1, raster=16),)
BF16_TALL = Shape(256, 128, unroll=1)
ALIGNED_ROWS = 128
"""Rows that padded groups start at multiples of, if nothing else is said."""


def grouped_shapes(factors: DType, by: str, sfb_columns: int = 128) -> tuple[Shape, ...]:
    """The tiles of row groups on sm90 by the type of the factors and what layouts hold, few rows first.

    With a scale of B for every column, which no strip holds, three warpgroups and 256 rows would spill.
    """
    if sfb_columns == 1:
        return tuple(
            replace(shape, strips=1) for shape in grouped_shapes(factors, by) if shape not in (FP8_FINE, FP8_TALL)
        )
    one_byte = factors == DType.E4M3
    large = FP8_SHAPES if one_byte else BF16_SHAPES
    if by == "ids" and one_byte:
        large = (FP8_FINE, *large)
    if by == "counts" and one_byte:
        large = (FP8_PAIR, FP8_FINE, *large)
    if by == "ends":
        large = (FP8_APART, FP8_FINE, *large[1:], FP8_TALL) if one_byte else (*large, BF16_TALL)
    return (*SWAPPED_SHAPES, LOW, SQUARE, *large)


def finds_groups(by: str, alignment: int, rows: int) -> bool:
    """Whether a launch looks for groups before it has tiles of so many rows: by ids, where they do not divide."""
    return by == "ids" and alignment % rows != 0


WIDE_GROUPED_SHAPES = (
    Shape(64, 256, groups=1, width=128, unroll=1),
    Shape(128, 256, width=128, unroll=1, rounds=True, strips=16),
)
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

    Matrices that do not cover k, the output and what it adds to, are one for each group, as is what outputs are reduced
    to; with ``apart`` factors, too. Vectors and numbers that an epilogue reads are the same for all.
    """
    groups = KGroups(by=by, layout=LAYOUT, alignment=alignment, apart=apart)  # type: ignore[arg-type]
    reduced = {step.to for step in spec.epilogue if isinstance(step, Reduce)}
    operands = [_grouped(each) if each.name in reduced else _of_k_group(each) for each in spec.operands]
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
