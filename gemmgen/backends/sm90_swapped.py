"""Products with swapped factors on Hopper: n is on the 64 rows of an instruction, the tile's rows are its columns.

Knows specs, no other part of lowering.
"""

from __future__ import annotations

from typing import Literal

from gemmgen.ir import ClusterSplitK, KernelSpec, KGroups, OneTile, Persistent, Quantise, SplitK, Store, Wgmma

Axis = Literal["m", "n"]
PRODUCT_ROWS = 64
"""Rows of one wgmma."""
STAGED_BYTES = 2
"""Of an element, so that 64 are at most a line of 128 bytes."""


def is_swapped(spec: KernelSpec) -> bool:
    """Whether n is on the product's rows."""
    body = spec.math.body
    return isinstance(body, Wgmma) and body.swap_ab


def check_swapped(spec: KernelSpec) -> None:
    """Refuse what swapped products have no form for, each with a way out."""
    if not is_swapped(spec):
        return
    body, where = spec.math.body, f"spec {spec.name!r} has swap_ab"
    assert isinstance(body, Wgmma)
    shared = isinstance(spec.schedule, SplitK) and not spec.schedule.slices
    if not (shared or isinstance(spec.schedule, Persistent | OneTile | ClusterSplitK)):
        raise ValueError(
            f"{where} and schedule {spec.schedule.kind}, which is lowered for m on the rows; use Persistent"
        )
    if body.overlap_epilogue or body.share_k:
        field = "overlap_epilogue" if body.overlap_epilogue else "share_k"
        raise ValueError(f"{where} and {field}, which is for products with m on their rows; leave one out")
    if body.reads and not isinstance(spec.schedule, ClusterSplitK):
        raise ValueError(
            f"{where}, but warps that walk tiles read {body.reads[0]!r} by themselves; those of swapped products find "
            "scales in slots, so let the ring hold it"
        )
    if isinstance(spec.groups, KGroups):
        raise ValueError(f"{where} and groups of k, whose outputs have many rows; do not swap")
    if spec.operand(body.a).inner != "k":
        raise ValueError(
            f"{where}, but operand {body.a!r} is m-contiguous, which comes 64 of m at a time; make k contiguous, or do "
            "not swap"
        )


def check_swapped_store(spec: KernelSpec) -> None:
    """Refuse outputs that fragments with columns of the output on their rows are not stored to."""
    step, output = spec.epilogue[-1], spec.output
    assert isinstance(step, Store | Quantise)
    if isinstance(step, Quantise):
        raise ValueError(f"output {output.name!r} is quantised along n, which swap_ab puts on the rows; do not swap")
    if step.through is None:
        return
    if isinstance(spec.schedule, ClusterSplitK | SplitK):
        raise ValueError(
            f"output {output.name!r} of a swapped product is staged by warpgroups, but with schedule "
            f"{spec.schedule.kind} each warp finishes sums by itself; leave out `through`"
        )
    if output.dtype.bytes > STAGED_BYTES:
        raise ValueError(
            f"output {output.name!r} of a swapped product is staged by warpgroups, 64 columns in 128 bytes at most; "
            f"leave out `through` for {output.dtype}"
        )


def staged_rows(spec: KernelSpec) -> int:
    """Rows of the output in a staging buffer: those of a product, or a part of them."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    rows = body.width or spec.tile.m
    if body.staged_rows is not None and rows % body.staged_rows:
        raise ValueError(
            f"role {spec.math.name!r} has staged_rows={body.staged_rows}: a product has {rows}, which is not several "
            "of those; use a divisor"
        )
    return body.staged_rows or rows


def product_axes(spec: KernelSpec) -> tuple[Axis, Axis]:
    """The axes of the output on the product's rows and on its columns."""
    return ("n", "m") if is_swapped(spec) else ("m", "n")


def product_extents(spec: KernelSpec) -> tuple[int, int]:
    """Rows and columns of the tile's product."""
    down, across = (spec.tile.m if axis == "m" else spec.tile.n for axis in product_axes(spec))
    return down, across


def rows_in_slot(spec: KernelSpec) -> int:
    """Rows of A that have a place in a slot: of a tile of fewer than a product reads, that many."""
    return spec.tile.m if is_swapped(spec) else max(spec.tile.m, PRODUCT_ROWS)
