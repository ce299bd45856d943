"""Grouped products: any spec of a dense one with a B for every group, and the rows of A shared out among them."""

from __future__ import annotations

from gemmgen.ir import DType, KernelSpec, Multiplier, Operand, RowGroups

LAYOUT = "layout"
"""The operand that says where groups lie."""


def in_row_groups(spec: KernelSpec, by: str, alignment: int = 1, zero_padding: bool = False) -> KernelSpec:
    """The same product for groups of rows; each has a B, scales of B, and vectors along n of its own.

    ``by`` is what the layout holds, see ``RowGroups``: with counts, A and all that has rows have a matrix a group.
    """
    groups = RowGroups(by=by, layout=LAYOUT, alignment=alignment, zero_padding=zero_padding)  # type: ignore[arg-type]
    of_each = _of_each_group(spec) | (
        {each.name for each in spec.operands if "m" in each.axes} if by == "counts" else set()
    )
    operands = [_grouped(each) if each.name in of_each else each for each in spec.operands]
    layout = Operand(name=LAYOUT, dtype=DType.I32, box=("m",) if by == "ids" else ("g",))
    marks = (f"_by_{by}", f"_a{alignment}" if alignment > 1 else "", "_zero" if zero_padding else "")
    return spec.replace(
        name=spec.name.replace(f"{spec.arch}_", f"{spec.arch}_m_grouped_", 1) + "".join(marks),
        operands=(*operands, layout),
        groups=groups,
    )


def _of_each_group(spec: KernelSpec) -> set[str]:
    """Operands that cover n but no rows: B, its scales, vectors along n."""
    assert isinstance(spec.math.body, Multiplier)
    return {each.name for each in spec.operands if "n" in each.axes and "m" not in each.axes} | {
        each.name for each in spec.operands if each.on_device
    }


def _grouped(operand: Operand) -> Operand:
    return operand.replace(box=("g", *operand.box), major=operand.major, on_device=False)
