"""Kernels of groups of k on random input: every group is a problem of the dense product, with an output of its own.

What lies between groups and behind the last holds NaN where its type has one, so that reading it shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemmgen.commands import groups
from gemmgen.commands.groups import NAN, SHARES, Layout, is_shared, with_shared
from gemmgen.commands.inputs import Operands, lay_out, random_operands
from gemmgen.ir import KernelSpec, KGroups, Operand, split_axis

STEP = 32
"""Elements of k that scales in words have multiples of."""
TAIL = 8
"""Elements of k behind the last group, or as many as a group of matrices of its own has multiples of."""


@dataclass(frozen=True)
class KLayout:
    """What the device reads, each group's first element of k and count of them, and the extent of k."""

    given: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    k: int

    def outputs(self, m: int) -> Layout:
        """Where outputs lie: every group has a whole matrix."""
        return Layout(self.given, m, ((0, m),) * len(self.spans), own=True)


def drawn(spec: KernelSpec, k: int) -> KLayout:
    """Groups of uneven sizes with about k in all, one of them without any, and some of none behind them."""
    shared = spec.groups
    assert isinstance(shared, KGroups)
    unit = shared.alignment if shared.apart else STEP if any(each.ragged for each in spec.operands) else 1
    spans, end = [], 0
    for share in SHARES:
        begin = -(-end // shared.alignment) * shared.alignment
        count = round(share * k / unit) * unit
        spans.append((begin, count))
        end = begin + count
    given = tuple(count if shared.by == "counts" else begin + count for begin, count in spans)
    return KLayout(given, tuple(spans), end + (unit if shared.apart else TAIL))


def dense(spec: KernelSpec) -> KernelSpec:
    """The product of one group."""
    alone = groups.dense(spec)
    return alone.replace(operands=tuple(each.replace(ragged=False) for each in alone.operands))


def parts(spec: KernelSpec, product: KernelSpec, layout: KLayout, m: int, n: int, seed: int) -> list[Operands]:
    """Operands of each group's own problem; what groups share is the same for all."""
    found = [
        random_operands(product, {"m": m, "n": n, "k": count}, seed + group)
        for group, (_, count) in enumerate(layout.spans)
    ]
    return with_shared(spec, found)


def laid_out(spec: KernelSpec, layout: KLayout, own: list[Operands], m: int, n: int) -> Operands:
    """The groups' operands in one; outputs are full of NaN, or hold what is added to."""
    sizes = {"m": m, "n": n, "k": layout.k, "g": len(layout.spans)}
    assert isinstance(spec.groups, KGroups)
    found: Operands = {}
    for operand in spec.operands:
        given = [part[operand.name] for part in own if operand.name in part]
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        if operand.name == spec.groups.layout:
            found[operand.name] = torch.tensor(layout.given, dtype=torch.int32)
        elif is_shared(spec, operand):
            found[operand.name] = given[0]
        elif operand.ragged:
            along = _along_k(operand)
            rows = tensors[0].shape[1 - along]
            behind = tensors[0].new_full((rows, 1) if along else (1, rows), -1)
            found[operand.name] = lay_out(torch.cat([*tensors, behind], along), operand)
        elif spec.groups.apart and operand.box[-1] == "k":
            found[operand.name] = _one_behind_the_other(tensors, layout)
        else:
            found[operand.name] = _in_one(spec, operand, tensors, layout, sizes)
    return found


def _one_behind_the_other(matrices: list[torch.Tensor], layout: KLayout) -> torch.Tensor:
    """Every group's [rows, k] by itself in memory, as a matrix of all k."""
    rows = matrices[0].shape[0]
    room = torch.full((rows * layout.k,), NAN, dtype=torch.uint8).view(matrices[0].dtype)
    for matrix, (begin, count) in zip(matrices, layout.spans, strict=True):
        room[rows * begin : rows * (begin + count)] = matrix.flatten()
    return room.view(rows, layout.k)


def _in_one(
    spec: KernelSpec, operand: Operand, tensors: list[torch.Tensor], layout: KLayout, sizes: dict[str, int]
) -> torch.Tensor:
    """A matrix of all groups, each at its place along k; or one for every group, where k is none of its axes."""
    room = groups.room(operand, sizes, NAN)
    for group, (tensor, (begin, count)) in enumerate(zip(tensors, layout.spans, strict=True)):
        if operand.grouped:
            if operand not in spec.outputs or spec.accumulates:
                room[group].copy_(tensor)
            continue
        along = _along_k(operand)
        per = split_axis(operand.box[along])[1]
        room.narrow(along, begin // per, -(-count // per)).copy_(tensor)
    return room


def _along_k(operand: Operand) -> int:
    """Which of an operand's dimensions k is."""
    return operand.axes.index("k")
