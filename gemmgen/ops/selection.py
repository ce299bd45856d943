"""From an operator and a problem to the shipped spec that serves it, its own epilogue or another behind the product.

Knows the catalog, the tile rules, what can be lowered and what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gemmgen import catalog
from gemmgen.catalog import (
    ACTIVATIONS,
    FINISHED,
    FP8,
    FP8_FP4,
    FUSED,
    LAYOUTS,
    MXFP4,
    NVFP4,
    SM90_PRODUCTS,
    PairShape,
    Product,
    Shape,
    WarpShape,
)
from gemmgen.ir import Arch, ClusterSplitK, DType, Epilogue, KernelSpec
from gemmgen.ops import choice, choice_grouped, choice_k_grouped, choice_sm100, choice_sm120
from gemmgen.ops.choice_prenorm import PRENORM, prenorm_spec
from gemmgen.ops.cost import Cost
from gemmgen.ops.family import Candidate, Family, Last, S, Selection, as_it_is
from gemmgen.ops.group_tiles import dividing, unless_found
from gemmgen.ops.groups import GROUPED_NAME, Groups, may_be_searched
from gemmgen.ops.mk_alignment import DEFAULT
from gemmgen.ops.settings import now
from gemmgen.ops.tuned import Card, measured
from gemmgen.runtime.errors import UnsupportedArchitecture

PRODUCTS = {
    **{f"fp8_gemm_{layout}": FP8.lying(layout) for layout in LAYOUTS},
    **{f"fp8_fp4_gemm_{layout}": FP8_FP4.lying(layout) for layout in LAYOUTS},
    "mxfp4_gemm_nt": MXFP4,
    "nvfp4_gemm_nt": NVFP4,
}
"""Operators with scales, and the factors that tensor cores multiply and scale when nothing else is said."""
BF16_OPERATORS = tuple(f"bf16_gemm_{layout}" for layout in LAYOUTS)
UNFUSED = (*PRODUCTS, *BF16_OPERATORS)
"""Operators whose every kernel is in the catalog; a fused one takes any tile of its product."""
OPERATORS = (*UNFUSED, *FUSED)
SM90_OPERATORS = (*SM90_PRODUCTS, *FINISHED, *FUSED)
NAMES = (*OPERATORS, *FINISHED)
"""Names that tiles are chosen by: operators, and products with what finishes them."""
NAME_FORMS = (
    f"one of {', '.join(OPERATORS)}; or one of {', '.join(SM90_PRODUCTS)} followed by _bias, _ACTIVATION or "
    f"_bias_ACTIVATION, ACTIVATION being one of {', '.join(ACTIVATIONS)}"
)
SCALES_PER_WORD = 4
MOST_BESIDE = 2
"""CTAs an SM of a kernel beside which the next one's find room: with three, chains of launches were 10 % slower than
without early launches (64x24576x1536 in FP8, H200)."""


@dataclass(frozen=True)
class Choices:
    """What tells an operator's kernels apart beside the problem, and where they are to run."""

    arch: str = "sm90"
    card: str | None = None
    """The GPU's name: what was measured on it decides before the rule does (``gemmgen.ops.tuned``)."""
    d: DType = DType.BF16
    residual: bool = False
    sfa_major: str = "m"
    """Of sm90."""
    sfb_columns: int = 128
    """Of sm90: columns of the output per scale of B."""
    direct_store: bool = False
    """Outputs whose rows are no whole chunks of 16 bytes."""
    product: Product | None = None
    """Of sm100 and sm120: other factors of the operator."""
    launch_control: bool = False
    """Lets the hardware of sm100 hand out tiles, for a GPU shared with other kernels."""
    epilogue: Epilogue | None = None
    """Takes the place of the tile's own cast and store, among the tiles that it can be lowered for."""
    accumulate: bool = False
    """Adds to an fp32 output where it lies."""
    groups: Groups | None = None
    """Rows shared out among groups; then m is what a group is expected to have."""
    group_count: int = 1
    """Groups that have rows."""
    searched: bool | None = None
    """Of sm90: whether a launch may look for groups by row ids, which all rows decide; None goes by those expected."""
    padding: bool = True
    """Of sm90: whether rows that pad groups are among ``m``, as in a matrix's extents; in a hint there are none."""


def spec_for(
    operator: str, m: int, n: int, k: int, sms: int, *, programmatic_launch: bool = False, **choices: Any
) -> KernelSpec:
    """The spec for a problem of these extents on a GPU with ``sms`` multiprocessors; run it with ``gemmgen.op``.

    ``choices`` are fields of ``Choices``: arch ("sm90"), card, d, residual, direct_store, epilogue and others. On sm120
    factors with scales are k-contiguous in every layout: what lies otherwise is turned first. With
    ``programmatic_launch`` (sm90) the kernel starts before the one ahead of it in the stream has ended, and one that
    has a tile a CTA reads B and its scales then: no kernel that may still run may write them.
    """
    if programmatic_launch and (choices.get("arch", Arch.SM90) != Arch.SM90 or operator == PRENORM):
        raise UnsupportedArchitecture(f"programmatic_launch: {operator} starts early on sm90 alone; leave it out")
    if operator == PRENORM:
        return prenorm_spec(m, n, sms, choices.get("arch", "sm90"), deterministic=now().deterministic)
    selection = select(operator, m, n, k, sms, Choices(**choices))
    return catalog.launched_early(_reading_ahead(selection)) if programmatic_launch else selection.picked.spec


def _reading_ahead(selection: Selection) -> KernelSpec:
    """The kernel that is taken, unless one that reads weights ahead was measured to be as fast.

    One of many CTAs an SM gives way to the cheapest that leaves room for the next launch's.
    """
    picked = selection.picked.spec
    if reads_ahead(picked):
        return picked
    if selection.measured is not None and (ahead := selection.measured.entry.ahead) is not None:
        for each in selection.candidates:
            if ahead in (each.spec.name, each.product):
                return each.spec
    if isinstance(picked.schedule, ClusterSplitK):
        with_room = [each for each in selection.candidates if reads_ahead(each.spec)]
        return min(with_room, key=lambda each: each.cost.key).spec if with_room else picked
    return picked


def reads_ahead(spec: KernelSpec) -> bool:
    """Whether an early launch gains what it can: a CTA has one tile, may fill its ring ahead, and finds room."""
    return isinstance(spec.schedule, ClusterSplitK) and spec.ctas_per_sm <= MOST_BESIDE


def select(operator: str, m: int, n: int, k: int, sms: int, choices: Choices) -> Selection:
    """Every kernel that could serve the problem, what the rule says each costs, and the one that is taken.

    An operator of row groups by its name means one group of m rows, by counts or by ids, if nothing else is chosen.
    A product followed by what finishes it, ``fp8_gemm_nt_bias_relu`` say, has D in bf16 and a bias in fp32.
    """
    if (match := GROUPED_NAME.fullmatch(operator)) is not None:
        operator = match["product"] + match["output"]
        by_default = Groups("counts") if match["form"] == "masked" else Groups("ids", DEFAULT)
        choices = replace(choices, groups=choices.groups or by_default)
    if operator not in NAMES:
        raise ValueError(f"operator: {operator!r} is unknown; use {NAME_FORMS}")
    arch, epilogue = choices.arch, choices.epilogue
    archs = (Arch.SM90, Arch.SM100, Arch.SM120) if operator in SM90_OPERATORS else (Arch.SM100, Arch.SM120)
    if arch not in archs:
        raise UnsupportedArchitecture(f"{operator}: there is no kernel for {arch}; it runs on {' and '.join(archs)}")
    if choices.launch_control and arch != Arch.SM100:
        raise UnsupportedArchitecture(f"launch_control: {arch} hands out no launches, sm100 does; leave it out")
    if operator in FINISHED and (epilogue is not None or choices.residual or choices.d != DType.BF16):
        raise ValueError(f"operator: {operator} says what is behind the product; leave out epilogue, residual and d")
    if operator not in UNFUSED:
        operator, epilogue = catalog.fused_operator(operator, arch)
    candidates = _candidates(operator, m, n, k, sms, choices, epilogue)
    if choices.groups is not None:
        return Selection.of(candidates)
    names = catalog.operators_of(operator, epilogue)
    return Selection.of(candidates, measured(Card(choices.card, sms, arch), names, m, n, k))


def _candidates(
    operator: str, m: int, n: int, k: int, sms: int, choices: Choices, epilogue: Epilogue | None
) -> tuple[Candidate, ...]:
    if choices.arch == Arch.SM100:
        return _family_sm100(operator, m, n, k, sms, choices).candidates(epilogue)
    if choices.arch == Arch.SM120:
        return _family_sm120(operator, m, n, k, sms, choices).candidates(epilogue)
    return _family_sm90(operator, m, n, k, sms, replace(choices, epilogue=epilogue)).candidates(epilogue)


def _family_sm90(operator: str, m: int, n: int, k: int, sms: int, choices: Choices) -> Family[Shape]:
    d, residual, direct = choices.d, choices.residual, choices.direct_store
    last, groups = _last(choices), choices.groups
    searched = _searched(choices, m)
    beside = searched and groups is not None and groups.alignment % DEFAULT != 0
    wide = dividing(groups, catalog.WIDE_GROUPED_SHAPES, _unit_rows, searched) if groups else ()
    if operator == "fp8_gemm_nt":
        given = (d, residual, choices.sfa_major, choices.sfb_columns, direct)
        tiles = catalog.grouped_shapes(DType.E4M3, groups.by, choices.sfb_columns) if groups else ()
        dense = (catalog.fp8_choices if choices.epilogue is None else catalog.fp8_shapes)(*given)
        if choices.accumulate:
            dense = catalog.gradient_shapes(DType.E4M3, direct, choices.sfa_major, added=True)
        shapes = _admitted(choices, dense, tiles, _unit_rows, searched)
        fused = tuple(catalog.behind(shape, choices.epilogue) for shape in shapes)
        rule = _rule_sm90(choices, m, n, k, sms, True)
        return Family(
            shapes,
            _behind_activation(rule, choices.epilogue, dict(zip(fused, shapes, strict=True))),
            lambda shape: _fp8(shape, *given),
            fused,
            wide,
            last,
            beside=beside,
        )
    layout = operator.removeprefix("bf16_gemm_")
    grouped = catalog.grouped_shapes(DType.BF16, groups.by) if groups else ()
    if layout[0] == "t":  # which no swapped tile takes
        grouped = tuple(shape for shape in grouped if not shape.swap)
    dense = (catalog.bf16_choices if choices.epilogue is None else catalog.bf16_shapes)(layout, d, residual, direct)
    if choices.accumulate:
        dense = catalog.gradient_shapes(DType.BF16, direct)
    return Family(
        _admitted(choices, dense, grouped, _unit_rows, searched),
        _rule_sm90(choices, m, n, 2 * k, sms, False),
        lambda shape: _bf16(layout, shape, d, residual, direct),
        others=wide,
        last=last,
        beside=beside,
    )


def _searched(choices: Choices, m: int) -> bool:
    """Whether a launch may look for groups by row ids."""
    groups, count = choices.groups, choices.group_count
    if groups is None or groups.by != "ids":
        return False
    return may_be_searched(groups, m * count, count) if choices.searched is None else choices.searched


def _rule_sm90(choices: Choices, m: int, n: int, k_bytes: int, sms: int, promoted: bool) -> Callable[[Shape], Cost]:
    """What a tile costs: groups of rows, and sums that are added to, have rules of their own."""
    count, groups = choices.group_count, choices.groups
    gathered = promoted and choices.sfa_major != "m"
    if groups is not None:
        by, alignment = groups.by, groups.alignment
        given = (m, n, k_bytes, sms, promoted, count, alignment if choices.padding else 1)
        return lambda shape: choice_grouped.cost(shape, *given, catalog.finds_groups(by, alignment, shape.m), gathered)
    if choices.accumulate:
        return lambda shape: choice_k_grouped.cost(shape, m, n, k_bytes, sms, promoted, count, gathered)
    return lambda shape: choice.cost(shape, m, n, k_bytes, sms, promoted, gathered)


def _behind_activation(
    rule: Callable[[Shape], Cost], epilogue: Epilogue | None, products: Mapping[Shape, Shape]
) -> Callable[[Shape], Cost]:
    """The rule for tiles with the epilogue, made of the products' own.

    Where that is a bias or an activation beside which no tile keeps products, such as silu, all cost as if they did: of
    nine problems of 1024 rows and more, behind silu and gelu, such picks take 1.007 and 1.004 of the fastest tile's
    time, and 1.018 and 1.015 by what the epilogue leaves of a tile (geometric means, H200).
    """
    finish = None if epilogue is None else catalog.finish_of(epilogue)
    if finish is None or any(shape.overlap for shape in products):
        return rule
    return lambda shape: rule(replace(shape, overlap=products.get(shape, shape).overlap))


def _family_sm100(operator: str, m: int, n: int, k: int, sms: int, choices: Choices) -> Family[PairShape]:
    d, residual, direct = choices.d, choices.residual, choices.direct_store

    def scheduled(shape: PairShape) -> PairShape:
        return replace(shape, launch_control=choices.launch_control)

    def admitted(shapes: tuple[PairShape, ...], a_major: str, b_major: str, b: DType) -> tuple[PairShape, ...]:
        grouped = catalog.grouped_shapes_sm100(choices.groups.by, a_major, b_major, b) if choices.groups else ()
        return _admitted(choices, shapes, grouped, lambda shape: shape.tile[0] * shape.cluster.m)

    count, last = choices.group_count, _last(choices)
    if operator in PRODUCTS:
        factors = choices.product or PRODUCTS[operator]
        k_bytes = k // 2 if factors.packed else k
        return Family(
            admitted(
                catalog.scaled_shapes_sm100(factors, d, residual, direct),
                factors.a_major,
                factors.b_major,
                factors.b.dtype,
            ),
            lambda shape: choice_sm100.cost(shape, m, n, k_bytes, sms, scaled=True, groups=count),
            lambda shape: _scaled_sm100(factors, scheduled(shape), d, residual, direct),
            last=last,
        )
    layout = operator.removeprefix("bf16_gemm_")
    majors = "k" if layout[0] == "n" else "m", "k" if layout[1] == "t" else "n"
    return Family(
        admitted(catalog.bf16_shapes_sm100(layout, d, residual, direct), *majors, DType.BF16),
        lambda shape: choice_sm100.cost(shape, m, n, 2 * k, sms, scaled=False, groups=count),
        lambda shape: _bf16_sm100(layout, scheduled(shape), d, residual, direct),
        last=last,
    )


def _family_sm120(operator: str, m: int, n: int, k: int, sms: int, choices: Choices) -> Family[WarpShape]:
    d, residual, direct = choices.d, choices.residual, choices.direct_store

    def admitted(shapes: tuple[WarpShape, ...], product: Product | None) -> tuple[WarpShape, ...]:
        grouped = catalog.grouped_shapes_sm120(product)
        return _admitted(choices, choice_sm120.allowed(shapes, m, n), grouped, lambda shape: shape.m)

    count, last = choices.group_count, _last(choices)
    by_ids = choices.groups is not None and choices.groups.by == "ids"
    wide = catalog.WIDE_GROUPED_WARPS_SM120 if by_ids else catalog.WIDE_WARPS_SM120
    if operator in PRODUCTS:
        turned = (choices.product or PRODUCTS[operator]).lying("nt")
        per_byte = 2 if turned.a.dtype == turned.b.dtype == DType.E2M1 else 1
        word = SCALES_PER_WORD * max(turned.a.block, turned.b.block) // per_byte
        return Family(
            admitted(catalog.scaled_shapes_sm120(turned, d, residual, direct), turned),
            lambda shape: choice_sm120.cost(shape, m, n, k // per_byte, sms, word, groups=count),
            lambda shape: _scaled_sm120(turned, shape, d, residual, direct),
            others=wide,
            last=last,
        )
    layout = operator.removeprefix("bf16_gemm_")
    return Family(
        admitted(catalog.bf16_shapes_sm120(layout, d, residual, direct), None),
        lambda shape: choice_sm120.cost(shape, m, n, 2 * k, sms, groups=count),
        lambda shape: _bf16_sm120(layout, shape, d, residual, direct),
        others=wide,
        last=last,
    )


def _admitted(
    choices: Choices, dense: tuple[S, ...], grouped: tuple[S, ...], rows: Callable[[S], int], searched: bool = False
) -> tuple[S, ...]:
    """The tiles of a dense problem, or of groups: by row ids those of which each is of one group."""
    groups = choices.groups
    if groups is None:
        return dense
    shapes = dense if choices.direct_store else grouped
    found = dividing(groups, shapes, rows, searched)
    if not found:
        sizes = " and ".join(str(each) for each in sorted({rows(shape) for shape in shapes}))
        raise ValueError(
            f"grouped_layout: has a group for every row, and groups start at multiples of {groups.alignment} rows; "
            f"tiles here have {sizes} rows, which must divide that, as a tile is of one group"
            f"{unless_found(choices.arch)}; set_mk_alignment_for_contiguous_layout({DEFAULT}) and pad groups to it, or "
            "pass the groups' ends with use_psum_layout or offsets"
        )
    return found


def _unit_rows(shape: Shape) -> int:
    """Rows that CTAs which work together have."""
    return shape.m * shape.cluster[0]


def _last(choices: Choices) -> Last:
    """What becomes of a product that adds to its output, or is of groups."""
    return _accumulating if choices.accumulate else _grouped(choices.groups)


_accumulating = cache(catalog.accumulating)


@cache
def _grouped(groups: Groups | None) -> Last:
    """What makes a kernel one for groups."""
    if groups is None:
        return as_it_is

    def last(spec: KernelSpec) -> KernelSpec:
        found = spec.arch == Arch.SM90 and catalog.finds_groups(groups.by, groups.alignment, spec.tile.m)
        rows = spec.tile.m * spec.cluster.m
        if groups.by == "ids" and groups.alignment % rows and not found:  # a tile is of one group
            raise ValueError(f"tiles of {rows} rows do not divide the {groups.alignment} that groups by ids start at")
        alignment = groups.alignment if found or groups.by == "ends" else 1
        return catalog.in_row_groups(spec, groups.by, alignment, groups.zero_padding)

    return cache(last)


@cache
def _fp8(shape: Shape, d: DType, residual: bool, sfa_major: str, sfb_columns: int, direct_store: bool) -> KernelSpec:
    return catalog.fp8_gemm_nt(shape, d, residual, sfa_major, sfb_columns, direct_store)


@cache
def _bf16(layout: str, shape: Shape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm(layout, shape, d, residual, direct_store)


@cache
def _bf16_sm100(layout: str, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm100(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm100(product: Product, shape: PairShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm100(product, shape, d, residual, direct_store)


@cache
def _bf16_sm120(layout: str, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.bf16_gemm_sm120(layout, shape, d, residual, direct_store)


@cache
def _scaled_sm120(product: Product, shape: WarpShape, d: DType, residual: bool, direct_store: bool) -> KernelSpec:
    return catalog.scaled_gemm_sm120(product, shape, d, residual, direct_store)
