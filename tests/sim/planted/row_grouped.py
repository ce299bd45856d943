"""Subjects whose rows are cut into groups, each with factors of its own; what lies between groups is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import reference
import torch
from grouped import SENTINEL, Layout, Problem, layout_by

from gemmgen.catalog.grouped import in_row_groups
from gemmgen.commands.groups import start_of_ids
from gemmgen.commands.inputs import Operands
from gemmgen.ir import KernelSpec

from .inputs import exact
from .kernels import Subject, WrongResult

NOWHERE = Layout((), 0, ())


@dataclass(frozen=True)
class RowsSubject(Subject):
    """``spec`` is what became of ``dense`` for groups of rows that lie as ``layout`` says."""

    dense: KernelSpec | None = None
    layout: Layout = NOWHERE

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "g": self.layout.groups}

    @cached_property
    def problem(self) -> Problem:
        """Operands of all groups, full of NaN where no row is, and outputs full of a sentinel."""
        assert self.dense is not None
        return Problem(self.dense, self.spec, self.layout, self.n, self.k, draw=_exact_operands)

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        given = {name: value for name, value in self.problem.operands.items() if isinstance(value, torch.Tensor)}
        del given[self.spec.output.name]
        return given

    @cached_property
    def expected(self) -> torch.Tensor:
        """The only right output: each group's rows as float64 says, rounded once, and the sentinel elsewhere."""
        output = self._poisoned()
        for group, (_, count) in enumerate(self.layout.spans):
            if count:
                part = {k: v for k, v in self.problem.parts[group].items() if isinstance(v, torch.Tensor)}
                self.problem.own(self.spec.output, output, group).copy_(
                    reference.exact_result(self.problem.dense, part)
                )
        return output

    def _poisoned(self) -> torch.Tensor:
        output = self.problem.operands[self.spec.output.name]
        assert isinstance(output, torch.Tensor)
        whole = torch.full((output.untyped_storage().nbytes(),), SENTINEL, dtype=torch.uint8).view(output.dtype)
        return whole.as_strided(output.shape, output.stride())

    def _judge(self, output: torch.Tensor) -> None:
        found, right = (torch.empty(0, dtype=torch.int16).set_(x.untyped_storage()) for x in (output, self.expected))
        if wrong := int((found != right).sum()):
            raise WrongResult(f"{wrong} elements differ from the exact result, or from what nobody may touch")


def _exact_operands(dense: KernelSpec, sizes: dict[str, int], seed: int) -> Operands:
    """Each group's own, except for outputs."""
    inputs = (each for each in dense.operands if each not in dense.outputs)
    return {each.name: exact(each.replace(name=f"{each.name}_{seed}"), sizes) for each in inputs}


def of_row_groups(
    dense: KernelSpec, by: str, counts: Sequence[int], n: int, k: int, alignment: int = 1, sms: int = 1
) -> RowsSubject:
    """A subject with groups of so many rows."""
    spec = in_row_groups(dense, by, alignment)
    layout = layout_by(by, counts, start_of_ids(spec), alignment, spare=3)
    return RowsSubject(spec, layout.rows, n, k, sms, dense, layout)
