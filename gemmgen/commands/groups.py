"""Grouped kernels on random input: every group is a problem of the dense product, laid where the groups' layout says.

Memory of no group is filled with one byte, in factors and in outputs, so that reading or writing it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gemmgen.commands.inputs import Operands, random_operands
from gemmgen.commands.reference import head_columns
from gemmgen.ir import KernelSpec, Operand, RowGroups
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.arguments import expected_shape

NAN = 0xFF
"""Byte of what no group owns: NaN in every type that has one."""
PITCH = 32
"""Bytes that rows start at multiples of."""
SHARES = (0.45, 0.0, 0.35, 0.2)
"""Parts of all rows that groups have when they are drawn."""

Draw = Callable[[KernelSpec, dict[str, int], int], Operands]


@dataclass(frozen=True)
class Layout:
    """Where groups lie: what the device reads, the extent of m, and each group's first row and count of rows.

    ``own`` says that every group has a matrix of so many rows, ``gaps`` are first row and count of those between a
    group's and the next one's.
    """

    given: tuple[int, ...]
    rows: int
    spans: tuple[tuple[int, int], ...]
    own: bool = False
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def groups(self) -> int:
        return len(self.spans)


def by_ids(counts: Sequence[int], tile: int, tail: int = 0) -> Layout:
    """Groups at multiples of the tile, -1 behind their rows and in ``tail`` more tiles."""
    given: list[int] = []
    spans = []
    for group, count in enumerate(counts):
        spans.append((len(given), count))
        given += [group] * count + [-1] * (-count % tile)
    return Layout((*given, *[-1] * (tail * tile)), len(given) + tail * tile, tuple(spans))


def start_of_ids(spec: KernelSpec) -> int:
    """Rows that groups by ids start at multiples of: the alignment where there is one, else those of a tile."""
    assert isinstance(spec.groups, RowGroups)
    return spec.groups.alignment if spec.groups.alignment > 1 else spec.tile.m * spec.cluster.m


def by_ends(counts: Sequence[int], alignment: int = 1, tail: int = 0) -> Layout:
    """Groups at multiples of the alignment, ``tail`` rows behind the last."""
    spans, end = [], 0
    for count in counts:
        begin = -(-end // alignment) * alignment
        spans.append((begin, count))
        end = begin + count
    ends, rows = tuple(begin + count for begin, count in spans), end + tail
    gaps = tuple((end, min(-end % alignment, rows - end)) for end, (_, count) in zip(ends, spans, strict=True) if count)
    return Layout(ends, rows, tuple(spans), gaps=gaps)


def by_counts(counts: Sequence[int], most: int) -> Layout:
    """Every group the first rows of its own ``most``."""
    return Layout(tuple(counts), most, tuple((0, count) for count in counts), own=True)


def drawn(spec: KernelSpec, m: int) -> Layout:
    """Groups of uneven sizes with about m rows in all, one of them without any, and rows of none behind them."""
    groups = spec.groups
    assert isinstance(groups, RowGroups)
    first, *others = (round(share * m) for share in SHARES)
    counts = [max(1, first), *others]
    if groups.by == "ids":
        return by_ids(counts, start_of_ids(spec), tail=1)
    return by_ends(counts, groups.alignment, tail=3) if groups.by == "ends" else by_counts(counts, max(counts) + 2)


def dense(spec: KernelSpec) -> KernelSpec:
    """The product of one group."""
    assert spec.groups is not None
    operands = (each for each in spec.operands if each.name != spec.groups.layout)
    alone = tuple(each.replace(box=each.plane, on_device=not each.plane) if each.grouped else each for each in operands)
    return spec.replace(operands=alone, groups=None)


def parts(
    spec: KernelSpec, product: KernelSpec, layout: Layout, n: int, k: int, seed: int, draw: Draw = random_operands
) -> list[Operands]:
    """Operands of each group's own problem; a group without rows draws one, and what groups share is the same."""
    found = [
        draw(product, {"m": max(count, 1), "n": n, "k": k}, seed + group)
        for group, (_, count) in enumerate(layout.spans)
    ]
    return with_shared(spec, found)


def with_shared(spec: KernelSpec, groups: list[Operands]) -> list[Operands]:
    """Every group with the first one's of what a call has one of for all."""
    shared = {each.name: groups[0][each.name] for each in spec.operands if is_shared(spec, each)}
    return [{**group, **shared} for group in groups]


def is_shared(spec: KernelSpec, operand: Operand) -> bool:
    """Whether all groups read the same: it has no axis of groups, nor the one that is shared out."""
    assert spec.groups is not None
    cut = "m" if isinstance(spec.groups, RowGroups) else "k"
    own = operand.grouped or cut in operand.axes or operand.name == spec.groups.layout
    return not own and operand not in spec.outputs


def laid_out(
    spec: KernelSpec,
    layout: Layout,
    groups: Sequence[Operands],
    n: int,
    k: int,
    poison: int = NAN,
    unwritten: int = NAN,
) -> Operands:
    """The groups' operands in one, ``poison`` in inputs where no group is, and outputs full of ``unwritten``."""
    sizes = {"m": layout.rows, "n": n, "k": k, "g": layout.groups}
    assert spec.groups is not None
    found: Operands = {}
    for operand in spec.operands:
        if operand.name == spec.groups.layout:
            found[operand.name] = torch.tensor(layout.given, dtype=torch.int32)
        elif is_shared(spec, operand):
            found[operand.name] = groups[0][operand.name]
        else:
            tensor = room(operand, sizes, unwritten if operand in spec.outputs else poison)
            found[operand.name] = tensor
            if operand not in spec.outputs:
                for group, part in enumerate(groups):
                    rows, given = rows_of(operand, tensor, layout, group), part[operand.name]
                    assert isinstance(given, torch.Tensor)
                    rows.copy_(given if given.shape == rows.shape else given[:0])
    return found


def rows_of(operand: Operand, tensor: torch.Tensor | float, layout: Layout, group: int) -> torch.Tensor:
    """A group's part of an operand."""
    assert isinstance(tensor, torch.Tensor)
    plane = tensor[group] if operand.grouped else tensor
    if "m" not in operand.plane:
        return plane
    start, count = layout.spans[group]
    return plane.narrow(operand.plane.index("m"), start, count)


def stray_bytes(spec: KernelSpec, operand: Operand, output: torch.Tensor, layout: Layout, unwritten: int = NAN) -> int:
    """How many bytes of an output's memory that are of no group have changed, but to 0 where the spec says so."""
    memory = torch.empty(0, dtype=torch.uint8).set_(output.untyped_storage())
    untouched = torch.full_like(memory, unwritten)
    left = torch.empty(0, dtype=output.dtype).set_(
        untouched.untyped_storage(), output.storage_offset(), output.shape, output.stride()
    )
    written = (..., head_columns(operand.heads, output.shape[-1])) if operand.heads else ...
    for group in range(layout.groups):
        rows_of(operand, left, layout, group)[written] = rows_of(operand, output, layout, group)[written]
    cleared = isinstance(spec.groups, RowGroups) and spec.groups.zero_padding and "m" in operand.plane
    for start, count in layout.gaps if cleared else ():
        left.narrow(operand.plane.index("m"), start, count)[written] = 0
    return int((memory != untouched).sum())


def room(operand: Operand, sizes: dict[str, int], byte: int) -> torch.Tensor:
    """A tensor in the operand's memory order, between and behind whose rows there is room, full of one byte."""
    shape = expected_shape(operand, sizes)
    dtype = TORCH_DTYPES[operand.dtype]
    if len(operand.plane) < 2:
        return torch.full((*shape, dtype.itemsize), byte, dtype=torch.uint8).view(dtype)[..., 0]
    outer, inner = shape[-2:] if operand.inner == operand.box[-1] else shape[:-3:-1]
    pitch = max(-(-inner * dtype.itemsize // PITCH), 1) * PITCH
    room = torch.full((*shape[:-2], outer + 1, pitch), byte, dtype=torch.uint8).view(dtype)[..., :outer, :inner]
    return room if operand.inner == operand.box[-1] else room.mT
