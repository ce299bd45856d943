"""Problems of groups of rows: a dense spec's, once for every group, between rows of no group that hold NaN.

Sums are exact, so that a single bit shows; outputs are full of a sentinel, which must stay where no group has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import reference
import torch
from planted.inputs import PADDING, exact, laid_out

import gemmgen
from gemmgen.catalog.grouped import LAYOUT, in_row_groups
from gemmgen.ir import DType, KernelSpec, Operand
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.arguments import expected_shape

SCALAR = 0.5
"""What every host scalar is."""
SENTINEL = 0xA5
"""Every byte of an output before the launch."""
NAN = 0xFF
"""Every byte of rows of no group, and of scales that no element has."""


@dataclass(frozen=True)
class Layout:
    """Where groups lie: of so many rows of a matrix, those of each group, and what the device reads of them."""

    by: str
    rows: int
    spans: tuple[slice, ...]
    numbers: torch.Tensor
    alignment: int = 1

    def places(self) -> list[slice]:
        """Rows of each group among those of all matrices, one matrix behind the other."""
        own = self.rows if self.by == "counts" else 0
        return [slice(span.start + own * g, span.stop + own * g) for g, span in enumerate(self.spans)]


def laid(by: str, counts: Sequence[int], alignment: int = 1, behind: int = 3, rows: int | None = None) -> Layout:
    """Groups of so many rows, as many more ``behind`` the last one as asked, or behind the largest by counts."""
    spans, end = [], 0
    for count in counts:
        begin = 0 if by == "counts" else -(-end // alignment) * alignment
        end = begin + count
        spans.append(slice(begin, end))
    rows = rows or max(span.stop for span in spans) + behind
    numbers = torch.tensor(counts if by == "counts" else [span.stop for span in spans])
    if by == "ids":
        numbers = torch.full((rows,), -1)
        for group, span in enumerate(spans):
            numbers[span] = group
    return Layout(by, rows, tuple(spans), numbers.int(), alignment if by == "ends" else 1)


@dataclass(frozen=True)
class Grouped:
    """A dense spec on groups that lie as said; ``filled`` is every byte of rows of no group."""

    dense: KernelSpec
    layout: Layout
    n: int
    k: int
    filled: int = NAN
    zero_padding: bool = False

    @cached_property
    def spec(self) -> KernelSpec:
        return in_row_groups(self.dense, self.layout.by, self.layout.alignment, self.zero_padding)

    @property
    def groups(self) -> int:
        return len(self.layout.spans)

    @property
    def own(self) -> bool:
        """Whether each group has rows in a matrix of its own."""
        return self.layout.by == "counts"

    @property
    def all_rows(self) -> int:
        return self.layout.rows * (self.groups if self.own else 1)

    @cached_property
    def values(self) -> dict[str, torch.Tensor]:
        """Inputs of all groups, rows one below the other and columns side by side."""
        sizes = {"m": self.all_rows, "n": self.n * self.groups, "k": self.k}
        inputs = (each for each in self.dense.operands if each not in self.dense.outputs and not each.is_scalar)
        return {each.name: _values(each, sizes, self.groups) for each in inputs}

    def of_group(self, group: int) -> dict[str, torch.Tensor]:
        """The inputs of a group alone, as the dense kernel has them."""
        columns = slice(group * self.n, (group + 1) * self.n)
        found = {}
        for name, values in self.values.items():
            axes = self.dense.operand(name).axes
            picked = values if axes else values[group]
            for axis, part in (("m", self.layout.places()[group]), ("n", columns)):
                if axis in axes:
                    picked = _cut(picked, axes.index(axis), part)
            found[name] = picked
        return found

    def inputs(self) -> dict[str, torch.Tensor]:
        """What the grouped op is called with, but for outputs and scalars."""
        tensors = {name: self._assembled(name) for name in self.values}
        codes = {name for name in tensors if self.dense.operand(name).dtype == DType.E2M1}
        return {LAYOUT: self.layout.numbers, **tensors, **{name: tensors[name].view(torch.int8) for name in codes}}

    def _assembled(self, name: str) -> torch.Tensor:
        operand, values = self.dense.operand(name), self.values[name]
        if not operand.axes:
            return values
        if "m" not in operand.axes:
            return _stacked([self.of_group(group)[name] for group in range(self.groups)], operand)
        values = values.clone()
        bytes_of = values.view(torch.uint8).view(*values.shape, -1) if values.dim() == 1 else _rows(values, operand)
        bytes_of[~self.taken] = PADDING.get(operand.dtype, self.filled) if self.filled else 0
        if not self.own:
            return _laid_out(values, operand)
        axis = operand.axes.index("m")
        parts = [slice(group * self.layout.rows, (group + 1) * self.layout.rows) for group in range(self.groups)]
        return _stacked([_cut(values, axis, part) for part in parts], operand)

    @property
    def taken(self) -> torch.Tensor:
        """Of all rows, which are of a group."""
        found = torch.zeros(self.all_rows, dtype=torch.bool)
        for place in self.layout.places():
            found[place] = True
        return found

    def poisoned(self) -> dict[str, torch.Tensor]:
        """Outputs full of the sentinel, with more of it behind every row."""
        sizes = {"m": self.layout.rows, "n": self.n, "k": self.k}
        found = {}
        for operand in self.dense.outputs:
            shape = expected_shape(operand, sizes)
            values = torch.full((*shape, _size(operand)), SENTINEL, dtype=torch.uint8)
            values = values.view(TORCH_DTYPES[operand.dtype]).view(shape)
            parts = [values] * (self.groups if self.own else 1)
            found[operand.name] = _stacked(parts, operand, 16) if self.own else laid_out(values, operand, 16, SENTINEL)
        return found

    def run(self, schedule: str = "early", sms: int = 3, layout: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Outputs of a launch, which the simulator has nothing to say of; with another layout than its own if given."""
        outputs, scalars = self.poisoned(), {each.name: SCALAR for each in self.spec.operands if each.is_scalar}
        inputs = self.inputs() if layout is None else {**self.inputs(), LAYOUT: layout}
        with gemmgen.simulate(self.spec.arch, schedule=schedule, sms=sms) as simulation:
            gemmgen.op(self.spec)(**inputs, **scalars, **outputs)
        assert [warning for report in simulation.reports for warning in report.warnings] == []
        return outputs

    def expected(self, group: int) -> torch.Tensor:
        """What a group's rows of the output are, bit for bit: the float64 product of its inputs, rounded once."""
        scalars = {each.name: SCALAR for each in self.dense.operands if each.is_scalar}
        return reference.exact_result(self.dense, self.of_group(group), scalars)

    def judge(self, outputs: dict[str, torch.Tensor]) -> None:
        """Rows of groups are exact, and nothing else has changed."""
        rows = self.flat(outputs[self.dense.output.name])
        for group, place in enumerate(self.layout.places()):
            if place.start < place.stop:
                assert torch.equal(rows[place], self.expected(group)), f"{self.spec.name}: group {group} is wrong"
        self.judge_rest(outputs)

    def judge_rest(self, outputs: dict[str, torch.Tensor], taken: torch.Tensor | None = None) -> None:
        """Nothing outside the rows of groups, or outside those that are taken, has changed."""
        taken = self.taken if taken is None else taken
        for name, output in outputs.items():
            left = output.clone()
            memory = torch.empty(0, dtype=output.dtype).set_(output.untyped_storage()).view(torch.uint8)
            rows = self.flat(output)
            beside = memory.numel() - rows.numel() * rows.element_size()
            inside = int((self.flat(left).contiguous().view(torch.uint8) == SENTINEL).sum())
            assert int((memory == SENTINEL).sum()) - inside == beside, f"{name}: bytes beside the output are written"
            untouched = rows[~taken].contiguous().view(torch.uint8) == SENTINEL
            assert bool(untouched.all()), f"{name}: rows of no group are written"

    def flat(self, output: torch.Tensor) -> torch.Tensor:
        """Rows of all matrices, one below the other."""
        return output.flatten(0, 1) if self.own else output


def _values(operand: Operand, sizes: dict[str, int], groups: int) -> torch.Tensor:
    """Exact ones; of a number on the device, one for each group."""
    if operand.box:
        return exact(operand, sizes) if len(operand.box) > 1 else exact(_row(operand), {**sizes, "k": 1})[:, 0].clone()
    return torch.tensor([0.5, 2.0, 1.0, 0.25])[torch.arange(groups) % 4].to(TORCH_DTYPES[operand.dtype])


def _row(operand: Operand) -> Operand:
    """A vector as a matrix with one column."""
    return operand.replace(box=(*operand.box, "k"), major="k")


def _size(operand: Operand) -> int:
    return torch.empty(0, dtype=TORCH_DTYPES[operand.dtype]).element_size()


def _cut(values: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    return values[part] if axis == 0 else values[:, part]


def _rows(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    """The bytes of a matrix by its rows of m."""
    by_rows = values if operand.axes[0] == "m" else values.T
    size = values.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())
    strides = tuple(stride * size for stride in by_rows.stride())
    return whole.as_strided((*by_rows.shape, size), (*strides, 1), values.storage_offset() * size)


def _laid_out(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    return laid_out(values, operand) if values.dim() == 2 else values.clone()


def _stacked(parts: list[torch.Tensor], operand: Operand, extra: int = 0) -> torch.Tensor:
    """A matrix or vector for each group, a whole number of 16 bytes apart."""
    if parts[0].dim() == 1:
        return torch.stack(parts)
    each = [laid_out(part, operand, extra, SENTINEL if extra else NAN) for part in parts]
    memory = torch.stack([torch.empty(0, dtype=part.dtype).set_(part.untyped_storage()) for part in each])
    return memory.as_strided((len(parts), *each[0].shape), (memory.shape[1], *each[0].stride()))
