"""Problems of groups of rows for tests: layouts, operands full of NaN where no row is, and what a launch must leave.

Every group is a problem of the dense spec, and judged as such; what a launch may not touch is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import gemmgen
from gemmgen.catalog.grouped import LAYOUT
from gemmgen.commands.inputs import Operands, random_operands
from gemmgen.commands.reference import compare, judged, numbers_of, reference, tolerance
from gemmgen.ir import KernelSpec, Operand, RowGroups
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.arguments import expected_shape

NAN, SENTINEL = 0xFF, 0x5A
"""Bytes of what no row owns: NaN in every type that has one, and what outputs hold before a launch."""
PITCH = 32
"""Bytes that rows start at multiples of."""


@dataclass(frozen=True)
class Layout:
    """Where groups lie: what the device reads, the extent of m, and each group's first row and count of rows.

    ``own`` says that every group has a matrix of so many rows.
    """

    given: tuple[int, ...]
    rows: int
    spans: tuple[tuple[int, int], ...]
    own: bool = False
    gaps: tuple[tuple[int, int], ...] = ()
    """First row and count of those between a group's and the next one's."""

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


class Problem:
    """Operands of a grouped spec, made from those of the dense one for each group; memory of no row is ``poison``."""

    def __init__(
        self,
        dense: KernelSpec,
        spec: KernelSpec,
        layout: Layout,
        n: int,
        k: int,
        seed: int = 0,
        poison: int = NAN,
        draw: Callable[[KernelSpec, dict[str, int], int], Operands] = random_operands,
    ) -> None:
        self.dense, self.spec, self.layout = dense, spec, layout
        self.sizes = {"m": layout.rows, "n": n, "k": k, "g": layout.groups}
        self.parts = [
            draw(dense, {"m": max(count, 1), "n": n, "k": k}, seed + group)
            for group, (_, count) in enumerate(layout.spans)
        ]
        for part in self.parts:  # one number for all
            part.update({each.name: self.parts[0][each.name] for each in dense.operands if each.is_scalar})
        self.operands: Operands = {
            each.name: self._assembled(each, SENTINEL if each in spec.outputs else poison) for each in spec.operands
        }

    def run(self, schedule: str = "early", seed: int = 0, sms: int = 3) -> list[dict[str, torch.Tensor]]:
        """One launch, judged; every group's rows of each output. Warnings of the simulator are refused."""
        outputs = {each.name: _tensor(self.operands[each.name]) for each in self.spec.outputs}
        for output in outputs.values():
            _storage(output).fill_(SENTINEL)
        with gemmgen.simulate(self.spec.arch, schedule=schedule, seed=seed, sms=sms) as simulation:
            gemmgen.op(self.spec)(**self.operands)
        assert not [warning for report in simulation.reports for warning in report.warnings]
        self._judge_the_rest(outputs)
        results = [self._rows_of(group) for group in range(self.layout.groups)]
        for group, (_, count) in enumerate(self.layout.spans):
            if count:
                self._judge(group, results[group])
        return results

    def _rows_of(self, group: int) -> dict[str, torch.Tensor]:
        return {each.name: self.own(each, self.operands[each.name], group).clone() for each in self.spec.outputs}

    def _judge(self, group: int, outputs: dict[str, torch.Tensor]) -> None:
        operands: Operands = {**self.parts[group], **outputs}
        for name in judged(self.dense):
            errors = compare(numbers_of(self.dense, operands, name), reference(self.dense, operands, name))
            allowed = tolerance(self.dense, name)
            assert errors.worst_tile <= allowed, f"{self.spec.name}, group {group}, {name}: {errors}, not {allowed}"

    def _judge_the_rest(self, outputs: dict[str, torch.Tensor]) -> None:
        """Nothing but the rows of groups has changed, and those between them to 0 where the spec says so."""
        groups = self.spec.groups
        gaps = self.layout.gaps if isinstance(groups, RowGroups) and groups.zero_padding else ()
        for operand in self.spec.outputs:
            output = outputs[operand.name]
            untouched = torch.full_like(_storage(output), SENTINEL)
            left = torch.empty(0, dtype=output.dtype).set_(
                untouched.untyped_storage(), output.storage_offset(), output.shape, output.stride()
            )
            for group in range(self.layout.groups):
                self.own(operand, left, group).copy_(self.own(operand, output, group))
            for start, count in gaps if operand == self.spec.output else ():
                left.narrow(operand.plane.index("m"), start, count).view(torch.uint8).zero_()
            changed = int((_storage(output) != untouched).sum())
            assert not changed, f"{self.spec.name}: {changed} bytes of {operand.name} are of no group and were written"

    def _assembled(self, operand: Operand, poison: int) -> torch.Tensor | float:
        if operand.name == LAYOUT:
            return torch.tensor(self.layout.given, dtype=torch.int32)
        if operand.is_scalar:
            return self.parts[0][operand.name]
        tensor = _room(operand, self.sizes, poison)
        if operand not in self.spec.outputs:
            for group, part in enumerate(self.parts):
                rows = self.own(operand, tensor, group)
                given = _tensor(part[operand.name])
                rows.copy_(given if given.shape == rows.shape else given[:0])  # a group without rows has drawn one
        return tensor

    def own(self, operand: Operand, tensor: torch.Tensor | float, group: int) -> torch.Tensor:
        """A group's part of an operand."""
        plane = _tensor(tensor)[group] if operand.grouped else _tensor(tensor)
        if "m" not in operand.plane:
            return plane
        start, count = self.layout.spans[group]
        return plane.narrow(operand.plane.index("m"), start, count)


def _room(operand: Operand, sizes: dict[str, int], byte: int) -> torch.Tensor:
    """A tensor in the operand's memory order, between and behind whose rows there is room, full of one byte."""
    shape = expected_shape(operand, sizes)
    dtype = TORCH_DTYPES[operand.dtype]
    if len(operand.plane) < 2:
        return torch.full((*shape, dtype.itemsize), byte, dtype=torch.uint8).view(dtype)[..., 0]
    outer, inner = shape[-2:] if operand.inner == operand.box[-1] else shape[:-3:-1]
    pitch = max(-(-inner * dtype.itemsize // PITCH), 1) * PITCH
    room = torch.full((*shape[:-2], outer + 1, pitch), byte, dtype=torch.uint8).view(dtype)[..., :outer, :inner]
    return room if operand.inner == operand.box[-1] else room.mT


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _tensor(value: torch.Tensor | float) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value
