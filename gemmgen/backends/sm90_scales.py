"""Block scales of sm90: which of them a product's sums are multiplied by, and how they come to a slot.

Knows specs and plans of products, no other part of lowering.
"""

from __future__ import annotations

from math import gcd

from gemmgen.backends.common import in_halves, shifted_boxes
from gemmgen.backends.placement import align
from gemmgen.backends.sm90_push import scales_by_lanes
from gemmgen.backends.sm90_swapped import PRODUCT_ROWS, rows_in_slot
from gemmgen.backends.sm90_tiles import parts
from gemmgen.ir import BlockScale, DType, KernelSpec, MmaPlan, Operand, Part, split_axis


def promoted(spec: KernelSpec, mma: MmaPlan, scales: BlockScale) -> MmaPlan:
    """The product with its sums scaled every K block. Raises ``ValueError`` where scales are none that fit."""
    sfa, sfb = spec.operand(scales.a), spec.operand(scales.b)
    for scale in (sfa, sfb):
        if scale.dtype != DType.F32:
            raise ValueError(f"scale operand {scale.name!r} is {scale.dtype}; block scales on sm90 are f32")
        if f"k/{spec.tile.k}" not in scale.box:
            raise ValueError(f"scale operand {scale.name!r} has box {scale.box}; promotion needs k/{spec.tile.k}")
    if "m" not in sfa.box:
        raise ValueError(f"scale operand {sfa.name!r} has box {sfa.box}; A's scales need one per row: ('m', 'k/...')")
    columns = 1 if in_halves(spec, sfb) else _columns_per_scale(sfb)
    if mma.row_axis == "n":
        return _swapped(spec, mma, sfa, sfb, gcd(columns, spec.tile.n))
    return mma.replace(
        sfa=sfa.name,
        sfb=sfb.name,
        sfb_per_column=columns == 1,
        sfb_columns=gcd(columns, spec.tile.n // parts(spec)),
        sfb_by_lanes=scales_by_lanes(spec, sfb),
    )


def _swapped(spec: KernelSpec, mma: MmaPlan, sfa: Operand, sfb: Operand, shared: int) -> MmaPlan:
    """B's scales, each for so many rows of the product, and one of A's for every column."""
    if shared > 1 and shared % PRODUCT_ROWS:
        raise ValueError(
            f"scale operand {sfb.name!r} has box {sfb.box}: of a swapped product 64 rows share a scale or each has "
            f"one, but {shared} of this tile share one; use n/128, n/64 or n, or do not swap"
        )
    return mma.replace(
        sfa=sfb.name,
        sfb=sfa.name,
        sfa_rows=shared,
        sfb_per_column=True,
        sfb_columns=1,
        sfb_by_lanes=scales_by_lanes(spec, sfb),
    )


def _columns_per_scale(sfb: Operand) -> int:
    for axis in sfb.box:
        name, divisor = split_axis(axis)
        if name == "n":
            return divisor
    raise ValueError(f"scale operand {sfb.name!r} has box {sfb.box}; B's scales need an n axis, such as 'n/128'")


def scale_part(spec: KernelSpec, operand: Operand) -> Part:
    """Scales contiguous along m or n come by TMA, a row each K block; others are gathered by the producer's lanes."""
    axis = "m" if "m" in operand.axes else "n"
    inner_axis, per = split_axis(operand.inner)
    divisor = next(split_axis(entry)[1] for entry in operand.box if split_axis(entry)[0] == axis)
    tile = rows_in_slot(spec) if axis == "m" else spec.tile.n
    if inner_axis == axis and per == 1 and not in_halves(spec, operand):
        boxes, count = shifted_boxes(spec, axis, tile)
        return Part(
            operand=operand.name,
            copy_by="tma",
            offset=0,
            bytes=align(boxes * count * 4, 128),
            inner_axis=axis,
            outer_axis="k",
            atoms=boxes,
            atom_bytes=count * 4,
            atom_elements=count,
        )
    unit = tile // parts(spec) if axis == "n" else tile
    step = 1 if divisor == 1 or in_halves(spec, operand) else gcd(divisor, unit)
    count = tile // step
    return Part(
        operand=operand.name,
        copy_by="lanes",
        offset=0,
        bytes=align(count * 4, 16),
        inner_axis=inner_axis,
        outer_axis=axis,
        halves=in_halves(spec, operand),
        count=count,
        step=step,
        per=divisor,
    )


def strip_part(spec: KernelSpec, operand: Operand, blocks: int) -> Part:
    """The scales of so many K blocks of a tile, those of a block side by side as one load reads them."""
    part = scale_part(spec, operand)
    return part.replace(bytes=blocks * (align(part.count, 4) if part.count > 2 else part.count) * 4)
