"""What rings hold on sm90: atoms of the factors' tiles, scales beside them or in strips, and buffers of outputs.

Knows specs, plans of products and of stores; where rings lie is the placement's business.
"""

from __future__ import annotations

from gemmgen.backends.common import SWIZZLE_BYTES, in_halves
from gemmgen.backends.groups import WARPGROUP
from gemmgen.backends.placement import Footprint
from gemmgen.backends.sm90_push import check_boxes, evicted_first
from gemmgen.backends.sm90_scales import scale_part, strip_part
from gemmgen.backends.sm90_swapped import is_swapped, rows_in_slot
from gemmgen.backends.sm90_tiles import parts
from gemmgen.ir import ClusterSplitK, KernelSpec, KGroups, MmaPlan, Operand, Part, RolePlan, StorePlan, TmaLoad
from gemmgen.ir.spec import GATED_COLUMNS

LANES = 32


def mainloop_ring(spec: KernelSpec, roles: tuple[RolePlan, ...], mma: MmaPlan) -> Footprint:
    """The ring whose slots hold the factors of a K block, and their scales if no other ring does."""
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    ring = spec.ring(body.fills[0])
    if ring.every != 1:
        raise ValueError(f"ring {ring.name!r} turns every {ring.every} K blocks; what is multiplied turns every block")
    if ring.slots == 1 and mma.sfa is None:
        raise ValueError(
            f"ring {ring.name!r} has 1 slot; without promote a slot goes back behind the next one's products, so use 2"
        )
    parts = [_part(spec, mma, spec.operand(name)) for name in ring.holds]
    parts.sort(key=lambda part: part.bytes % 1024 != 0)
    check_boxes(spec, parts)
    lanes = any(part.copy_by == "lanes" for part in parts)
    if lanes and spec.load.warps < 2:
        raise ValueError(
            f"role {spec.load.name!r} has 1 warp; one copies boxes and another gathers scales, so give it 2"
        )
    math_warps = next(role.warps for role in roles if role.kind == "wgmma")
    return Footprint(
        name=ring.name,
        parts=tuple(parts),
        slots=ring.slots,
        full_count=1 + (LANES if lanes else 0),
        empty_count=math_warps * spec.cluster.size,
        tx_bytes=sum(part.atoms * part.atom_bytes for part in parts if part.copy_by == "tma"),
    )


def strips_ring(spec: KernelSpec, roles: tuple[RolePlan, ...], mma: MmaPlan, ring: Footprint) -> list[Footprint]:
    """The ring of a second warp's lanes, whose slots hold B's scales of many K blocks of a tile."""
    names = spec.load.body.fills[1:]
    if not names:
        return []
    strips = spec.ring(names[0])
    where = f"role {spec.load.name!r} fills rings {spec.load.body.fills}"
    held, each = (mma.sfa, mma.sfa_rows == 1) if mma.row_axis == "n" else (mma.sfb, mma.sfb_per_column)
    if len(names) > 1 or strips.holds != (held,) or isinstance(spec.groups, KGroups):
        raise ValueError(
            f"{where}; on sm90 a second ring may hold B's scales alone, of products that are not in groups of k"
        )
    if each:
        raise ValueError(
            f"{where}; a scale of B for each column comes with the factors, so let their ring hold {held!r}"
        )
    if isinstance(spec.schedule, ClusterSplitK):
        raise ValueError(f"{where}; CTAs of schedule cluster_split_k read B's scales themselves, so name one ring")
    if strips.turns != "k" or strips.every == 1:
        raise ValueError(
            f"{where}; a slot of ring {strips.name!r} serves one K block or turns with {strips.turns!r}, and a second "
            "ring is for scales of several, so set turns='k' and every=32, or let the ring of the factors hold them"
        )
    part = strip_part(spec, spec.operand(strips.holds[0]), strips.every)
    warps = 3 if ring.full_count > 1 else 2
    if spec.load.warps < warps:
        raise ValueError(
            f"{where} and has {spec.load.warps} of the {warps} warps that this takes: one copies boxes, others scales"
        )
    drained = next(role.warps for role in roles if role.kind == "wgmma")
    return [
        Footprint(
            name=strips.name,
            parts=(part,),
            slots=strips.slots,
            every=strips.every,
            full_count=LANES,
            empty_count=drained,
        )
    ]


def _part(spec: KernelSpec, mma: MmaPlan, operand: Operand) -> Part:
    if operand.name in (mma.a, mma.b):
        return _tile_part(spec, operand)
    if operand.name in (mma.sfa, mma.sfb):
        return scale_part(spec, operand)
    raise ValueError(f"role {spec.load.name!r} copies operand {operand.name!r}, which no role multiplies or scales by")


def _tile_part(spec: KernelSpec, operand: Operand) -> Part:
    """Atoms 128 bytes wide along the contiguous axis, as many as cover the tile."""
    extent = {"m": spec.tile.m, "n": spec.tile.n, "k": spec.tile.k}
    elements = SWIZZLE_BYTES // operand.dtype.bytes
    rows = extent[operand.outer]
    atoms = -(-extent[operand.inner] // elements)
    shared = spec.cluster.m if "n" in operand.axes else spec.cluster.n
    if rows > 256:
        raise ValueError(f"operand {operand.name!r}: {rows} rows of a box, TMA copies at most 256; use a smaller tile")
    unit = (GATED_COLUMNS if in_halves(spec, operand) else 8) * shared
    if rows % unit:
        raise ValueError(f"operand {operand.name!r}: {rows} rows shared by {shared} CTAs must be a multiple of {unit}")
    pitch = rows_in_slot(spec) if operand.outer == "m" else rows
    return Part(
        operand=operand.name,
        copy_by="tma",
        offset=0,
        bytes=atoms * pitch * SWIZZLE_BYTES,
        inner_axis=operand.inner,
        outer_axis=operand.outer,
        halves=in_halves(spec, operand),
        atoms=atoms,
        atom_bytes=rows * SWIZZLE_BYTES,
        atom_rows=pitch,
        atom_elements=elements,
        shared=shared,
        stack=parts(spec) if "n" in operand.axes else 1,
        evict_first=evicted_first(spec, operand, shared),
    )


def staging_ring(spec: KernelSpec, store: StorePlan, roles: tuple[RolePlan, ...]) -> list[Footprint]:
    """The buffers that outputs go through, if they do."""
    if store.through is None:
        return []
    warps = next(role.warps for role in roles if role.kind == "wgmma")
    part = Part(
        operand=store.operand,
        copy_by="tma",
        offset=0,
        bytes=warps // (WARPGROUP if is_swapped(spec) else 1) * store.rows * store.row_bytes,
        inner_axis="n",
        outer_axis="m",
    )
    return [Footprint(name=store.through, parts=(part,), slots=store.slots, turns="store")]
