"""Lowering for datacenter Blackwell: TMA producers, one thread issuing tcgen05.mma, accumulators in tensor memory.

Reads as a table of contents: each step decides one part of the plan and refuses what the hardware cannot do.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

from gemmgen.backends.common import (
    SWIZZLE_BYTES,
    check_cluster,
    check_factors,
    check_groups,
    digest,
    mapped_axes,
    params,
    quantising,
    split_heads,
    staged_row_bytes,
    step_plans,
    store_map,
)
from gemmgen.backends.limits import registers_at_launch
from gemmgen.backends.lowered import check_lowered
from gemmgen.backends.placement import BARRIER_BYTES, place_rings, place_roles
from gemmgen.backends.reductions import reduction_workspaces
from gemmgen.backends.sm100_cast import (
    cast_ring,
    casts,
    check_cast,
)
from gemmgen.backends.sm100_product import LANES, multiplier, product
from gemmgen.backends.sm100_rings import (
    COLUMNS,
    WARP_ROWS,
    accumulator_ring,
    allocation,
    launch_ring,
    operand_rings,
    place_scales,
    staging_ring,
)
from gemmgen.ir import (
    DType,
    KernelSpec,
    Part,
    Plan,
    Quantise,
    RingPlan,
    Store,
    StorePlan,
    TensorMapPlan,
    TmemStore,
    TransposeScales,
    UmmaPlan,
)

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
GATED_PART = 64
"""Columns that a gate reads at once and joins."""
OTHER_REGISTERS = 24
"""What a thread that stores has besides sums."""


def lower(spec: KernelSpec) -> Plan:
    """The plan of an sm100 spec. Raises ``ValueError`` naming what does not fit and what to change."""
    check_lowered(spec)
    check_cluster(spec)
    check_factors(spec)
    check_groups(spec)
    check_cast(spec)
    _check_roles(spec)
    roles = place_roles(spec)
    mma = product(spec)
    store = _output_path(spec, mma)
    _check_registers(spec, mma, store)
    sums = accumulator_ring(spec, mma, roles)
    footprints = [*operand_rings(spec, mma), sums, *staging_ring(store, roles), *launch_ring(spec, mma, roles)]
    footprints += cast_ring(spec, mma, sums.columns * (sums.slots or 1), COLUMNS)
    rings, shared_bytes = place_rings(spec, footprints, extra=BARRIER_BYTES)
    rings, used = place_scales(rings)
    mma = mma.replace(tmem_columns=allocation(spec, used), tmem_address=shared_bytes - BARRIER_BYTES)
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
    body = multiplier(spec)
    asking = [role for role in spec.roles if role.registers is not None]
    if asking:
        raise ValueError(
            f"role {asking[0].name!r} asks for {asking[0].registers} registers, which roles of sm100 do not exchange; "
            "leave them out"
        )
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


# ---------------------------------------------------------------------------------------------- output, host side


def _output_path(spec: KernelSpec, mma: UmmaPlan) -> StorePlan:
    """Lanes that are rows of the output write as many columns as staging allows; lanes that are columns, 32 a warp."""
    step = spec.epilogue[-1]
    assert isinstance(step, Store | Quantise)
    output = spec.output
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


def _check_registers(spec: KernelSpec, mma: UmmaPlan, store: StorePlan) -> None:
    """What a lane reads of tensor memory at once must be in registers, with some others: that of a gate once more."""
    held = store.row_bytes * 8 // store.dtype.bits if mma.lane_axis == "m" else store.rows
    needed = held + (min(2 * held, GATED_PART) if spec.gate else 0) + OTHER_REGISTERS
    threads = sum(role.warps for role in spec.roles) * 32
    share = registers_at_launch(spec.arch, threads, spec.ctas_per_sm)
    if needed > share:
        raise ValueError(
            f"output {store.operand!r} is stored {held} elements a lane at a time, which takes {needed} registers, "
            f"and a launch of {threads} gives {share} to each; use fewer warps"
        )


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
