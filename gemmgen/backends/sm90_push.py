"""Lowering of ClusterSplitK on Hopper: what such a spec may not have, hints for weights, where sums are pushed to."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from gemmgen.backends.placement import align
from gemmgen.backends.sm90_swapped import PRODUCT_ROWS, is_swapped, product_extents
from gemmgen.ir import ClusterSplitK, KernelSpec, MmaPlan, Operand, Part, PushPlan, Reduce, TmaLoad, Wgmma
from gemmgen.ir.spec import GATED_COLUMNS

COLUMNS = 8
"""Columns of a fragment that a thread has two of: the narrowest slice."""
ROW_BYTES = 512
"""Bytes that a warp holds of 8 columns."""
BARRIER_BYTES = 8
WARP_ROWS = 16
"""Rows of a product that a warp has."""
SCALED_BOX = ("n/128", "k/128")
"""Scales of B that lanes can read."""


def check_cluster_split_k(spec: KernelSpec) -> None:
    """Refuse what the form has no place for, each with a way out."""
    if not isinstance(spec.schedule, ClusterSplitK):
        return
    where = f"spec {spec.name!r} has schedule cluster_split_k"
    if spec.cluster.size > 1:
        raise ValueError(f"{where} and a cluster that multicasts; its CTAs have unlike K blocks, so leave cluster out")
    if spec.prologue:
        raise ValueError(f"{where} and a prologue; use SplitK(splits=None), whose CTAs meet in a workspace")
    if reduced := [step.to for step in spec.epilogue if isinstance(step, Reduce)]:
        raise ValueError(
            f"{where} and reduces to {reduced[0]!r}; tiles of a reduction are stored by one CTA, so use Persistent"
        )
    if spec.load.warps != 1 or spec.roles[0] != spec.math:
        raise ValueError(f"{where}: warps that multiply come first, then one that loads; see role {spec.load.name!r}")
    if spec.gate and stored_columns(spec) % GATED_COLUMNS:
        raise ValueError(
            f"{where}: CTAs own slices of {stored_columns(spec)} columns, but a gate takes {GATED_COLUMNS} at a time; "
            "use fewer splits or a wider tile"
        )


def is_short(spec: KernelSpec) -> bool:
    """Whether a tile has fewer rows than a product: the others are multiplied, whatever lies there, and dropped."""
    if spec.tile.m >= PRODUCT_ROWS or is_swapped(spec) or not isinstance(spec.schedule, ClusterSplitK):
        return False
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if spec.tile.m % WARP_ROWS or spec.math.warps != 4 or spec.operand(body.a).inner != "k":
        raise ValueError(
            f"tile.m is {spec.tile.m}: a tile of fewer rows than the {PRODUCT_ROWS} of a product has a multiple of "
            f"{WARP_ROWS}, one warpgroup and A contiguous along k"
        )
    return True


def storing_warps(spec: KernelSpec) -> int:
    """Warps that have rows of the tile."""
    return spec.tile.m // WARP_ROWS if is_short(spec) else spec.math.warps


def check_one_block(spec: KernelSpec, mma: MmaPlan) -> None:
    """Refuse tiles of several blocks a warpgroup."""
    if isinstance(spec.schedule, ClusterSplitK) and mma.units > 1:
        raise ValueError(
            f"spec {spec.name!r} has schedule cluster_split_k and {mma.row_blocks} x {mma.col_blocks} blocks a "
            "warpgroup; use one: a warpgroup for 64 rows and a width of the whole tile"
        )


def check_boxes(spec: KernelSpec, parts: Sequence[Part]) -> None:
    """Refuse scales that lanes of a loading warp would have to gather."""
    gathered = [part.operand for part in parts if part.copy_by == "lanes"]
    if isinstance(spec.schedule, ClusterSplitK) and gathered:
        raise ValueError(
            f"spec {spec.name!r} has schedule cluster_split_k, whose one loading thread cannot copy {gathered[0]!r} by "
            "TMA; lay it out along its rows, or name it in the reads of the role that multiplies"
        )


def scales_by_lanes(spec: KernelSpec, sfb: Operand) -> bool:
    """Whether warps read B's scales themselves, which then are one for 128 columns and 128 of k."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if sfb.name not in body.reads:
        return False
    if sfb.plane != SCALED_BOX or sfb.inner != SCALED_BOX[1] or spec.gate:
        raise ValueError(
            f"role {spec.math.name!r} reads {sfb.name!r} with box {sfb.box}; lanes read scales with box {SCALED_BOX} "
            "that lie along k, of products without a gate; let a ring hold others"
        )
    if 128 - gcd(spec.tile.n, 128) + spec.tile.n > 2 * 128:
        raise ValueError(
            f"role {spec.math.name!r} reads {sfb.name!r} itself, and a tile of {spec.tile.n} columns meets more than "
            "two rows of scales; let a ring hold them, or change tile.n"
        )
    return True


def evicted_first(spec: KernelSpec, operand: Operand, shared: int) -> bool:
    """Whether L2 may drop the operand first; ``shared`` CTAs fetch a part of each box."""
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    if operand.name not in body.evict_first:
        return False
    if shared > 1:
        raise ValueError(f"operand {operand.name!r} has a hint and a multicast, which is lowered without; drop either")
    return True


def stored_columns(spec: KernelSpec) -> int:
    """Columns of the product that a warp stores at once: an equal share of the tile if it is whole fragments."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    _, columns = product_extents(spec)
    splits = spec.schedule.splits if isinstance(spec.schedule, ClusterSplitK) else 1
    if splits == 1:
        return body.width or columns
    return columns // splits if columns % (COLUMNS * splits) == 0 else COLUMNS


def push_plan(spec: KernelSpec) -> PushPlan | None:
    """Who owns which slices of a tile; addresses are still open. None where no CTA shares a tile."""
    if not isinstance(spec.schedule, ClusterSplitK) or spec.schedule.splits == 1:
        return None
    columns, splits = stored_columns(spec), spec.schedule.splits
    slices = product_extents(spec)[1] // columns * storing_warps(spec)
    per_cta = -(-slices // splits)
    return PushPlan(
        columns=columns, slices=slices, per_cta=per_cta, bytes=per_cta * splits * columns // COLUMNS * ROW_BYTES
    )


def push_bytes(push: PushPlan | None) -> int:
    """What the buffers take behind the rings' barriers, with their own, wherever those end."""
    return 0 if push is None else BARRIER_BYTES + push.bytes + BARRIER_BYTES


def placed(push: PushPlan | None, shared_bytes: int) -> PushPlan | None:
    """The plan with addresses in the last bytes of shared memory."""
    if push is None:
        return None
    start = align(shared_bytes - push_bytes(push), 16)
    return push.replace(buffers=start, full=start + push.bytes)
