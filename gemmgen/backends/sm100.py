"""Lowering for datacenter Blackwell: TMA producers, one thread issuing tcgen05.mma, accumulators in tensor memory.

Reads as a table of contents: each step decides one part of the plan and refuses what the hardware cannot do.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

from gemmgen.backends.common import (
    SWIZZLE_BYTES,
    check_cluster,
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
from gemmgen.backends.placement import BARRIER_BYTES, Footprint, align, place_rings, place_roles
from gemmgen.backends.reductions import reduction_workspaces
from gemmgen.backends.sm100_cast import (
    CAST_WARPS,
    accumulator_columns,
    cast_ring,
    casts,
    check_cast,
    sums_squares,
)
from gemmgen.backends.sm100_product import LANES, SCALES_PER_WORD, column_axis, multiplier, product, smem_bits
from gemmgen.ir import (
    CutRemainder,
    DType,
    KernelSpec,
    LaunchControl,
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
    TmemStore,
    TransposeScales,
    UmmaPlan,
)

COLUMNS = 512
"""Columns of tensor memory."""
WARP_ROWS = 32
CHUNK_BYTES = 16
"""What the copy engine starts boxes at multiples of."""
ANSWER_BYTES = 16
"""What the hardware answers to a request to take over a launch."""
ELEMENTS: dict[DType, Literal["u8", "bf16", "f32", "i32", "16u4_align16b"]] = {
    DType.E4M3: "u8",
    DType.E5M2: "u8",
    DType.E2M1: "16u4_align16b",
    DType.BF16: "bf16",
    DType.F32: "f32",
    DType.UE8M0X4: "i32",
    DType.UE4M3X4: "i32",
}
"""How the copy engine names elements; a 4-bit operand that is not packed gets a byte each in shared memory."""


def lower(spec: KernelSpec) -> Plan:
    """The plan of an sm100 spec. Raises ``ValueError`` naming what does not fit and what to change."""
    check_cluster(spec)
    check_groups(spec)
    check_cast(spec)
    _check_roles(spec)
    roles = place_roles(spec)
    mma = product(spec)
    store = _output_path(spec, mma)
    sums = _accumulator_ring(spec, mma, roles)
    footprints = [*_operand_rings(spec, mma), sums, *_staging_ring(store, roles), *_launch_ring(spec, mma, roles)]
    footprints += cast_ring(spec, mma, sums.columns * (sums.slots or 1), COLUMNS)
    rings, shared_bytes = place_rings(spec, footprints, extra=BARRIER_BYTES)
    rings, used = _place_scales(rings)
    mma = mma.replace(tmem_columns=_allocation(spec, used), tmem_address=shared_bytes - BARRIER_BYTES)
    maps, workspaces = _tensor_maps(spec, rings, mma, store), reduction_workspaces(spec, mma)
    return Plan(
        name=spec.name,
        arch=spec.arch,
        spec_digest=digest(spec),
        tile=spec.tile,
        cluster=spec.cluster,
        threads=sum(role.warps for role in roles) * 32,
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
        workspaces=workspaces,
        prologue=spec.prologue,
        groups=spec.groups,
    )


def _check_roles(spec: KernelSpec) -> None:
    if isinstance(spec.schedule, CutRemainder):
        raise ValueError(f"spec {spec.name!r} has schedule cut_remainder, which sm100 does not have; use Persistent")
    body = multiplier(spec)
    storing = [role for role in spec.roles if isinstance(role.body, TmemStore)]
    if len(storing) != 1 or storing[0].warps != LANES // WARP_ROWS:
        raise ValueError(
            f"spec {spec.name!r} needs one role with body TmemStore and 4 warps: each reaches 32 lanes of tensor memory"
        )
    scaled = {name for role in spec.roles if isinstance(role.body, TransposeScales) for name in role.body.hands_on}
    needed = {ring.name for ring in spec.rings if body.scales and {body.scales.a, body.scales.b} & set(ring.holds)}
    if scaled != needed:
        raise ValueError(f"rings {sorted(needed)} hold block scales, but TransposeScales hands on {sorted(scaled)}")
    if spec.ctas_per_sm != 1:
        raise ValueError(f"spec {spec.name!r} asks for {spec.ctas_per_sm} CTAs an SM; its tensor memory allows 1")
    along, shape = ("n", (1, body.ctas)) if body.swap_ab else ("m", (body.ctas, 1))
    if (spec.cluster.m, spec.cluster.n) != shape:
        raise ValueError(
            f"role {spec.math.name!r} multiplies for {body.ctas} CTAs along {along}, but the cluster is "
            f"{spec.cluster.m}x{spec.cluster.n}; make it {shape[0]}x{shape[1]}"
        )


# ---------------------------------------------------------------------------------------------- rings


def _operand_rings(spec: KernelSpec, mma: UmmaPlan) -> list[Footprint]:
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    return [_operand_ring(spec, mma, name) for name in body.fills]


def _operand_ring(spec: KernelSpec, mma: UmmaPlan, name: str) -> Footprint:
    """Slots with scales fill up in each CTA and are handed on to the first one, others fill up there at once."""
    ring = spec.ring(name)
    parts = tuple(_part(spec, mma, spec.operand(held)) for held in ring.holds)
    parts = tuple(sorted(parts, key=lambda part: part.copy_by == "words"))  # placement wants the widest alignment first
    served = {part.operand: part.per for part in parts}
    every = max(served.values(), default=1)
    if every != min(served.values(), default=1):
        raise ValueError(
            f"ring {name!r}: a slot of {served} serves so many K blocks each; what turns over apart needs its own ring"
        )
    if ring.every != every:
        raise ValueError(
            f"ring {name!r} turns every {ring.every} K blocks; its scales serve {every}, so set every={every}"
        )
    scales = any(part.copy_by == "words" for part in parts)
    return Footprint(
        name=name,
        parts=parts,
        slots=ring.slots,
        every=every,
        full_count=1,
        ready_count=mma.ctas if scales else 0,
        empty_count=1 + (CAST_WARPS if casts(spec) else 0),
        tx_bytes=sum(_tx_bytes(spec, mma, part) for part in parts) * (1 if scales else mma.ctas),
    )


def _tx_bytes(spec: KernelSpec, mma: UmmaPlan, part: Part) -> int:
    """Bytes the copy engine counts: of 4-bit elements spread to bytes, the packed ones."""
    if part.copy_by == "words":
        return part.words * part.atoms * part.atom_elements * 4
    spread = spec.operand(part.operand).dtype == DType.E2M1 and mma.call == "mxf8f6f4"
    return part.atoms * part.atom_bytes // (2 if spread else 1)


def _part(spec: KernelSpec, mma: UmmaPlan, operand: Operand) -> Part:
    if operand.name in (mma.a, mma.b):
        return _tile_part(spec, mma, operand)
    if operand.name in (mma.sfa, mma.sfb):
        return _scale_part(spec, mma, operand)
    raise ValueError(f"role {spec.load.name!r} copies operand {operand.name!r}, which no role multiplies or scales by")


def _tile_part(spec: KernelSpec, mma: UmmaPlan, operand: Operand) -> Part:
    """Atoms 128 bytes wide along the contiguous axis, as many as cover this CTA's share of the tile."""
    check_starts(spec, operand)
    check_k_groups(spec, operand)
    share = {mma.lane_axis: LANES, column_axis(mma.lane_axis): mma.columns // mma.ctas, "k": spec.tile.k}
    body = multiplier(spec)
    elements = SWIZZLE_BYTES * 8 // smem_bits(operand, body)
    rows, inner = share[operand.outer], share[operand.inner]
    if inner % elements:
        raise ValueError(
            f"operand {operand.name!r} is {operand.inner}-contiguous: {inner} elements of {operand.inner} a CTA are no "
            f"multiple of the {elements} in 128 bytes; change the tile"
        )
    return Part(
        operand=operand.name,
        copy_by="tma",
        offset=0,
        bytes=inner // elements * rows * SWIZZLE_BYTES,
        inner_axis=operand.inner,
        outer_axis=operand.outer,
        halves=in_halves(spec, operand),
        atoms=inner // elements,
        atom_bytes=rows * SWIZZLE_BYTES,
        atom_elements=elements,
    )


def _scale_part(spec: KernelSpec, mma: UmmaPlan, operand: Operand) -> Part:
    """Words of four scales, one a row; rows are rounded up to the 128 that one copy to tensor memory takes.

    Where tiles start inside a box, words are moved up by up to three on their way, so there is room behind the last.
    """
    axis, rows = (mma.lane_axis, LANES) if operand.name == mma.sfa else (column_axis(mma.lane_axis), mma.columns)
    if operand.inner != axis:
        raise ValueError(f"scales {operand.name!r} have box {operand.box}; they need one word a row: ({axis!r}, ...)")
    block = mma.sfa_block if operand.name == mma.sfa else mma.sfb_block
    span = block * SCALES_PER_WORD
    words = max(1, spec.tile.k // span)
    boxes, box = shifted_boxes(spec, axis, rows)
    room = align(rows, LANES) * 4
    if boxes * box > rows:
        room = align(max(room + CHUNK_BYTES, boxes * box * 4), SWIZZLE_BYTES)
    return Part(
        operand=operand.name,
        copy_by="words",
        offset=0,
        bytes=words * room,
        inner_axis=axis,
        outer_axis=operand.outer,
        halves=in_halves(spec, operand),
        atoms=boxes,
        atom_elements=box,
        count=rows,
        per=max(1, span // spec.tile.k),
        words=words,
    )


def _accumulator_ring(spec: KernelSpec, mma: UmmaPlan, roles: tuple[RolePlan, ...]) -> Footprint:
    """Two slots when both fit beside the scales: the next tile is multiplied while this one is stored."""
    (name,) = multiplier(spec).fills
    ring = spec.ring(name)
    warps = next(role.warps for role in roles if role.kind == "tmem_store")
    columns = accumulator_columns(spec, mma)
    room = COLUMNS - sum(_scale_columns(part) for part in _scale_parts(spec, mma))
    slots = ring.slots or (2 if 2 * columns <= room else 1)
    if slots * columns > room:
        raise ValueError(
            f"ring {name!r} with {slots} slots of {columns} columns needs {slots * columns} of tensor memory, "
            f"{room} are left beside the scales; use 1 slot or a smaller tile.n"
        )
    return Footprint(
        name=name,
        parts=(),
        slots=slots,
        turns="tile",
        full_count=1 + (CAST_WARPS if sums_squares(spec) else 0),
        empty_count=warps * mma.ctas,
        columns=columns,
    )


def _scale_parts(spec: KernelSpec, mma: UmmaPlan) -> list[Part]:
    return [_scale_part(spec, mma, spec.operand(name)) for name in (mma.sfa, mma.sfb) if name]


def _scale_columns(part: Part) -> int:
    """Four columns hold a word of 128 rows."""
    return part.words * align(part.count, LANES) // LANES * 4


def _place_scales(rings: tuple[RingPlan, ...]) -> tuple[tuple[RingPlan, ...], int]:
    """Scales lie behind the accumulators; products and copies run in order, so one place serves all slots."""
    column = max(ring.column + ring.columns * ring.slots for ring in rings if ring.columns)
    placed = []
    for ring in rings:
        parts = []
        for part in ring.parts:
            if part.copy_by == "words":
                parts.append(part.replace(column=column))
                column += _scale_columns(part)
            else:
                parts.append(part)
        placed.append(ring.replace(parts=tuple(parts)))
    return tuple(placed), column


def _allocation(spec: KernelSpec, columns: int) -> int:
    """Tensor memory is handed out in powers of two, 32 columns at least."""
    allocated = max(32, 1 << (columns - 1).bit_length())
    if allocated > COLUMNS:
        raise ValueError(f"spec {spec.name!r} needs {columns} columns of tensor memory, there are {COLUMNS}")
    return allocated


def _launch_ring(spec: KernelSpec, mma: UmmaPlan, roles: tuple[RolePlan, ...]) -> list[Footprint]:
    """Answers of 16 bytes, drained by every role; of a pair, one CTA multiplies and the other's fetcher arrives too."""
    if not isinstance(spec.schedule, LaunchControl):
        return []
    (ring,) = (ring for ring in spec.rings if not ring.carries_data)
    drains = {"tma_load": 1, "transpose_scales": 1, "tmem_store": LANES // WARP_ROWS}
    arrivals = sum(drains.get(role.kind, 0) for role in roles) * mma.ctas + mma.ctas
    part = Part(operand="answer", copy_by="launch", offset=0, bytes=ANSWER_BYTES, inner_axis="", outer_axis="")
    return [
        Footprint(
            name=ring.name,
            parts=(part,),
            slots=ring.slots or 2,
            turns="launch",
            full_count=1,
            empty_count=arrivals,
            tx_bytes=ANSWER_BYTES,
        )
    ]


def _staging_ring(store: StorePlan, roles: tuple[RolePlan, ...]) -> list[Footprint]:
    if store.through is None:
        return []
    warps = next(role.warps for role in roles if role.kind == "tmem_store")
    part = Part(
        operand=store.operand,
        copy_by="tma",
        offset=0,
        bytes=warps * store.rows * store.row_bytes,
        inner_axis="n",
        outer_axis="m",
    )
    return [Footprint(name=store.through, parts=(part,), slots=store.slots, turns="store")]


# ---------------------------------------------------------------------------------------------- output, host side


def _output_path(spec: KernelSpec, mma: UmmaPlan) -> StorePlan:
    """Lanes that are rows of the output write as many columns as staging allows; lanes that are columns, 32 a warp."""
    step = spec.epilogue[-1]
    assert isinstance(step, Store | Quantise)
    output = spec.output
    if output.inner == "m":
        raise ValueError(f"output {output.name!r} is m-contiguous; epilogues store rows, so make n contiguous")
    if mma.lane_axis == "m":
        row_bytes, rows = staged_row_bytes(_columns_at_once(spec) * output.dtype.bits // 8), WARP_ROWS
    else:
        if isinstance(step, Quantise):
            raise ValueError(
                f"output {output.name!r} is quantised along n, which swap_ab puts on the lanes; do not swap"
            )
        row_bytes, rows = WARP_ROWS * output.dtype.bytes, gcd(spec.tile.m, WARP_ROWS)
    if casts(spec):
        row_bytes = spec.tile.n * output.dtype.bytes
    slots = (spec.ring(step.through).slots or 2) if step.through else 0
    plan = StorePlan(
        operand=output.name,
        dtype=output.dtype,
        through=step.through,
        row_bytes=row_bytes,
        rows=rows,
        slots=slots,
        accumulate=spec.accumulates,
        **quantising(spec, row_bytes * 8 // output.dtype.bits),
    )
    return split_heads(spec, plan)


def _columns_at_once(spec: KernelSpec) -> int:
    """A lane's columns are in registers: of a narrow output, which would allow more, 64 or one block."""
    width = spec.output_columns(spec.tile.n)
    if spec.output.dtype.bits >= 16:
        return width
    if not isinstance(spec.epilogue[-1], Quantise):
        return gcd(width, 64)
    return gcd(width, 128 if spec.operand(spec.epilogue[-1].scales).dtype == DType.F32 else 64)


def _tensor_maps(
    spec: KernelSpec, rings: tuple[RingPlan, ...], mma: UmmaPlan, store: StorePlan
) -> tuple[TensorMapPlan, ...]:
    maps = [_load_map(spec, mma, part) for ring in rings if ring.turns == "k" for part in ring.parts]
    if store.through is not None:
        maps.append(store_map(spec, store))
    order = [operand.name for operand in spec.operands]
    return tuple(sorted(maps, key=lambda plan: order.index(plan.operand)))


def _load_map(spec: KernelSpec, mma: UmmaPlan, part: Part) -> TensorMapPlan:
    operand = spec.operand(part.operand)
    if part.copy_by == "words":
        box: tuple[int, int] = (part.atom_elements, 1)
    else:
        box = (part.atom_elements, part.atom_bytes // SWIZZLE_BYTES)
    packed = operand.dtype == DType.E2M1 and mma.call != "mxf8f6f4"
    return TensorMapPlan(
        operand=operand.name,
        dtype=operand.dtype,
        axes=mapped_axes(operand),
        halves=part.halves,
        box=(SWIZZLE_BYTES, box[1]) if packed else box,
        smem_swizzle=0 if part.copy_by == "words" else 128,
        element="u8" if packed else "tf32" if mma.cast_a and operand.name == mma.b else ELEMENTS[operand.dtype],
    )
