"""Which problems a kernel is run on: ragged sizes of all three axes, those that its operator admits, every pair once.

Asks the operator's own rules what is admitted; knows nothing of architectures.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from planted.inputs import laid_out

import gemmgen
from gemmgen.ir import AnySpec, LayoutSpec
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.memory import check_layouts
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.arguments import expected_shape

M = (1, 17, 128, 129, 300)
N = (16, 24, 40, 136, 264)
K = (32, 96, 160, 512)
K_STEP = 128
"""What k is rounded up to a multiple of where it is refused as it is."""
Sizes = tuple[int, int, int]
ALL: tuple[Sizes, ...] = tuple(itertools.product(M, N, K))
MATRICES: tuple[Sizes, ...] = tuple(itertools.product(sorted({*M, *N}), (0,), K))
"""For layout kernels, whose m stands for the rows of either factor; they have no n."""
AXES = "mnk"


@dataclass(frozen=True)
class Admission:
    """Problems that a kernel's operator takes, and what it says to each of the others."""

    taken: tuple[Sizes, ...]
    refused: dict[Sizes, str]


def admission(spec: AnySpec) -> Admission:
    """Ask the operator of a spec about each problem; one that it refuses is asked about again with k rounded up."""
    answers = {sizes: _refusal(spec, sizes) for sizes in (MATRICES if isinstance(spec, LayoutSpec) else ALL)}
    padded = sorted({(m, n, -(-k // K_STEP) * K_STEP) for (m, n, k), answer in answers.items() if answer})
    more = [sizes for sizes in padded if sizes not in answers and _refusal(spec, sizes) is None]
    taken = [sizes for sizes, answer in answers.items() if answer is None]
    return Admission((*more, *taken), {sizes: answer for sizes, answer in answers.items() if answer})


def _refusal(spec: AnySpec, sizes: Sizes) -> str | None:
    """What the checks of a call say, in their order: shapes against each other, then where tensors lie."""
    try:
        _check(spec, sizes)
    except ValueError as error:
        return str(error)
    return None


def _check(spec: AnySpec, sizes: Sizes) -> None:
    named = dict(zip(AXES, sizes, strict=True))
    tensors: dict[str, torch.Tensor] = {}
    for operand in spec.operands:
        if not operand.is_scalar:
            zeros = torch.zeros(expected_shape(operand, named), dtype=TORCH_DTYPES[operand.dtype])
            tensors[operand.name] = laid_out(zeros, operand)
    gemmgen.op(spec).dispatcher.check(tuple(tensors.values()))
    check_layouts(kernel_of(spec).plan, tensors)


def covering(problems: Sequence[Sizes]) -> list[Sizes]:
    """The last problem and, greedily, as few others as bring every pair of two axes' values; always the same ones."""
    chosen = list(problems[-1:])
    left = {pair for sizes in problems for pair in pairs(sizes)}.difference(*map(pairs, chosen))
    while left:
        best = max(problems, key=lambda sizes: (len(left & pairs(sizes)), -problems.index(sizes)))
        chosen.append(best)
        left -= pairs(best)
    return chosen


def pairs(sizes: Sizes) -> set[tuple[tuple[str, int], ...]]:
    """The three pairs of sizes that a problem has."""
    return set(itertools.combinations(zip(AXES, sizes, strict=True), 2))


@dataclass(frozen=True)
class Choice:
    """How many problems a kernel is run on: so few, every one, or as many as bring every pair of sizes."""

    few: int = 0
    every: bool = False

    def problems(self, taken: Sequence[Sizes], place: int) -> list[Sizes]:
        """Of those that are taken; the few ones go on, kernel by kernel, where those of the place before ended."""
        if self.every:
            return list(taken)
        pairwise = covering(taken)
        few = min(self.few, len(pairwise))
        return [pairwise[(place * few + each) % len(pairwise)] for each in range(few)] if few else pairwise


def values(problems: Sequence[Sizes]) -> list[Sizes]:
    """A few problems in which every value of every axis occurs: what there is time for beside other tests."""
    left = {each for sizes in problems for each in zip(AXES, sizes, strict=True)}
    chosen: list[Sizes] = []
    while left:
        fresh = {sizes: left & set(zip(AXES, sizes, strict=True)) for sizes in problems}
        best = max(problems, key=lambda sizes: (len(fresh[sizes]), -problems.index(sizes)))
        chosen.append(best)
        left -= fresh[best]
    return chosen
