"""Lowering for workstation Blackwell: TMA producers, warps that multiply out of registers and run the epilogue.

Reads as a table of contents: each step decides one part of the plan and refuses what the hardware cannot do.
"""

from __future__ import annotations

from typing import Literal

from gemmgen.backends.common import (
    SWIZZLE_BYTES,
    check_cluster,
    check_factors,
    check_groups,
    check_k_groups,
    check_starts,
    digest,
    in_halves,
    mapped_axes,
    params,
    quantising,
    shifted_boxes,
    split_heads,
    staged_row_bytes,
    step_plans,
    store_map,
)
from gemmgen.backends.groups import WORDS_A_CHUNK
from gemmgen.backends.lowered import check_lowered
from gemmgen.backends.placement import TMA_ALIGNMENT, Footprint, align, place_rings, place_roles
from gemmgen.backends.reductions import reduction_workspaces
from gemmgen.backends.sm120_product import (
    ATOM_ELEMENTS,
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    SCALES_PER_WORD,
    column_axis,
    product,
    spreads,
)
from gemmgen.ir import (
    DType,
    KernelSpec,
    MmaSyncPlan,
    Operand,
    Part,
    Plan,
    Quantise,
    RingPlan,
    RolePlan,
    Store,
    StorePlan,
    TensorMapPlan,
    TmaLoad,
)

LANES = 32
BOX_ROWS = 256
"""Rows that the copy engine takes at once."""
ELEMENTS: dict[DType, Literal["u8", "bf16", "f32", "i32"]] = {
    DType.E4M3: "u8",
    DType.E5M2: "u8",
    DType.E2M1: "u8",
    DType.BF16: "bf16",
    DType.F32: "f32",
    DType.UE8M0X4: "i32",
    DType.UE4M3X4: "i32",
}
"""How the copy engine names elements; packed 4-bit ones are copied two a byte."""


def lower(spec: KernelSpec) -> Plan:
    """The plan of an sm120 spec. Raises ``ValueError`` naming what does not fit and what to change."""
    check_lowered(spec)
    check_cluster(spec)
    check_factors(spec)
    check_groups(spec)
    roles = place_roles(spec)
    mma = product(spec)
    store = _output_path(spec, mma)
    rings, shared_bytes = place_rings(spec, [_mainloop_ring(spec, roles, mma), *_staging_ring(store, mma)])
    maps, workspaces = _tensor_maps(spec, rings, mma, store), reduction_workspaces(spec, mma)
    return Plan(
        name=spec.name,
        arch=spec.arch,
        spec_digest=digest(spec),
        tile=spec.tile,
        cluster=spec.cluster,
        threads=sum(role.warps for role in roles) * LANES,
        ctas_per_sm=spec.ctas_per_sm,
        shared_bytes=shared_bytes,
        rings=rings,
        roles=roles,
        mma=mma,
        epilogue=step_plans(spec),
        store=store,
        schedule=spec.schedule,
        programmatic_launch=spec.programmatic_launch,
        tensor_maps=maps,
        params=params(spec, maps, workspaces),
        operands=spec.operands,
        prologue=spec.prologue,
        workspaces=workspaces,
        groups=spec.groups,
    )


# ---------------------------------------------------------------------------------------------- rings


def _mainloop_ring(spec: KernelSpec, roles: tuple[RolePlan, ...], mma: MmaSyncPlan) -> Footprint:
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    if len(body.fills) != 1:
        raise ValueError(f"role {spec.load.name!r} fills rings {body.fills}; sm120 loads through one ring")
    ring = spec.ring(body.fills[0])
    if ring.every != 1:
        raise ValueError(f"ring {ring.name!r} turns every {ring.every} K blocks; data on sm120 turns every block")
    parts = [_part(spec, mma, spec.operand(name)) for name in ring.holds]
    parts.sort(key=lambda part: part.bytes % TMA_ALIGNMENT != 0)
    return Footprint(
        name=ring.name,
        parts=tuple(parts),
        slots=ring.slots,
        full_count=1,
        empty_count=next(role.warps for role in roles if role.kind == "mma_sync"),
        tx_bytes=sum(_tx_bytes(spec, mma, part) for part in parts if part.per == 1),
    )


def _tx_bytes(spec: KernelSpec, mma: MmaSyncPlan, part: Part) -> int:
    """Bytes the copy engine counts: of 4-bit elements spread to bytes, the packed ones."""
    if part.copy_by == "words":
        return part.words * part.count * 4
    return part.atoms * part.atom_bytes // (2 if spreads(spec.operand(part.operand).dtype, mma.call) else 1)


def _part(spec: KernelSpec, mma: MmaSyncPlan, operand: Operand) -> Part:
    if operand.name in (mma.a, mma.b):
        return _tile_part(spec, mma, operand)
    if operand.name in (mma.sfa, mma.sfb):
        return _scale_part(spec, mma, operand)
    raise ValueError(f"role {spec.load.name!r} copies operand {operand.name!r}, which no role multiplies or scales by")


def _tile_part(spec: KernelSpec, mma: MmaSyncPlan, operand: Operand) -> Part:
    """Rows of 64 or 128 bytes of k; or, of an operand that is not k-contiguous, atoms 128 bytes wide."""
    check_starts(spec, operand)
    check_k_groups(spec, operand)
    extent = {"m": spec.tile.m, "n": spec.tile.n, "k": spec.tile.k}
    rows, inner = extent[operand.outer], extent[operand.inner]
    k_major = operand.inner == "k"
    elements, width = (inner, mma.row_bytes) if k_major else (ATOM_ELEMENTS, SWIZZLE_BYTES)
    if mma.cast_a:  # the other factor's elements are wider than those that a row is counted by
        elements = width // operand.dtype.bytes
    if rows > BOX_ROWS:
        raise ValueError(f"operand {operand.name!r}: {rows} rows of a box, TMA copies at most 256; use a smaller tile")
    if rows * width % TMA_ALIGNMENT:
        raise ValueError(
            f"operand {operand.name!r}: {rows} rows of {width} B are no whole smem_swizzle of {TMA_ALIGNMENT} B; "
            f"use a multiple of {TMA_ALIGNMENT // width} rows"
        )
    atoms = -(-inner // elements)
    return Part(
        operand=operand.name,
        copy_by="tma",
        offset=0,
        bytes=atoms * rows * width,
        inner_axis=operand.inner,
        outer_axis=operand.outer,
        halves=in_halves(spec, operand),
        atoms=atoms,
        atom_bytes=rows * width,
        atom_elements=elements,
    )


def _scale_part(spec: KernelSpec, mma: MmaSyncPlan, operand: Operand) -> Part:
    """Words of four scales, one a row; where a word serves several K blocks, it comes with the first of them."""
    is_a = operand.name == mma.sfa
    axis = mma.row_axis if is_a else column_axis(mma.row_axis)
    if operand.inner != axis:
        raise ValueError(f"scales {operand.name!r} have box {operand.box}; they need one word a row: ({axis!r}, ...)")
    tile = spec.tile.m if axis == "m" else spec.tile.n
    boxes, rows = shifted_boxes(spec, axis, tile)
    if boxes > 1:
        raise ValueError(
            f"scales {operand.name!r}: a tile of {tile} rows that starts anywhere needs a box of "
            f"{tile + WORDS_A_CHUNK} words, TMA copies at most {BOX_ROWS}; use a smaller tile.m, or groups at "
            f"multiples of {WORDS_A_CHUNK}"
        )
    span = (mma.sfa_block if is_a else mma.sfb_block) * SCALES_PER_WORD
    words = max(1, spec.tile.k // span)
    return Part(
        operand=operand.name,
        copy_by="words",
        offset=0,
        bytes=align(words * rows * 4, 128),
        inner_axis=axis,
        outer_axis=operand.outer,
        halves=in_halves(spec, operand),
        count=rows,
        per=max(1, span // spec.tile.k),
        words=words,
    )


def _staging_ring(store: StorePlan, mma: MmaSyncPlan) -> list[Footprint]:
    if store.through is None:
        return []
    part = Part(
        operand=store.operand,
        copy_by="tma",
        offset=0,
        bytes=mma.warps * store.rows * store.row_bytes,
        inner_axis="n",
        outer_axis="m",
    )
    return [Footprint(name=store.through, parts=(part,), slots=store.slots, turns="store")]


# ---------------------------------------------------------------------------------------------- output, host side


def _output_path(spec: KernelSpec, mma: MmaSyncPlan) -> StorePlan:
    """A warp stages 16 rows of its columns; a swapped product's fragments hold columns, so they are stored directly."""
    step = spec.epilogue[-1]
    assert isinstance(step, Store | Quantise)
    output = spec.output
    if mma.row_axis == "n" and isinstance(step, Quantise):
        raise ValueError(f"output {output.name!r} is quantised along n, which swap_ab puts on the rows; do not swap")
    width = spec.output_columns(mma.column_blocks * BLOCK_COLUMNS)
    plan = StorePlan(operand=output.name, dtype=output.dtype, through=step.through, **quantising(spec, width))
    plan = plan.replace(accumulate=spec.accumulates)
    if step.through is None:
        return split_heads(spec, plan)
    if mma.row_axis == "n":
        raise ValueError(f"output {output.name!r} of a swapped product is stored from registers; leave out `through`")
    row_bytes = staged_row_bytes(width * output.dtype.bits // 8)
    slots = spec.ring(step.through).slots or 1
    return split_heads(spec, plan.replace(row_bytes=row_bytes, rows=BLOCK_ROWS, slots=slots))


def _tensor_maps(
    spec: KernelSpec, rings: tuple[RingPlan, ...], mma: MmaSyncPlan, store: StorePlan
) -> tuple[TensorMapPlan, ...]:
    maps = [_load_map(spec, mma, part) for ring in rings if ring.turns == "k" for part in ring.parts]
    if store.through is not None:
        maps.append(store_map(spec, store))
    order = [operand.name for operand in spec.operands]
    return tuple(sorted(maps, key=lambda plan: order.index(plan.operand)))


def _load_map(spec: KernelSpec, mma: MmaSyncPlan, part: Part) -> TensorMapPlan:
    operand = spec.operand(part.operand)
    spread = spreads(operand.dtype, mma.call)
    if part.copy_by == "words":
        box: tuple[int, int] = (part.count, part.words)
        swizzle: Literal[0, 32, 64, 128] = 0
    else:
        swizzle = mma.row_bytes if part.inner_axis == "k" else 128
        elements = part.atom_elements if spread else part.atom_elements // operand.dtype.packed
        box = (elements, part.atom_bytes // swizzle)
    return TensorMapPlan(
        operand=operand.name,
        dtype=operand.dtype,
        axes=mapped_axes(operand),
        halves=part.halves,
        box=box,
        smem_swizzle=swizzle,
        element=(
            "16u4_align16b" if spread else "tf32" if mma.cast_a and operand.name == mma.b else ELEMENTS[operand.dtype]
        ),
    )
