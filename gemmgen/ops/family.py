"""The kernels that could serve a problem, what the rule says each costs, and the one that is taken.

Knows specs, epilogues and what can be lowered; tiles, rules and measured entries are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from gemmgen.catalog import PairShape, Shape, WarpShape, with_usual_scales
from gemmgen.ir import Epilogue, Gate, KernelSpec, Multiplier, RowGroups
from gemmgen.ir.node import said
from gemmgen.ops.admission import begun_alike, in_few_ctas, left_of
from gemmgen.ops.cost import Cost
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.mk_alignment import get_mk_alignment_for_contiguous_layout
from gemmgen.ops.tuned import Measured

S = TypeVar("S", Shape, PairShape, WarpShape)
Last = Callable[[KernelSpec], KernelSpec]
ONLY_SWAPPED = (
    "; groups start at multiples that only swapped tiles divide, so set_mk_alignment_for_contiguous_layout(128) and "
    "pad groups to it, or pass their ends"
)
"""The way out where row ids leave no other tiles."""
ONLY_SHARED = (
    "use_deterministic_algorithms: is True, and CTAs share K in every tile that serves this problem; pad its rows, or "
    "set it to False"
)


def as_it_is(spec: KernelSpec) -> KernelSpec:
    """No change."""
    return spec


@dataclass(frozen=True)
class Candidate:
    """A kernel, and what the problem costs with it."""

    spec: KernelSpec
    product: str
    """Name of the kernel with the product's own cast and store: that of ``spec``, unless an epilogue is behind it."""
    cost: Cost

    @property
    def names(self) -> tuple[str, ...]:
        """What a tuned file may call it."""
        return self.spec.name, with_usual_scales(self.spec.name), self.product


@dataclass(frozen=True)
class Selection:
    """Every candidate in the catalog's order, and the index of the one taken."""

    candidates: tuple[Candidate, ...]
    index: int
    measured: Measured | None = None
    """The entry of a tuned file that decided, where the rule did not."""

    @property
    def picked(self) -> Candidate:
        """The candidate taken."""
        return self.candidates[self.index]

    @classmethod
    def of(cls, candidates: tuple[Candidate, ...], entries: Iterable[Measured] = ()) -> Selection:
        """The kernel of the first entry whose kernel is among the candidates; without one, the cheapest."""
        for each in entries:
            for index, candidate in enumerate(candidates):
                if each.entry.kernel in candidate.names:
                    return cls(candidates, index, each)
        return cls(candidates, min(range(len(candidates)), key=lambda index: candidates[index].cost.key))


@dataclass(frozen=True)
class Family(Generic[S]):
    """The tiles that may serve a problem, what each costs, and the kernel of each."""

    shapes: tuple[S, ...]
    cost: Callable[[S], Cost]
    make: Callable[[S], KernelSpec]
    fused: tuple[S, ...] = ()
    """The tiles as they are with another epilogue, where that differs."""
    others: tuple[S, ...] = ()
    """Tiles for epilogues that fit none of those, or none of as few CTAs as the process's settings leave."""
    last: Last = as_it_is
    """What becomes of a kernel with its epilogue; the same function for the same change."""
    beside: bool = False
    """Whether others are compared with those that an epilogue does fit."""

    def candidates(self, epilogue: Epilogue | None) -> tuple[Candidate, ...]:
        """A kernel for each tile, with another epilogue if there is one."""
        if epilogue is None:
            shapes = left_of(self.shapes, self.make)
        else:
            shapes = self._admitting(self.fused or self.shapes, epilogue)
            if self.beside or not in_few_ctas(shapes, self.make):
                shapes += self._admitting(tuple(each for each in self.others if each not in shapes), epilogue)
            shapes = left_of(shapes, self.make)
            shapes = begun_alike(shapes, lambda shape: kernel_of(self._spec(shape, epilogue)).plan)
        if not shapes:
            raise ValueError(self._nothing_fits(epilogue))
        return tuple(self._candidate(shape, epilogue) for shape in shapes)

    def _nothing_fits(self, epilogue: Epilogue | None) -> str:
        usual = next((shape for shape in self.shapes if not shape.swap), None)
        first = None if epilogue is None else _refusal(self.make(usual or self.shapes[0]), epilogue, self.last)
        if epilogue is None or first is None:
            return ONLY_SHARED
        if refused := _of_a_gate(self.last(self.make(usual or self.shapes[0])), epilogue):
            return refused
        return f"epilogue {epilogue.name!r} fits no tile of this operator: {first}{'' if usual else ONLY_SWAPPED}"

    def _candidate(self, shape: S, epilogue: Epilogue | None) -> Candidate:
        return Candidate(self._spec(shape, epilogue), self.make(shape).name, self.cost(shape))

    def _spec(self, shape: S, epilogue: Epilogue | None) -> KernelSpec:
        product = self.make(shape)
        return self.last(product) if epilogue is None else fused(product, epilogue, self.last)

    def _admitting(self, shapes: tuple[S, ...], epilogue: Epilogue) -> tuple[S, ...]:
        """The tiles that the epilogue can be lowered for."""
        return tuple(shape for shape in shapes if _refusal(self.make(shape), epilogue, self.last) is None)


def _of_a_gate(product: KernelSpec, epilogue: Epilogue) -> str | None:
    """Why a gate fits no tile, if that is for what a call states: specs speak of fields that no caller has set."""
    gate = next((step for step in epilogue.steps if isinstance(step, Gate)), None)
    body, groups = product.math.body, product.groups
    assert isinstance(body, Multiplier)
    if gate is None:
        return None
    if gate.layout == "halves" and product.operand(body.b).inner != "k":
        return (
            "b: is contiguous along n, and gate is 'halves', whose rows of b are brought together one by one; pass b "
            "contiguous along k, as b.contiguous() is, or with rows of gate and up in turn, 8 of each, and gate "
            "'interleaved'"
        )
    if body.swap_ab and isinstance(groups, RowGroups) and groups.by == "ids":
        return (
            "grouped_layout: has a group for every row, and groups start at multiples of "
            f"{get_mk_alignment_for_contiguous_layout()} rows, which only tiles divide that have columns of the "
            "product on their rows; a gate joins columns and fits no tile of those; "
            "set_mk_alignment_for_contiguous_layout(128) and pad groups to it, or pass the groups' ends "
            "with use_psum_layout or offsets"
        )
    return None


@cache
def fused(spec: KernelSpec, epilogue: Epilogue, last: Last = as_it_is) -> KernelSpec:
    """The kernel with another epilogue."""
    return last(epilogue.of(spec))


@cache
def _refusal(spec: KernelSpec, epilogue: Epilogue, last: Last) -> str | None:
    try:
        kernel_of(fused(spec, epilogue, last))
    except ValueError as error:
        return said(error)
    return None
