"""Block-scaled products on tensor cores that scale, on real tensors: types, layouts and scales become a shipped spec.

Knows the catalog's products and memory rules; argument conventions are in ``api_block_scaled``. What a tensor core
cannot take as it lies is turned by a layout kernel first.
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
from gemmgen.ops.dense import is_k_major
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.groups import Groups, behind, known_as, of_groups, problem_of
from gemmgen.ops.memory import ALIGNMENT, check_no_gradient, check_overlap
from gemmgen.ops.problem import Tensors, check_devices, check_problem, check_rank, packed_extents, require
from gemmgen.ops.quantise import transpose_packed_fp4
from gemmgen.ops.relayout import PITCH, Move, put_off
from gemmgen.ops.scales import BY_SHAPE, Scales
from gemmgen.ops.selection import spec_for
from gemmgen.ops.settings import now
from gemmgen.ops.tail import Tail, plain
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Target
from gemmgen.runtime.targets import current_target

TYPES = {torch.float8_e4m3fn: DType.E4M3, torch.int8: DType.E2M1}
SCALES_PER_WORD = 4


@dataclass(frozen=True)
class Call:
    """One call: the tensors, what their scales stand for, and NVFP4's factor, which also says that it is NVFP4.

    ``after`` are the tensors that follow the factors, ``scalars`` the numbers, as ``tail`` lists them. With ``groups``
    of rows the first of ``after`` is their layout, and ``tail`` is one of groups.
    """

    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor
    after: tuple[torch.Tensor, ...]
    recipe: Sequence[int]
    blocked: Sequence[bool]
    alpha: float | None
    tail: Tail
    scalars: tuple[float, ...] = ()
    groups: Groups | None = None

    def run(self) -> None:
        """What follows alpha * (a * sfa) . (b * sfb)^T."""
        sizes = self.check()
        if 0 in (sizes["m"], sizes["n"], sizes.get("g")):
            return
        product, arch, later = self.product(), self.architecture(), list[Move]()
        of_a, of_b = self.scales()
        sfa = of_a.words(self.sfa, sizes["m"], sizes["k"], arch, later, sizes["g"] if self.a.dim() == 3 else None)
        sfb = of_b.words(self.sfb, sizes["n"], sizes["k"], arch, later, sizes["g"] if self.b.dim() == 3 else None)
        spread = product.a.dtype != product.b.dtype
        a, b = (_turned(name, tensor, arch, later, spread) for name, tensor in (("a", self.a), ("b", self.b)))
        slots = (a, sfa, b, sfb, *self.after)
        dispatcher = _dispatcher(product, self.tail, self.groups)
        if any(read is not given for read, given in zip(slots, (self.a, self.sfa, self.b, self.sfb), strict=False)):
            self._check_overlap()
        if later:
            self._lay_out(later, dispatcher, slots)
        dispatcher(slots, (*self.scalars,) if self.alpha is None else (self.alpha, *self.scalars))

    def _check_overlap(self) -> None:
        """Refuse an output over what was given, of which the dispatcher sees copies."""
        given = {"a": self.a, "sfa": self.sfa, "b": self.b, "sfb": self.sfb}
        for name in self.tail.outputs:
            check_overlap(name, {**given, name: self._after[name]}, (), self.tail.outputs)

    def _lay_out(self, later: list[Move], dispatcher: Dispatcher, slots: tuple[torch.Tensor, ...]) -> None:
        """Run layout kernels, once nothing can be refused any more."""
        dispatcher.ready(slots)
        for move in later:
            move.check()
        for move in later:
            move.launch()

    @property
    def _after(self) -> dict[str, torch.Tensor]:
        return {each.name: tensor for each, tensor in zip(behind(self.groups, self.tail), self.after, strict=True)}

    def architecture(self) -> Arch:
        """Where the call runs; refuses where no tensor core applies scales."""
        family = family_at(self.a.get_device()) or current_target(self.a.device).family
        if family not in SCALING:
            _refuse_architecture(self.product(), self.groups, family)
        return Arch(family)

    def check(self) -> dict[str, int]:
        """The extents, from what fake and meta tensors have too; scales are judged as they were passed."""
        present = {"a": self.a, "b": self.b, **self._after}
        check_no_gradient({**present, "sfa": self.sfa, "sfb": self.sfb})
        check_devices({**present, "sfa": self.sfa, "sfb": self.sfb})
        a, b = of_groups(self.groups, (as_given("a", "m", self.a), as_given("b", "n", self.b)))
        sizes = check_problem((a, b, *behind(self.groups, self.tail)), present, self.tail.gated, self.tail.outputs)
        of_a, of_b = self.scales()
        _check_pairs({"a": self.a, "b": self.b}, sizes["k"])
        of_a.check(self.sfa, sizes["m"], sizes["k"], sizes["g"] if a.grouped else None)
        of_b.check(self.sfb, sizes["n"], sizes["k"], sizes["g"] if b.grouped else None)
        return sizes

    def product(self) -> Product:
        """The factors by type and granularity."""
        a, b = (_dtype(name, tensor) for name, tensor in (("a", self.a), ("b", self.b)))
        return Product(Factor(a, self.recipe[1]), Factor(b, self.recipe[3]))

    def scales(self) -> tuple[Scales, Scales]:
        """How the scales of both factors are read."""
        rows_a, k_a, rows_b, k_b = self.recipe
        if rows_b == BY_SHAPE:
            n = rows("b", "n", self.b)
            per_row = self.sfb.dtype == torch.int32 or (
                self.sfb.dim() == self.b.dim() and n > 1 and self.sfb.shape[-2] == n
            )
            rows_b = 1 if per_row else 128
        of_a = Scales("sfa", (rows_a, k_a), self.blocked[0], looked_at=self.groups is None)
        return of_a, Scales("sfb", (rows_b, k_b), self.blocked[1])


def call(
    a: torch.Tensor,
    sfa: torch.Tensor,
    b: torch.Tensor,
    sfb: torch.Tensor,
    c: torch.Tensor | None,
    d: torch.Tensor,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
) -> Call:
    """d = alpha * (a * sfa) . (b * sfb)^T (+ c)."""
    after = (d,) if c is None else (c, d)
    return Call(a, sfa, b, sfb, after, recipe, blocked, alpha, plain(d.dtype, c is not None))


def empty(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised output for a [m, ..] and b [n, ..]."""
    return torch.empty((rows("a", "m", a), rows("b", "n", b)), dtype=dtype, device=a.device)


def rows(name: str, axis: str, tensor: torch.Tensor) -> int:
    """Rows of a factor, or of each group's, those of which two share a byte counted apart."""
    operand = as_given(name, axis, tensor)
    if tensor.dim() == 3:
        operand = operand.replace(box=("g", *operand.box))
    check_rank(operand, tensor)
    return packed_extents(operand, tensor)[axis]


def _dtype(name: str, tensor: torch.Tensor) -> DType:
    if tensor.dtype not in TYPES:
        raise TypeError(
            f"{name}: dtype is {tensor.dtype}; must be torch.float8_e4m3fn, or torch.int8, two 4-bit numbers a byte; "
            f"quantise {name}, or pass {name}.view(torch.int8) if it holds such numbers"
        )
    return TYPES[tensor.dtype]


def as_given(name: str, axis: str, tensor: torch.Tensor) -> Operand:
    """A factor as it was passed: two 4-bit numbers that share a byte are neighbours along the contiguous axis."""
    return Operand(name=name, dtype=_dtype(name, tensor), box=(axis, "k"), major=axis if _lies_turned(tensor) else "k")


def _lies_turned(tensor: torch.Tensor) -> bool:
    """Whether a factor [rows, k] is contiguous along its rows, and not also as rows are.

    The stride of one element alone says nothing; that of one byte does, or two 4-bit numbers along k would be taken for
    those of two rows.
    """
    if tensor.dim() not in (2, 3):
        return False
    rows, k = tensor.shape[-2:]
    bytes_alone = tensor.dtype != torch.int8
    if k == 1:
        return bool(bytes_alone and rows != 1 and tensor.stride(-2) == 1)
    return bool(tensor.stride(-1) != 1 and (tensor.stride(-2) == 1 or (bytes_alone and rows == 1)))


def _check_pairs(factors: Tensors, k: int) -> None:
    turned = [name for name, each in factors.items() if each.dtype == torch.int8 and _lies_turned(each)]
    if turned:
        require(
            k % 2 == 0,
            lambda: f"{turned[0]}: k is {k}; 4-bit numbers are turned to lie along k, two a byte, so pad k of both "
            f"factors to {k + 1} with zeros",
        )


def _turned(name: str, tensor: torch.Tensor, arch: Arch, later: list[Move], spread: bool) -> torch.Tensor:
    """The factor in an order that the tensor core takes: 8-bit numbers in either on sm100, all others along k only.

    Beside an 8-bit factor 4-bit numbers are ``spread``, for which rows need room; all others start where TMA can.
    """
    dtype = _dtype(name, tensor)
    if not _lies_turned(tensor) or (arch == Arch.SM100 and dtype != DType.E2M1):
        return tensor
    if tensor.dim() == 3:  # of every group: by torch, as layout kernels turn one matrix
        if dtype != DType.E2M1:
            return _in_rows(tensor, ALIGNMENT)
        return _in_rows(transpose_packed_fp4(tensor.mT), PITCH if spread else ALIGNMENT)
    return put_off(later, catalog.to_k_major(arch, dtype), tensor)


def _in_rows(factor: torch.Tensor, step: int) -> torch.Tensor:
    """The same numbers in rows whose pitch is a multiple of so many bytes, all of which TMA may read."""
    *outer, row = factor.shape
    if row % step == 0:
        return factor.contiguous()
    return factor.new_zeros((*outer, -(-row // step) * step))[..., :row].copy_(factor)


def _inputs(product: Product, groups: Groups | None) -> tuple[Operand, ...]:
    scale = DType.UE4M3X4 if product.nvfp4 else DType.UE8M0X4
    operands = []
    for name, axis, factor in (("a", "m", product.a), ("b", "n", product.b)):
        operands.append(Operand(name=name, dtype=factor.dtype, box=(axis, "k")))
        box = (axis, f"k/{SCALES_PER_WORD * factor.block}")
        operands.append(Operand(name=f"sf{name}", dtype=scale, box=box, major=axis))
    return of_groups(groups, tuple(operands))


@cache
def _dispatcher(product: Product, tail: Tail, groups: Groups | None = None) -> Dispatcher:
    a, sfa, b, sfb = _inputs(product, groups)

    def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
        lying = replace(product, a_major=_major(a, tensors["a"]), b_major=_major(b, tensors["b"]))
        spec = spec_for(
            f"{lying.operator}_{lying.layout}",
            sms=now().sms(target),
            arch=target.family,
            card=target.card,
            product=lying,
            **tail.spec_choices(tensors),
            **problem_of(groups, sizes),
        )
        return Choice(spec)

    scalars = (("alpha",) if product.nvfp4 else ()) + tail.scalars
    operands = (a, sfa, b, sfb, *behind(groups, tail))
    return Dispatcher(operands, tail.outputs, scalars, choose, tail.gated, known_as(groups))


def _major(operand: Operand, tensor: torch.Tensor) -> str:
    return "k" if operand.dtype == DType.E2M1 or is_k_major(operand, tensor) else operand.plane[0]


def _refuse_architecture(product: Product, groups: Groups | None, family: str) -> None:
    four = [name for name, factor in (("a", product.a), ("b", product.b)) if factor.dtype == DType.E2M1]
    what = f"{' and '.join(four)}: 4-bit numbers" if four else "sfa, sfb: scales that the tensor core applies"
    raise UnsupportedArchitecture(
        f"{what} are multiplied on {' and '.join(SCALING)} only, this is {family}; run it there, or on a GPU without "
        f"such tensor cores multiply what cast_back_from_fp4 and cast_back_from_fp8 give with {_in_bf16(groups)}"
    )


def _in_bf16(groups: Groups | None) -> str:
    """The operator that does the same to bf16 numbers on any architecture."""
    if groups is None:
        return "bf16_gemm_nt"
    return f"m_grouped_bf16_gemm_nt_{'masked' if groups.by == 'counts' else 'contiguous'}"
