"""Problems of groups of rows for tests: layouts, operands full of NaN where no row is, and what a launch must leave.

Every group is a problem of the dense spec, and judged as such; what a launch may not touch is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from reduced import check_reductions, check_reductions_of, reducing

import gemmgen
from gemmgen.commands.groups import (
    NAN,
    Draw,
    Layout,
    by_counts,
    by_ends,
    by_ids,
    laid_out,
    parts,
    rows_of,
    stray_bytes,
)
from gemmgen.commands.inputs import Operands, random_operands
from gemmgen.commands.reference import compare, judged, numbers_of, reference, tolerance
from gemmgen.ir import Bias, DType, Gate, Keep, KernelSpec, Operand, Reduce, Scale

Launch = Callable[[Operands], None]
SENTINEL = 0x5A
"""Byte that outputs hold before a launch."""
__all__ = [
    "NAN", "SENTINEL", "Layout", "Problem", "by_counts", "by_ends", "by_ids", "chained", "check_same_bits", "gated",
    "layout_by", "reduced_every_way", "summed",
]  # fmt: skip


class Problem:
    """Operands of a grouped spec, made from those of the dense one for each group; memory of no row is ``poison``.

    Reductions are judged by the reference or, where it is named, by the fp32 output ``reductions_of``.
    """

    def __init__(
        self,
        dense: KernelSpec,
        spec: KernelSpec,
        layout: Layout,
        n: int,
        k: int,
        seed: int = 0,
        poison: int = NAN,
        draw: Draw = random_operands,
        launch: Launch | None = None,
        reductions_of: str | None = None,
    ) -> None:
        self.launch, self.reductions_of = launch, reductions_of
        self.dense, self.spec, self.layout = dense, spec, layout
        self.sizes = {"m": layout.rows, "n": n, "k": k, "g": layout.groups}
        self.parts = parts(spec, dense, layout, n, k, seed, draw)
        self.operands: Operands = laid_out(spec, layout, self.parts, n, k, poison, SENTINEL)

    def run(self, schedule: str = "early", seed: int = 0, sms: int = 3) -> list[dict[str, torch.Tensor]]:
        """One launch, judged; every group's rows of each output.

        It is a launch on the simulator, whose warnings are refused, unless there is another way to make one.
        """
        outputs = {each.name: _tensor(self.operands[each.name]) for each in self.spec.outputs}
        for output in outputs.values():
            torch.empty(0, dtype=torch.uint8).set_(output.untyped_storage()).fill_(SENTINEL)
        if self.launch is not None:
            self.launch(self.operands)
        else:
            self._simulate(schedule, seed, sms)
        for operand in self.spec.outputs:
            changed = stray_bytes(self.spec, operand, outputs[operand.name], self.layout, SENTINEL)
            assert not changed, f"{self.spec.name}: {changed} bytes of {operand.name} are of no group and were written"
        results = [self._rows_of(group) for group in range(self.layout.groups)]
        for group, (_, count) in enumerate(self.layout.spans):
            if count:
                self._judge(group, results[group])
            else:  # rows are gone, and a reduction of nothing is 0
                reduced = [each.to for each in self.dense.epilogue if isinstance(each, Reduce) and "m" in each.along]
                assert not any(results[group][name].any() for name in reduced), f"{self.spec.name}, group {group}"
        return results

    def _simulate(self, schedule: str, seed: int, sms: int) -> None:
        with gemmgen.simulate(self.spec.arch, schedule=schedule, seed=seed, sms=sms) as simulation:
            gemmgen.op(self.spec)(**self.operands)
        assert not [warning for report in simulation.reports for warning in report.warnings]

    def _rows_of(self, group: int) -> dict[str, torch.Tensor]:
        return {each.name: self.own(each, self.operands[each.name], group).clone() for each in self.spec.outputs}

    def _judge(self, group: int, outputs: dict[str, torch.Tensor]) -> None:
        operands: Operands = {**self.parts[group], **outputs}
        for name in judged(self.dense):
            errors = compare(numbers_of(self.dense, operands, name), reference(self.dense, operands, name))
            allowed = tolerance(self.dense, name)
            assert errors.worst_tile <= allowed, f"{self.spec.name}, group {group}, {name}: {errors}, not {allowed}"
        if self.reductions_of is None:
            check_reductions(outputs, self.dense, operands)
        else:
            check_reductions_of(self.reductions_of, outputs, self.dense)

    def own(self, operand: Operand, tensor: torch.Tensor | float, group: int) -> torch.Tensor:
        """A group's part of an operand."""
        return rows_of(operand, tensor, self.layout, group)


def layout_by(by: str, counts: Sequence[int], unit: int, alignment: int = 1, spare: int = 2) -> Layout:
    """Groups of so many rows, as ``by`` says them: ids at multiples of ``unit``, or matrices with rows to spare."""
    if by == "ids":
        return by_ids(counts, unit, tail=1)
    return by_ends(counts, alignment, tail=3) if by == "ends" else by_counts(counts, max(counts) + spare)


def summed(spec: KernelSpec, first: int = 0) -> KernelSpec:
    """A sum of squares and a largest magnitude for each row, behind the chain's first steps."""
    steps = (Reduce(function="sum_of_squares", along="n", to="squares"), Reduce(function="amax", along="n", to="amax"))
    return reducing(spec, "summed", steps, first)


def reduced_every_way(spec: KernelSpec, first: int = 0, columns: str = "n") -> KernelSpec:
    """Sums and magnitudes of rows, of columns and of everything, behind the chain's first steps; of ``columns``."""
    steps = (
        Reduce(function="sum_of_squares", along="n", to="squares"),
        Reduce(function="sum", along="m", to="sums"),
        Reduce(function="amax", along="m", to="tops"),
        Reduce(function="sum", along="mn", to="total"),
    )
    return reducing(spec, "reduced", steps, first, columns)


def chained(spec: KernelSpec) -> KernelSpec:
    """A factor a row, a bias a column, a second output."""
    row, bias = Operand(name="row", dtype=DType.F32, box=("m",)), Operand(name="bias", dtype=DType.BF16, box=("n",))
    kept = Operand(name="kept", dtype=DType.F32, box=("m", "n"))
    steps = (Scale(by=row.name), Bias(vector=bias.name), Keep(to=kept.name))
    operands = (*spec.operands, row, bias, kept)
    return spec.replace(name=f"{spec.arch}_chained", operands=operands, epilogue=(*steps, *spec.epilogue))


def gated(spec: KernelSpec, layout: str) -> KernelSpec:
    """SwiGLU."""
    d = spec.output.replace(box=("m", "n/2"))
    operands = tuple(d if each.name == d.name else each for each in spec.operands)
    return spec.replace(name=f"{spec.arch}_gated", operands=operands, epilogue=(Gate(layout=layout), *spec.epilogue))


def check_same_bits(runs: Sequence[Sequence[Mapping[str, torch.Tensor]]]) -> None:
    """Every group's outputs are those of the first run."""
    for group in zip(*runs, strict=True):
        for name, first in group[0].items():
            assert all(torch.equal(each[name].view(torch.uint8), first.view(torch.uint8)) for each in group)


def _tensor(value: torch.Tensor | float) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value
