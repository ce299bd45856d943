"""Which kernel serves a product of groups of k: the tile rules of the dense product, each group with its share of k.

Knows the catalog and tile rules; tensors are judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from gemmgen import catalog
from gemmgen.catalog import PairShape, Product, Shape, WarpShape
from gemmgen.ir import Arch, DType, KernelSpec
from gemmgen.ops import choice_k_grouped, choice_sm100, choice_sm120
from gemmgen.ops.cost import Cost
from gemmgen.ops.family import Candidate, Family, Last, Selection
from gemmgen.ops.settings import now
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Target

S = TypeVar("S", Shape, PairShape, WarpShape)
NT, TN, BF16_TN = (
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_bf16_gemm_tn_contiguous",
)
SCALES_PER_WORD = 4


class KSplit(NamedTuple):
    """How k is shared out among groups: fields of ``gemmgen.KGroups``."""

    by: str
    alignment: int = 1
    apart: bool = False


def bf16_spec(
    target: Target,
    sizes: Mapping[str, int],
    split: KSplit,
    d: DType,
    residual: bool,
    direct_store: bool,
    accumulate: bool = False,
) -> KernelSpec:
    """The kernel for a [k, m] and b [k, n] in bf16."""
    m, n, k, groups = _of_one(sizes)
    choices = (d, residual, direct_store)
    if target.family == Arch.SM100:
        return _picked(
            catalog.bf16_shapes_sm100("tn", *choices),
            lambda shape: choice_sm100.cost(shape, m, n, 2 * k, now().sms(target), scaled=False, groups=groups),
            lambda shape: _bf16_sm100(shape, *choices),
            split,
            accumulate,
        )
    if target.family == Arch.SM120:
        return _picked(
            _whole(catalog.bf16_shapes_sm120("tn", *choices)),
            lambda shape: choice_sm120.cost(shape, m, n, 2 * k, now().sms(target), groups=groups),
            lambda shape: _bf16_sm120(shape, *choices),
            split,
            accumulate,
        )
    return _picked(
        catalog.gradient_shapes(DType.BF16, direct_store),
        lambda shape: choice_k_grouped.cost(shape, m, n, 2 * k, now().sms(target), False, groups),
        lambda shape: _bf16_sm90(shape, *choices),
        split,
        accumulate,
    )


def fp8_apart(
    target: Target,
    sizes: Mapping[str, int],
    split: KSplit,
    sf_major: str,
    d: DType,
    residual: bool,
    direct_store: bool,
    accumulate: bool = False,
) -> Candidate:
    """The kernel for e4m3 factors that lie group by group, and what it costs."""
    if target.family != Arch.SM90:
        raise UnsupportedArchitecture(
            f"{NT}: there is no kernel for {target.family}; its factors may lie along m and n, so pass them as [k, m] "
            f"and [k, n] to {TN}"
        )
    m, n, k, groups = _of_one(sizes)
    return _candidate(
        catalog.gradient_shapes(DType.E4M3, direct_store, sf_major, residual, accumulate),
        lambda shape: choice_k_grouped.cost(shape, m, n, k, now().sms(target), True, groups, sf_major != "m"),
        lambda shape: _fp8_sm90(shape, sf_major, d, residual, direct_store),
        split,
        accumulate,
    )


def scaled_spec(
    arch: Arch,
    sms: int,
    sizes: Mapping[str, int],
    split: KSplit,
    product: Product,
    d: DType,
    residual: bool,
    direct_store: bool,
    accumulate: bool = False,
) -> KernelSpec:
    """The kernel for factors whose scales the tensor core applies, as they lie."""
    m, n, k, groups = _of_one(sizes)
    choices = (d, residual, direct_store)
    if arch == Arch.SM100:
        return _picked(
            catalog.scaled_shapes_sm100(product, *choices),
            lambda shape: choice_sm100.cost(shape, m, n, k, sms, scaled=True, groups=groups),
            lambda shape: _scaled_sm100(product, shape, *choices),
            split,
            accumulate,
        )
    word = SCALES_PER_WORD * product.a.block
    return _picked(
        _whole(catalog.scaled_shapes_sm120(product, *choices)),
        lambda shape: choice_sm120.cost(shape, m, n, k, sms, word, groups=groups),
        lambda shape: _scaled_sm120(product, shape, *choices),
        split,
        accumulate,
    )


def _of_one(sizes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """What tile rules judge, the product of a group with its share of k, and how many there are."""
    groups = max(1, sizes["g"])
    return sizes["m"], sizes["n"], -(-sizes["k"] // groups), groups


def _whole(shapes: tuple[WarpShape, ...]) -> tuple[WarpShape, ...]:
    """Tiles of one CTA: groups share k already."""
    return tuple(shape for shape in shapes if shape.splits == 1)


def _picked(
    shapes: tuple[S, ...], cost: Callable[[S], Cost], make: Callable[[S], KernelSpec], split: KSplit, accumulate: bool
) -> KernelSpec:
    return _candidate(shapes, cost, make, split, accumulate).spec


def _candidate(
    shapes: tuple[S, ...], cost: Callable[[S], Cost], make: Callable[[S], KernelSpec], split: KSplit, accumulate: bool
) -> Candidate:
    return Selection.of(Family(shapes, cost, make, last=_grouped(split, accumulate)).candidates(None)).picked


@cache
def _grouped(split: KSplit, accumulate: bool) -> Last:
    """What makes a kernel one for groups, which may add to what the output holds."""
    if accumulate:
        return cache(lambda spec: catalog.in_k_groups(catalog.accumulating(spec), *split))
    return cache(lambda spec: catalog.in_k_groups(spec, *split))


@cache
def _bf16_sm90(shape: Shape, *choices: Any) -> KernelSpec:
    return catalog.bf16_gemm("tn", shape, *choices)


@cache
def _bf16_sm100(shape: PairShape, *choices: Any) -> KernelSpec:
    return catalog.bf16_gemm_sm100("tn", shape, *choices)


@cache
def _bf16_sm120(shape: WarpShape, *choices: Any) -> KernelSpec:
    return catalog.bf16_gemm_sm120("tn", shape, *choices)


@cache
def _fp8_sm90(shape: Shape, sf_major: str, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.fp8_gemm_nt(shape, d, residual, sf_major, 1, direct_store)


@cache
def _scaled_sm100(product: Product, shape: PairShape, *choices: Any) -> KernelSpec:
    return catalog.scaled_gemm_sm100(product, shape, *choices)


@cache
def _scaled_sm120(product: Product, shape: WarpShape, *choices: Any) -> KernelSpec:
    return catalog.scaled_gemm_sm120(product, shape, *choices)
