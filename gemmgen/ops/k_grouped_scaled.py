"""Products of groups of k whose scales the tensor core applies, on real tensors: e4m3 data and words of scales.

Knows types, shapes and what each architecture reads; on sm120 factors are turned by layout kernels first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from gemmgen import catalog
from gemmgen.catalog import Factor, Product
from gemmgen.ir import Arch, DType, Operand
from gemmgen.ops.architecture import SCALING, family_at
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.groups import grouped_tail
from gemmgen.ops.k_grouped import KNOWN_AS, LAYOUT, adds_in_place, check_matrices
from gemmgen.ops.k_selection import NT, SCALES_PER_WORD, TN, KSplit, scaled_spec
from gemmgen.ops.memory import check_no_gradient, check_overlap, tma_fault
from gemmgen.ops.problem import Tensors, check_devices, check_problem, require
from gemmgen.ops.quantise import check_ue8m0
from gemmgen.ops.quantise.k_grouped import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, rows_of_scales
from gemmgen.ops.quantise.layout import get_tma_aligned_size
from gemmgen.ops.relayout import Move, put_off
from gemmgen.ops.scales import looks_at_content
from gemmgen.ops.settings import now
from gemmgen.ops.tail import Tail, plain
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Target
from gemmgen.runtime.targets import current_target

STEP = 32
"""Elements of k that a product takes: groups that lie along k start at multiples of it."""
TYPES = (torch.float32, torch.float8_e8m0fnu, torch.int32)


@dataclass(frozen=True)
class Call:
    """One call: a [k, m] and b [k, n], a scale for ``gran`` of k of every group; ``ks`` is empty where nobody knows."""

    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    layout: torch.Tensor
    c: torch.Tensor | None
    d: torch.Tensor
    ks: Sequence[int]
    gran: int
    split: KSplit
    accumulate: bool = False
    """Whether d is added to where it lies; there is no c then."""

    @property
    def _tail(self) -> Tail:
        return grouped_tail(plain(self.d.dtype, self.c is not None, self.accumulate), "counts")

    @property
    def _after(self) -> tuple[torch.Tensor, ...]:
        return (self.layout, self.d) if self.c is None else (self.layout, self.c, self.d)

    def check(self) -> dict[str, int]:
        """The extents, from what fake and meta tensors have too; scales are judged as they were passed."""
        given = {"a": self.a, "sfa": self.sfa, "b": self.b, "sfb": self.sfb}
        check_matrices(**given)
        after = dict(zip(("layout", *(each.name for each in self._tail.operands)), self._after, strict=True))
        check_no_gradient({**given, **after})
        check_devices({**given, **after})
        operands = (_factor("a", "m"), _factor("b", "n"), LAYOUT, *self._tail.operands)
        sizes = check_problem(operands, {"a": self.a.mT, "b": self.b.mT, **after})
        for name, sf, axis in (("sfa", self.sfa, "m"), ("sfb", self.sfb, "n")):
            self._check_scales(name, sf, sizes[axis])
        return sizes

    def _check_scales(self, name: str, sf: torch.Tensor, mn: int) -> None:
        if sf.dtype not in TYPES:
            raise TypeError(f"{name}: dtype is {sf.dtype}; must be one of {', '.join(map(str, TYPES))}")
        require(
            sf.shape[1] == mn, lambda: f"{name}: shape is {tuple(sf.shape)}; must have a column for each of {mn} rows"
        )
        if not self.ks:
            return
        unit = self.gran * (SCALES_PER_WORD if sf.dtype == torch.int32 else 1)
        least, rows = rows_of_scales(self.ks, unit, self.split.alignment)
        if self.split.by == "ends":  # what the host knows may be aligned; words may have others behind them
            most = sf.shape[0] if sf.dtype == torch.int32 else rows
            rule = f"{least} to {rows} rows, one for {unit} of k that every group has, rounded up for each"
            require(least <= sf.shape[0] <= most, lambda: f"{name}: shape is {tuple(sf.shape)}; must have {rule}")
            return
        require(
            sf.shape[0] == rows,
            lambda: f"{name}: shape is {tuple(sf.shape)}; must have {rows} rows, one for {unit} of k of every group, "
            "rounded up for each",
        )

    def run(self) -> None:
        """d = (a * sfa)^T . (b * sfb) (+ c) of every group."""
        if adds_in_place(self.c, self.d):
            replace(self, c=None, accumulate=True).run()
            return
        sizes = self.check()
        if 0 in (sizes["m"], sizes["n"], sizes["g"]):
            return
        arch, later = self._architecture(), list[Move]()
        split = self.split._replace(alignment=STEP) if arch == Arch.SM120 and self.split.by == "counts" else self.split
        sfa, sfb = (self._words(name, sf).mT for name, sf in (("sfa", self.sfa), ("sfb", self.sfb)))
        a, b = (_lying(each, arch, later) for each in (self.a, self.b))
        slots = (a, sfa, b, sfb, *self._after)
        dispatcher = _dispatcher(arch, self.gran, self._tail, split)
        # Of what is copied for the kernel, the dispatcher sees the copy.
        check_overlap("d", {"a": self.a, "sfa": self.sfa, "b": self.b, "sfb": self.sfb, "d": self.d}, ())
        if later:
            dispatcher.ready(slots)
            for move in later:
                move.check()
            for move in later:
                move.launch()
        dispatcher(slots)

    def _architecture(self) -> Arch:
        family = family_at(self.a.get_device()) or current_target(self.a.device).family
        if family not in SCALING:
            raise UnsupportedArchitecture(
                f"{TN}: there is no kernel for {family}, whose 8-bit factors lie along k; pass flat ones to {NT}"
            )
        return Arch(family)

    def _words(self, name: str, sf: torch.Tensor) -> torch.Tensor:
        """Words [words, mn] as TMA reads them: the scales themselves when they lie so already."""
        if sf.dtype == torch.int32:
            return sf if _is_aligned(sf) else _aligned(sf)
        if sf.dtype == torch.float32 and self.ks and looks_at_content(sf.device):
            check_ue8m0(sf, name)
        ends = self.split.by == "ends"
        return get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
            sf, self.layout, list(self.ks), self.gran, self.split.alignment, ends
        )


def _factor(name: str, axis: str, major: str | None = None) -> Operand:
    return Operand(name=name, dtype=DType.E4M3, box=(axis, "k"), major=major or axis)


def _scales(name: str, axis: str, gran: int) -> Operand:
    box = (axis, f"k/{SCALES_PER_WORD * gran}")
    return Operand(name=f"sf{name}", dtype=DType.UE8M0X4, box=box, major=axis, ragged=True)


def _lying(factor: torch.Tensor, arch: Arch, later: list[Move]) -> torch.Tensor:
    """A factor [k, rows] as [rows, k]: sm100 reads it along its rows, sm120 along k."""
    if arch == Arch.SM100 or factor.shape[0] == 0:
        return factor.mT
    return put_off(later, catalog.to_k_major(arch, DType.E4M3), factor.mT)


def _is_aligned(words: torch.Tensor) -> bool:
    return tma_fault(_scales("", "m", STEP), words.mT) is None


def _aligned(words: torch.Tensor) -> torch.Tensor:
    room = words.new_zeros(words.shape[0], get_tma_aligned_size(words.shape[1], 4))[:, : words.shape[1]]
    return room.copy_(words)


@cache
def _dispatcher(arch: Arch, gran: int, tail: Tail, split: KSplit) -> Dispatcher:
    factor = Factor(DType.E4M3, gran)
    along_k = arch == Arch.SM120
    product = Product(factor, factor).lying("nt" if along_k else "tn")
    operands = []
    for name, axis in (("a", "m"), ("b", "n")):
        operands += [_factor(name, axis, "k" if along_k else axis), _scales(name, axis, gran)]

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        return Choice(scaled_spec(arch, now().sms(target), sizes, split, product, **tail.spec_choices(tensors)))

    operands += [LAYOUT, *tail.operands]
    return Dispatcher(operands, tail.outputs, tail.scalars, choose, known_as=KNOWN_AS)
