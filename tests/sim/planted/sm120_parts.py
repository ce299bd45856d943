"""Finds the parts of an sm120 kernel's PTX: products, fragments, words of scales; and changes single addresses."""

from __future__ import annotations

from .ptx_text import Statement, find, register_of, replace, rewrite
from .sm100_parts import nearest_before

A, B, SFA, SFB = 1, 2, 4, 6
"""Operands of a block-scaled mma.sync: d, a, b, c, scale of a, its selector, scale of b, its selector."""


def products(text: str) -> list[Statement]:
    """The mma.sync of a K block, in the text's order."""
    return find(text, "mma.sync")


def loads(text: str) -> list[Statement]:
    """The ldmatrix of a K block: A's of a step, then B's."""
    return find(text, "ldmatrix")


def scale_loads(text: str) -> list[Statement]:
    """Words of scales: of A, then of B."""
    return find(text, "ld.shared.u32")


def skips(text: str) -> list[Statement]:
    """The branches around the words of A's and of B's scales, in the role that multiplies."""
    first = scale_loads(text)
    return [nearest_before(text, "bra", each.start) for each in (first[0], first[1])]


def moved(text: str, statement: Statement, operand: int, by: str) -> str:
    """The address in an operand changed by an instruction before its statement."""
    register = register_of(statement.operands[operand])
    changed = rewrite(statement, **{f"_{operand}": statement.operands[operand].replace(register, "q")})
    return replace(text, statement, f"{{ .reg .b32 q; {by.format(register)} {changed} }}")
