"""Rings of datacenter Blackwell: what a slot holds of each operand, and where sums and scales lie in tensor memory."""

from __future__ import annotations

from gemmgen.backends.common import (
    SWIZZLE_BYTES,
    check_k_groups,
    check_starts,
    in_halves,
    shifted_boxes,
)
from gemmgen.backends.placement import Footprint, align
from gemmgen.backends.sm100_cast import CAST_WARPS, accumulator_columns, casts, sums_squares
from gemmgen.backends.sm100_product import LANES, SCALES_PER_WORD, column_axis, multiplier, smem_bits
from gemmgen.ir import DType, KernelSpec, LaunchControl, Operand, Part, RingPlan, RolePlan, StorePlan, TmaLoad, UmmaPlan

COLUMNS = 512
"""Columns of tensor memory."""
WARP_ROWS = 32
"""Lanes of tensor memory that a warp reaches."""
CHUNK_BYTES = 16
"""What the copy engine starts boxes at multiples of."""
ANSWER_BYTES = 16
"""What the hardware answers to a request to take over a launch."""


def operand_rings(spec: KernelSpec, mma: UmmaPlan) -> list[Footprint]:
    body = spec.load.body
    assert isinstance(body, TmaLoad)
    apart = [name for name in body.fills if {mma.a, mma.b} & set(spec.ring(name).holds)]
    if len(apart) > 1:
        raise ValueError(
            f"rings {apart[0]!r} and {apart[1]!r} hold {mma.a!r} and {mma.b!r} apart; sm100 loads both through one "
            "ring, so let it hold both"
        )
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


def accumulator_ring(spec: KernelSpec, mma: UmmaPlan, roles: tuple[RolePlan, ...]) -> Footprint:
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


def place_scales(rings: tuple[RingPlan, ...]) -> tuple[tuple[RingPlan, ...], int]:
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


def allocation(spec: KernelSpec, columns: int) -> int:
    """Tensor memory is handed out in powers of two, 32 columns at least."""
    allocated = max(32, 1 << (columns - 1).bit_length())
    if allocated > COLUMNS:
        raise ValueError(f"spec {spec.name!r} needs {columns} columns of tensor memory, there are {COLUMNS}")
    return allocated


def launch_ring(spec: KernelSpec, mma: UmmaPlan, roles: tuple[RolePlan, ...]) -> list[Footprint]:
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


def staging_ring(store: StorePlan, roles: tuple[RolePlan, ...]) -> list[Footprint]:
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
