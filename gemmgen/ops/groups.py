"""Groups of rows as a call states them: what its layout holds, what tile rules may expect, and what is refused.

Judges the layout's metadata; its numbers stay on the device, unless a look at them was asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any, NamedTuple

import torch

from gemmgen import catalog
from gemmgen.ir import FOUND_GROUPS, FOUND_PARTS, DType, Operand
from gemmgen.ops.mk_alignment import get_mk_alignment_for_contiguous_layout
from gemmgen.ops.problem import require
from gemmgen.ops.tail import Tail
from gemmgen.ops.whole_numbers import whole_numbers
from gemmgen.runtime.errors import DeviceError

CHECK_VARIABLE = "GEMMGEN_CHECK_GROUPS"
"""Set to 1 before the first call, it has layouts looked at in every call, which waits for the GPU: to find mistakes."""
GROUPED_NAME = re.compile(r"m_grouped_(?P<product>\w+_gemm_n[tn])_(?P<form>contiguous|masked)(?P<output>(?:_\w+out)?)")
"""Operators of row groups: the dense product of every group, how rows are shared out, and what a suffix says of d."""
ARGUMENTS = {"ids": "grouped_layout", "ends": "grouped_layout", "counts": "masked_m"}
"""What users call the layout."""
STEPS = ((64, 4), (512, 8), (4096, 32))
"""Up to so many rows, hints count in steps of so many; more are all alike."""


class Groups(NamedTuple):
    """How rows are shared out among groups, and how many a group is expected to have (0: as the shapes have it).

    ``by`` is what the layout holds, see ``gemmgen.RowGroups``. Groups start at multiples of ``alignment``: by ids tiles
    are chosen to divide it, or a launch finds first where groups lie; by ends the kernel rounds up to it.
    """

    by: str
    alignment: int = 1
    zero_padding: bool = False
    rows: int = 0

    @property
    def layout(self) -> Operand:
        """The operand that says where groups lie."""
        return Operand(name=catalog.LAYOUT, dtype=DType.I32, box=("m",) if self.by == "ids" else ("g",))

    def expected(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Rows of a group, and groups that have any, as tile rules count with."""
        m, groups = sizes["m"], max(1, sizes["g"])
        if self.by == "counts":
            return min(self.rows or m, m), groups
        if self.by == "ids":
            groups = max(1, min(groups, m // self.alignment))
        return min(self.rows or -(-m // groups), m), groups


def of_groups(groups: Groups | None, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Factors and scales as the groups have them, if there are any."""
    return operands if groups is None else tuple(catalog.of_group(each, groups.by) for each in operands)


def behind(groups: Groups | None, tail: Tail) -> tuple[Operand, ...]:
    """What a call passes behind its factors: the layout, and what follows the product."""
    return tail.operands if groups is None else (groups.layout, *tail.operands)


def problem_of(groups: Groups | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Arguments of ``spec_for`` that tile rules judge: m, n and k, of one group where there are any, and which."""
    problem: dict[str, Any] = {axis: sizes[axis] for axis in ("m", "n", "k")}
    if groups is None:
        return problem
    rows, count = groups.expected(sizes)
    given = {"searched": may_be_searched(groups, sizes["m"], sizes["g"]), "padding": rows != groups.rows}
    return {**problem, "m": rows, "groups": groups._replace(rows=0), "group_count": count, **given}


def may_be_searched(groups: Groups, rows: int, count: int) -> bool:
    """Whether a launch may look for groups, so many in so many rows: by ids."""
    return groups.by == "ids" and rows <= FOUND_PARTS * groups.alignment and count <= FOUND_GROUPS


def known_as(groups: Groups | None) -> dict[str, str]:
    """What users call operands whose names are others."""
    return {} if groups is None else {catalog.LAYOUT: ARGUMENTS[groups.by]}


@cache
def grouped_tail(tail: Tail, by: str) -> Tail:
    """What follows a dense product, behind a grouped one."""
    operands = tuple(catalog.of_group(each, by) for each in tail.operands)
    return replace(tail, operands=operands, main=catalog.of_group(tail.main, by))


def contiguous(use_psum_layout: bool, offsets: bool, ensure_zero_padding: bool, expected_m: int | None) -> Groups:
    """Groups whose rows are one matrix, as callers state them; ids start where the process's alignment says."""
    check_flags(use_psum_layout=use_psum_layout, offsets=offsets, ensure_zero_padding=ensure_zero_padding)
    rows = _hint("expected_m_for_psum_layout", expected_m)
    if use_psum_layout and offsets:
        raise ValueError(
            "offsets: is True and so is use_psum_layout; groups start at multiples of the alignment or right behind "
            "one another, so pass either"
        )
    if offsets:
        return Groups("ends", 1, False, rows)
    alignment = get_mk_alignment_for_contiguous_layout()
    if use_psum_layout:
        return Groups("ends", alignment, ensure_zero_padding, rows)
    return Groups("ids", alignment, False, rows)


def check_flags(**flags: Any) -> None:
    """Refuse what is no bool: any string would say yes."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: is {flag!r}; must be a bool, so pass {name}=True or {name}=False")


def masked(expected_m: int | None) -> Groups:
    """Groups that have the first rows of a matrix of their own."""
    return Groups("counts", 1, False, _hint("expected_m", expected_m))


def _hint(name: str, expected_m: int | None) -> int:
    """Rows expected of a group in steps, so that calls with other hints share what was prepared; 0 for no hint.

    Of few, up to the next step: a row more than a tile has reads B once more. Of many to the nearest one.
    """
    if expected_m is None:
        return 0
    if isinstance(expected_m, torch.Tensor):
        raise TypeError(
            f"{name}: is a Tensor; a hint is a number on the host, so that nothing waits; pass a whole number or leave "
            "it out"
        )
    if not isinstance(expected_m, Real) and whole_numbers((expected_m,)) is None:
        raise TypeError(f"{name}: is a {type(expected_m).__name__}; must be a number of rows, such as 64, or left out")
    if expected_m != expected_m:
        raise ValueError(f"{name}: is {expected_m}; must be a number of rows, such as 64, or left out")
    for most, step in STEPS:
        if expected_m <= most:
            rows = int(max(0, expected_m))
            return -(-rows // step) * step if most == STEPS[0][0] else round(rows / step) * step
    return STEPS[-1][0]


def check_layout(groups: Groups, layout: Any, sizes: Mapping[str, int], device: torch.device) -> None:
    """Refuse a layout of another type, length, place or order in memory; fake tensors have all that is asked."""
    name = ARGUMENTS[groups.by]
    if not isinstance(layout, torch.Tensor):
        raise TypeError(f"{name}: is a {type(layout).__name__}; must be a torch.Tensor of torch.int32 on {device}")
    if layout.dtype != torch.int32:
        raise TypeError(f"{name}: dtype is {layout.dtype}; must be torch.int32; pass {name}.to(torch.int32)")
    if layout.layout != torch.strided:
        raise TypeError(f"{name}: layout is {layout.layout}; must be strided, so pass {name}.to_dense()")
    if layout.device != device:
        raise DeviceError(
            f"{name}: is on {layout.device}, but a is on {device}; kernels read it there, so pass "
            f"{name}.to({str(device)!r})"
        )
    what, count = ("row of a", sizes["m"]) if groups.by == "ids" else ("group of b", sizes["g"])

    def message() -> str:
        return f"{name}: shape is {tuple(layout.shape)}; must be ({count},), {_meaning(groups)} for every {what}"

    require(layout.dim() == 1, message)
    require(layout.shape[0] == count, message)
    if layout.stride(0) != 1 and count > 1:
        raise ValueError(f"{name}: stride is {layout.stride(0)}; kernels read neighbours, so pass {name}.contiguous()")


def _meaning(groups: Groups) -> str:
    return {"ids": "a group or -1", "ends": "the row behind its last", "counts": "how many rows it has"}[groups.by]


def looks_at_groups(layout: torch.Tensor) -> bool:
    """Whether this call reads the layout on the host: only when asked to, never while a graph is captured."""
    if os.environ.get(CHECK_VARIABLE) != "1" or layout.is_meta:
        return False
    return not (layout.is_cuda and torch.cuda.is_current_stream_capturing())


def check_content(groups: Groups, layout: torch.Tensor, m: int, count: int) -> None:
    """Refuse numbers that break the layout's rules; without it they are taken as they are, and kernels stay inside."""
    numbers = layout.tolist()
    if groups.by == "ids":
        _check_ids(groups.alignment, numbers, count)
    elif groups.by == "ends":
        _check_ends(groups.alignment, numbers, m)
    else:
        for group, rows in enumerate(numbers):
            if not 0 <= rows <= m:
                raise ValueError(f"masked_m: group {group} has {rows} rows; a has room for {m}; pass 0 to {m}")


def _check_ids(alignment: int, ids: list[int], count: int) -> None:
    for start in range(0, len(ids), alignment):
        first = ids[start]
        if not -1 <= first < count:
            raise ValueError(
                f"grouped_layout: row {start} is of group {first}; b has {count}, so pass 0 to {count - 1}, or -1 for "
                "a row of none"
            )
        ended = first == -1
        for row, each in enumerate(ids[start : start + alignment], start):
            ended = ended or each == -1
            if each != (-1 if ended else first):
                raise ValueError(
                    f"grouped_layout: row {row} is of group {each} and row {start} of {first}; groups start at "
                    f"multiples of the alignment of {alignment} rows and -1 follows their rows; pad groups, pass ends "
                    "of groups with offsets=True, or set_mk_alignment_for_contiguous_layout"
                )


def _check_ends(alignment: int, ends: list[int], m: int) -> None:
    start = before = 0
    for group, end in enumerate(ends):
        rule = f", a multiple of {alignment}" if alignment > 1 else ""
        if end not in (before, start) and not start <= end <= m:
            raise ValueError(
                f"grouped_layout: group {group} starts at row {start}{rule} and ends at {end}; a has {m} rows, and a "
                "group ends where it starts or behind; pass running sums of the groups' rows"
            )
        start, before = -(-max(end, start) // alignment) * alignment, end
