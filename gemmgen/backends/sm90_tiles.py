"""How sm90 walks over tiles: epilogues beside the next tile's products, tiles of a last wave that are cut, first sums.

Knows specs and plans of products, no other part of lowering.
"""

from __future__ import annotations

from gemmgen.backends.common import SWIZZLE_BYTES, majorness
from gemmgen.ir import (
    Bias,
    ClusterSplitK,
    CutRemainder,
    Gate,
    KernelSpec,
    MmaPlan,
    Persistent,
    Reduce,
    RingPlan,
    SplitK,
    StorePlan,
    TmaLoad,
    Wgmma,
)


def parts(spec: KernelSpec) -> int:
    """Parts that tiles of the last wave are cut into along n; 1 if they stay whole."""
    return spec.schedule.parts if isinstance(spec.schedule, CutRemainder) else 1


def check_tiles(spec: KernelSpec) -> None:
    """Refuse walks over tiles that have no form here."""
    _check_splits(spec)
    _check_overlap(spec)
    _check_rounds(spec)
    _check_cut(spec)


def _check_splits(spec: KernelSpec) -> None:
    if not isinstance(spec.schedule, SplitK):
        return
    if spec.schedule.splits is not None:
        raise ValueError(
            f"spec {spec.name!r} splits k in {spec.schedule.splits}; on sm90 the launch decides, use splits=None"
        )
    if spec.cluster.size > 1:
        raise ValueError(f"spec {spec.name!r} has splits of k and a cluster; CTAs that share a tile are in none")


def _check_overlap(spec: KernelSpec) -> None:
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if not body.overlap_epilogue:
        return
    where = f"role {spec.math.name!r} has overlap_epilogue"
    if body.promote is None:
        raise ValueError(f"{where}: without promote its sums stay in the registers of products; leave it out")
    if not isinstance(spec.schedule, Persistent | CutRemainder):
        raise ValueError(f"{where}: with schedule {spec.schedule.kind} no CTA knows its next tile; use Persistent")


def _check_rounds(spec: KernelSpec) -> None:
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if not body.whole_rounds:
        return
    where = f"role {spec.math.name!r} has whole_rounds"
    if body.promote is None or isinstance(spec.schedule, ClusterSplitK):
        raise ValueError(
            f"{where}, which is lowered for products that are promoted and whose CTAs share no tile in a cluster; "
            "leave it out"
        )
    if body.unroll > 1:
        raise ValueError(f"{where} and unroll={body.unroll}: a round has a copy for every slot; use unroll=1")


def check_partials(spec: KernelSpec, mma: MmaPlan) -> None:
    """Refuse products that take no turns at two sets of registers."""
    if mma.partials == 1:
        return
    where = f"role {spec.math.name!r} has partials={mma.partials}"
    if isinstance(spec.schedule, ClusterSplitK):
        raise ValueError(f"{where}; a CTA of schedule {spec.schedule.kind} has few K blocks, so leave it out")
    if mma.units % mma.partials:
        raise ValueError(
            f"{where} and {mma.units} products of {mma.width} columns a K block, so in every other block they would "
            "change places; use a width or a tile with an even number of them"
        )
    if mma.sfb_per_column:
        raise ValueError(
            f"{where}; a scale of B for each column is read as sums are scaled, behind which its slot would go back "
            "too late, so leave it out"
        )


def _check_cut(spec: KernelSpec) -> None:
    if parts(spec) == 1:
        return
    where = f"spec {spec.name!r} cuts its last wave in {parts(spec)} parts"
    if spec.tile.n % (8 * parts(spec)):
        raise ValueError(f"{where}: tile.n is {spec.tile.n}, no multiple of {8 * parts(spec)}; change parts or tile.n")
    if spec.cluster.size > 1:
        raise ValueError(f"{where} and has a cluster, whose CTAs share what they load; use Cluster(m=1, n=1)")
    if spec.prologue or spec.gate or any(isinstance(step, Reduce) for step in spec.epilogue):
        raise ValueError(f"{where}; with a prologue, a gate or reductions all tiles are alike, so use Persistent")
    if isinstance(spec.load.body, TmaLoad) and spec.load.body.evict_first:
        raise ValueError(f"{where} and role {spec.load.name!r} has evict_first, which parts do not know; leave it out")
    body = spec.math.body
    assert isinstance(body, Wgmma)
    b = spec.operand(body.b)
    if majorness(b, "n") != "k" or spec.tile.k * b.dtype.bytes != SWIZZLE_BYTES:
        raise ValueError(
            f"{where}: a part's rows of {b.name!r} must lie together in a slot; make it k-contiguous with tile.k of "
            f"{SWIZZLE_BYTES} bytes"
        )


def cut_tx_bytes(ring: RingPlan) -> int:
    """Transaction bytes of a slot of a cut tile, for which the first box of every stack comes."""
    stacks = [part for part in ring.parts if part.stack > 1]
    return ring.tx_bytes - sum(part.bytes - part.bytes // part.stack for part in stacks)


def cut_product(spec: KernelSpec, mma: MmaPlan, store: StorePlan) -> MmaPlan | None:
    """The product of a cut tile: a single instruction as wide as the part, in the same registers."""
    if parts(spec) == 1:
        return None
    width = spec.tile.n // parts(spec)
    if store.block and width % store.block:
        raise ValueError(
            f"spec {spec.name!r} cuts tiles to {width} columns, and a scale of {store.operand!r} is for {store.block}; "
            "use fewer parts or Persistent"
        )
    return mma.replace(
        instruction=mma.instruction.replace(f"n{mma.width}k", f"n{width}k"),
        width=width,
        col_blocks=1,
        overlap_epilogue=False,
        partials=1,
    )


def sums_start(spec: KernelSpec) -> bool:
    """Whether the chain begins with a bias that the scaling of the first K block can add.

    Without scales the tensor core sums, and its registers may not be written between its products. Of CTAs of a cluster
    that share K blocks the first one adds it; other splits would once each. Halves of n lie apart in memory, and a
    swapped product has n on the rows. Where products take turns at registers, the first block's copy would wait for all
    of them once more a tile.
    """
    body, halves = spec.math.body, spec.gate is not None and spec.gate.layout == "halves"
    assert isinstance(body, Wgmma)
    once = isinstance(spec.schedule, Persistent | ClusterSplitK)
    promoted = body.promote is not None and body.partials == 1 and not body.swap_ab and once
    return promoted and isinstance(spec.epilogue[0], Bias) and not halves


def stores_apart(spec: KernelSpec, mma: MmaPlan, store: StorePlan) -> bool:
    """Whether the two products of a warpgroup are staged one by one, beside products that follow.

    Each is a turn of staging buffers. What blocks of both products' columns, gates and reductions need is there when
    both have ended, and steps that read would hold registers that products have.
    """
    if not (mma.overlap_epilogue and mma.units == 2 and store.through):
        return False
    steps = spec.epilogue[int(sums_start(spec)) :]
    plain = not (store.scales or any(isinstance(step, Gate | Reduce) or step.reads for step in steps))
    return plain and store.turn * store.row_bytes == mma.width * store.dtype.bytes
