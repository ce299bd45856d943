"""Subjects whose k is cut into groups, each with an output of its own; what lies between groups is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from gemmgen.catalog.grouped import LAYOUT
from gemmgen.ir import KernelSpec, KGroups, Operand, split_axis

from .inputs import exact, laid_out
from .kernels import Subject

Span = tuple[int, int]


@dataclass(frozen=True)
class KSubject(Subject):
    """``spans`` are where each group begins and ends."""

    spans: tuple[Span, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "g": len(self.spans)}

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """NaN where no group has anything of k, and C of each group its own."""
        given = [each for each in self.spec.operands if each not in self.spec.outputs and not each.is_scalar]
        return {each.name: self._layout() if each.name == LAYOUT else self._exact(each) for each in given}

    def _layout(self) -> torch.Tensor:
        groups = self.spec.groups
        assert groups is not None
        return torch.tensor([end - (begin if groups.by == "counts" else 0) for begin, end in self.spans]).int()

    def _exact(self, operand: Operand) -> torch.Tensor:
        if operand.grouped:
            one = operand.replace(box=operand.plane)
            return torch.stack([exact(one, self.sizes) * (group + 1) for group in range(len(self.spans))])
        if operand.ragged:
            return self._words(operand)
        values = exact(operand, self.sizes)
        if self._apart and "/" not in "".join(operand.box):
            values.view(-1)[len(values) * self.spans[-1][1] :] = torch.nan
            return values
        at, per = next((at, split_axis(axis)[1]) for at, axis in enumerate(operand.box) if split_axis(axis)[0] == "k")
        gaps = zip([0, *(end for _, end in self.spans)], [*(begin for begin, _ in self.spans), self.k], strict=True)
        for begin, end in gaps:
            values.transpose(0, at)[-(-begin // per) : -(-end // per)] = torch.nan
        return values

    def _words(self, operand: Operand) -> torch.Tensor:
        """Words of every group's scales, one group behind the other; bytes past its end, and a word more, are NaN."""
        counts = [end - begin for begin, end in self.spans]
        of_each = [exact(operand, {**self.sizes, "k": count}) for count in counts if count]
        rows = self.sizes[operand.axes[0]]
        return laid_out(torch.cat([*of_each, torch.full((rows, 1), -1)], 1).int(), operand)

    @cached_property
    def expected(self) -> torch.Tensor:
        """The only right outputs: what float64 says, rounded once."""
        sums = torch.stack([self.sums(*span) for span in self.spans])
        if "c" in self.inputs:
            sums += self.inputs["c"].double()
        return sums.to(torch.float32 if self.spec.output.dtype == "f32" else torch.bfloat16)

    def sums(self, begin: int, end: int) -> torch.Tensor:
        """A group's product in float64."""
        return self._factor("a", begin, end) @ self._factor("b", begin, end).T

    def _scales(self, words: torch.Tensor, span: int, begin: int, end: int) -> torch.Tensor:
        """A group's scales, one for every element of k."""
        first = sum(-(-(at_end - at) // span) for at, at_end in self.spans if at_end <= begin)
        of_group = words[:, first : first + -(-(end - begin) // span)]
        codes = torch.stack([of_group >> 8 * byte & 0xFF for byte in range(4)], 2).flatten(1)
        return (2.0 ** (codes.double() - 127)).repeat_interleave(span // 4, 1)[:, : end - begin]

    @property
    def _apart(self) -> bool:
        return isinstance(self.spec.groups, KGroups) and self.spec.groups.apart

    def _factor(self, name: str, begin: int, end: int) -> torch.Tensor:
        """A group's part of a factor, its scales applied."""
        factor, scales = self.inputs[name].double(), self.inputs.get(f"sf{name}")
        rows = len(factor)
        part = factor.flatten()[rows * begin : rows * end].view(rows, -1) if self._apart else factor[:, begin:end]
        if scales is None:
            return part
        operand = self.spec.operand(f"sf{name}")
        if operand.ragged:
            return part * self._scales(scales, split_axis(operand.outer)[1], begin, end)
        return part * scales[:, begin // 128 : -(-end // 128)].double().repeat_interleave(128, 1)[:, : end - begin]

    def _poisoned(self) -> torch.Tensor:
        """Outputs of NaN with NaN around each."""
        heads, chunk = self.spec.output.heads, 16 // self.expected.element_size()
        columns = heads.columns(self.n) if heads else self.n
        memory = torch.full((len(self.spans), self.m + 1, -(-columns // chunk) * chunk + chunk), torch.nan)
        return memory.to(self.expected.dtype)[:, : self.m, :columns]


def of_k_groups(spec: KernelSpec, counts: tuple[int, ...], m: int, n: int, sms: int = 1) -> KSubject:
    """A subject with groups of so many ``counts``, and k that is nobody's behind the last."""
    groups, spans, end = spec.groups, [], 0
    assert isinstance(groups, KGroups)
    for count in counts:
        begin = -(-end // groups.alignment) * groups.alignment
        end = begin + count
        spans.append((begin, end))
    return KSubject(spec, m, n, end + (128 if groups.apart else 8), sms, spans=tuple(spans))
