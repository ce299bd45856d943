"""Lowering for Hopper: TMA producers, wgmma consumers, accumulators in registers, the epilogue run by the consumers.

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
    check_k_groups,
    check_starts,
    digest,
    majorness,
    mapped_axes,
    params,
    quantising,
    split_heads,
    staged_row_bytes,
    step_plans,
    store_map,
)
from gemmgen.backends.groups import found_run_bytes, found_runs, map_bytes, map_edits
from gemmgen.backends.limits import LIMITS, registers_at_launch
from gemmgen.backends.lowered import check_lowered
from gemmgen.backends.placement import align, place_rings, place_roles
from gemmgen.backends.reductions import reduction_workspaces
from gemmgen.backends.sm90_push import (
    check_cluster_split_k,
    check_one_block,
    is_short,
    placed,
    push_bytes,
    push_plan,
    stored_columns,
)
from gemmgen.backends.sm90_rings import LANES, mainloop_ring, staging_ring, strips_ring
from gemmgen.backends.sm90_scales import promoted
from gemmgen.backends.sm90_shares import meeting_bytes, shares_of_k
from gemmgen.backends.sm90_swapped import (
    check_swapped,
    check_swapped_store,
    is_swapped,
    product_axes,
    product_extents,
    staged_rows,
)
from gemmgen.backends.sm90_tiles import check_partials, check_tiles, cut_product, parts, stores_apart, sums_start
from gemmgen.ir import (
    Cast,
    ClusterSplitK,
    CutRemainder,
    DType,
    KernelSpec,
    KGroups,
    MmaPlan,
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
    Wgmma,
)
from gemmgen.ir.chain import QUANTISED
from gemmgen.ir.spec import GATED_COLUMNS

STEP_BYTES = 32
"""One wgmma consumes 32 bytes of K per row, whatever the element type."""
BLOCK_ROWS = 64
"""One wgmma produces 64 rows."""
OTHER_REGISTERS = 24
"""What a thread that multiplies has besides sums."""
CAST_WIDTH = 64
"""The widest product whose first factor lies in registers that has a wrapper."""
ELEMENTS: dict[DType, Literal["u8", "bf16", "f32"]] = {DType.E4M3: "u8", DType.BF16: "bf16", DType.F32: "f32"}
"""How the copy engine names elements."""


def lower(spec: KernelSpec) -> Plan:
    """The plan of an sm90 spec. Raises ``ValueError`` naming what does not fit and what to change."""
    check_lowered(spec)
    check_cluster(spec)
    check_factors(spec)
    check_groups(spec)
    check_swapped(spec)
    check_cluster_split_k(spec)
    check_tiles(spec)
    roles = place_roles(spec)
    mma = _matrix_instruction(spec, roles)
    store = _output_path(spec)
    store = store.replace(apart=True) if stores_apart(spec, mma, store) else store
    push, ring = push_plan(spec), mainloop_ring(spec, roles, mma)
    strips = strips_ring(spec, roles, mma, ring)
    check_one_block(spec, mma)
    meeting = meeting_bytes(spec, mma)
    extra = push_bytes(push) + meeting + map_bytes(spec) + found_run_bytes(spec)
    rings, shared_bytes = place_rings(spec, [ring, *strips, *staging_ring(spec, store, roles)], extra)
    edits, room = map_edits(spec, mma.a, mma.b, shared_bytes - map_bytes(spec))
    maps, workspaces = _tensor_maps(spec, rings, store), (*reduction_workspaces(spec, mma), *room)
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
        mma=mma if mma.shares == 1 else mma.replace(meeting=align(shared_bytes - meeting, 16)),
        epilogue=step_plans(spec),
        store=store,
        schedule=spec.schedule,
        programmatic_launch=spec.programmatic_launch,
        tensor_maps=maps,
        params=params(spec, maps, workspaces),
        operands=spec.operands,
        prologue=spec.prologue,
        cut_mma=cut_product(spec, mma, store),
        workspaces=workspaces,
        starts=sums_start(spec),
        push=placed(push, shared_bytes),
        ahead=spec.ahead,
        to_l2=getattr(spec.load.body, "to_l2", ()),
        groups=spec.groups,
        map_edits=edits,
        found_runs=found_runs(spec, shared_bytes),
    )


# ---------------------------------------------------------------------------------------------- matrix instruction


def _matrix_instruction(spec: KernelSpec, roles: tuple[RolePlan, ...]) -> MmaPlan:
    body = spec.math.body
    assert isinstance(body, Wgmma)
    a, b = spec.operand(body.a), spec.operand(body.b)
    _check_operands(spec, a, b)
    a, b = (b, a) if body.swap_ab else (a, b)
    groups = next(role.warps for role in roles if role.kind == "wgmma") // 4
    shares = shares_of_k(spec, groups)
    groups //= shares
    down, across = product_axes(spec)
    rows, columns = product_extents(spec)
    width = body.width or columns
    if rows % (BLOCK_ROWS * groups) and not is_short(spec):
        raise ValueError(
            f"tile.{down} is {rows}: {groups} warpgroups of 64-row instructions need a multiple of "
            f"{BLOCK_ROWS * groups}; change tile.{down} or the warps of role {spec.math.name!r}"
        )
    if columns % width:
        raise ValueError(f"tile.{across} is {columns}, not a multiple of the instruction's width {width}; change width")
    if spec.gate and width % GATED_COLUMNS:
        raise ValueError(
            f"width {width} of a gated product is no multiple of {GATED_COLUMNS}: a thread would hold gate without up"
        )
    if width != columns and majorness(b, across) == "mn" and width % 64:
        raise ValueError(f"width {width} of a tile whose B is n-contiguous must be a multiple of 64")
    cast_a = any(isinstance(step, Cast) for step in spec.prologue)
    step_k = STEP_BYTES * 8 // b.dtype.bits
    types = "tf32_tf32" if cast_a else f"{a.dtype}_{b.dtype}"
    if cast_a:
        _check_cast(spec, width)
    mma = MmaPlan(
        instruction=f"wgmma_m64n{width}k{step_k}_f32_{types}",
        width=width,
        step_k=step_k,
        steps=spec.tile.k // step_k // shares,
        groups=groups,
        row_blocks=-(-rows // (BLOCK_ROWS * groups)),
        col_blocks=columns // width,
        row_axis=down,
        a=a.name,
        b=b.name,
        a_major=majorness(a, down),
        b_major=majorness(b, across),
        unroll=body.unroll,
        cast_a=cast_a,
        overlap_epilogue=body.overlap_epilogue,
        whole_rounds=body.whole_rounds,
        partials=body.partials,
        shares=shares,
    )
    if body.promote is not None:
        mma = promoted(spec, mma, body.promote)
    check_partials(spec, mma)
    _check_accumulators(spec, mma)
    return mma


def _check_operands(spec: KernelSpec, a: Operand, b: Operand) -> None:
    if (a.dtype, b.dtype) not in {(DType.E4M3, DType.E4M3), (DType.BF16, DType.BF16)} and not spec.prologue:
        raise ValueError(
            f"no wgmma multiplies {a.dtype} by {b.dtype} here; use e4m3 by e4m3, bf16 by bf16, or bf16 by f32 with a "
            "prologue that casts A to f32"
        )
    for operand, axis in ((a, "m"), (b, "n")):
        check_k_groups(spec, operand)
        check_starts(spec, operand)
        if operand.dtype.bits == 8 and majorness(operand, axis) == "mn":
            raise ValueError(f"operand {operand.name!r} is {axis}-contiguous; 8-bit wgmma needs k contiguous")
    if spec.tile.k * a.dtype.bytes % SWIZZLE_BYTES:
        raise ValueError(
            f"tile.k is {spec.tile.k} = {spec.tile.k * a.dtype.bytes} B of {a.dtype}; it must be whole 128-byte atoms"
        )


def _check_cast(spec: KernelSpec, width: int) -> None:
    """A is read by lanes a block ahead of the products, whose second factor is k-contiguous."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    b, ring = spec.operand(body.b), spec.ring(body.drains[0])
    if b.inner != "k":
        raise ValueError(f"operand {b.name!r} is n-contiguous; wgmma reads tf32 k-contiguous, so lay it out anew")
    if width > CAST_WIDTH:
        raise ValueError(f"width is {width}; products of a cast A are at most {CAST_WIDTH} wide here, so set width")
    if body.unroll > 2:
        raise ValueError(
            f"role {spec.math.name!r} has unroll={body.unroll}; the loop that casts A has a set of registers for each "
            "copy of its body, at most 2"
        )
    if ring.slots == 1:
        raise ValueError(f"ring {ring.name!r} has 1 slot; the next one is read before a slot is given back, so use 2")


def _check_accumulators(spec: KernelSpec, mma: MmaPlan) -> None:
    partial = mma.partials * mma.width // 2 if mma.sfa else 0
    if mma.cast_a:
        partial = 4 * mma.steps * mma.row_blocks * mma.unroll + 32
    limit = (spec.math.registers or LIMITS[spec.arch].registers_per_thread) - OTHER_REGISTERS
    if spec.math.registers is None:
        share = registers_at_launch(spec.arch, sum(role.warps for role in spec.roles) * LANES, spec.ctas_per_sm)
        limit = min(limit, share - (0 if mma.cast_a else OTHER_REGISTERS))  # those of a cast are among its partial ones
    if mma.accumulators + partial > limit:
        raise ValueError(
            f"tile {spec.tile.m}x{spec.tile.n} on {mma.groups} warpgroups needs {mma.accumulators + partial} "
            f"accumulator registers a thread, at most {limit} are left; use a smaller tile, width or more warps"
            f"{f', or fewer CTAs than {spec.ctas_per_sm} an SM' if spec.ctas_per_sm > 1 else ''}"
        )


# ---------------------------------------------------------------------------------------------- epilogue


def _output_path(spec: KernelSpec) -> StorePlan:
    step = spec.epilogue[-1]
    assert isinstance(step, Store | Quantise)
    output = spec.output
    if is_swapped(spec):
        check_swapped_store(spec)
        assert isinstance(step, Store) and isinstance(spec.math.body, Wgmma)
        held = StorePlan(operand=output.name, dtype=output.dtype, through=step.through, accumulate=spec.accumulates)
        if step.through is not None:
            rows, slots = staged_rows(spec), spec.ring(step.through).slots or 2
            held = held.replace(row_bytes=BLOCK_ROWS * output.dtype.bytes, rows=rows, slots=slots)
        return split_heads(spec, held)
    width = spec.output_columns(stored_columns(spec))
    if output.dtype == DType.E2M1:
        raise ValueError(f"output {output.name!r} is e2m1: sm90 has no instruction that rounds to 4 bits; use e4m3")
    joined = _is_joined(spec, width)
    width = spec.output_columns(spec.tile.n) if joined else width
    plan = StorePlan(operand=output.name, dtype=output.dtype, through=step.through, **quantising(spec, width))
    plan = plan.replace(accumulate=spec.accumulates)
    plan = plan.replace(joined=True) if joined else plan
    if step.through is not None:
        slots = spec.ring(step.through).slots or 2
        unit = gcd(width, spec.tile.n // parts(spec)) if parts(spec) > 1 else width
        plan = plan.replace(row_bytes=staged_row_bytes(unit * output.dtype.bytes), slots=slots)
        chunks = width * output.dtype.bytes // plan.row_bytes
        plan = plan if spec.gate or _reads_matrix(spec) else plan.replace(turn=_turn(slots, chunks))
    return split_heads(spec, plan)


def _reads_matrix(spec: KernelSpec) -> bool:
    """Whether the chain reads a matrix; the compiler would ask for all chunks of a turn at once, and spill."""
    read = {name for step in spec.epilogue for name in step.reads}
    return any(spec.operand(name).plane == ("m", "n") for name in read)


def _turn(slots: int, chunks: int) -> int:
    """Chunks that a warp copies at once: as many as it makes of a product, as long as turns share its slots evenly."""
    return max(turn for turn in range(1, slots + 1) if slots % turn == 0 and turn <= max(chunks, 1))


def _is_joined(spec: KernelSpec, width: int) -> bool:
    """Whether products side by side, which lie in the registers of one thread, are quantised and copied together.

    A block may reach over both, which gates need; without a gate they are no more than one turn then.
    """
    step, body = spec.epilogue[-1], spec.math.body
    assert isinstance(body, Wgmma)
    if not isinstance(step, Quantise) or isinstance(spec.schedule, ClusterSplitK | CutRemainder):
        return False
    block, columns = QUANTISED[spec.operand(step.to).dtype, spec.operand(step.scales).dtype], spec.tile.n
    together = width % block > 0 or (spec.gate is None and width < columns)
    return together and spec.output_columns(columns) % block == 0


# ---------------------------------------------------------------------------------------------- host side


def _tensor_maps(spec: KernelSpec, rings: tuple[RingPlan, ...], store: StorePlan) -> tuple[TensorMapPlan, ...]:
    maps = [
        _load_map(spec, part) for ring in rings if ring.turns == "k" for part in ring.parts if part.copy_by == "tma"
    ]
    if store.through is not None:
        maps.append(store_map(spec, store))
    order = [operand.name for operand in spec.operands]
    return tuple(sorted(maps, key=lambda plan: order.index(plan.operand)))


def _load_map(spec: KernelSpec, part: Part) -> TensorMapPlan:
    operand = spec.operand(part.operand)
    rows = part.atom_bytes // (part.atom_elements * operand.dtype.bytes)
    return TensorMapPlan(
        operand=operand.name,
        dtype=operand.dtype,
        axes=mapped_axes(operand),
        part_rows=_part_rows(spec, part),
        halves=part.halves,
        box=(part.atom_elements, rows // part.shared // part.stack),
        smem_swizzle=0 if operand.dtype == DType.F32 and not spec.prologue else 128,
        element="tf32" if operand.dtype == DType.F32 and spec.prologue else ELEMENTS[operand.dtype],
    )


def _part_rows(spec: KernelSpec, part: Part) -> int:
    """Rows of the boxes that the last tiles of A come in, 0 where they come as the others do."""
    body = spec.load.body
    assert isinstance(body, TmaLoad) and isinstance(spec.math.body, Wgmma)
    if body.part_rows is None or part.operand != spec.math.body.a:
        return 0
    where = f"role {spec.load.name!r} has part_rows={body.part_rows}"
    if part.outer_axis != "m":
        raise ValueError(f"{where}, but rows of boxes of {part.operand!r} are k; make it k-contiguous, or leave it out")
    if part.shared > 1:
        raise ValueError(f"{where}, but {part.shared} CTAs share boxes of {part.operand!r}; set cluster.n to 1")
    if isinstance(spec.groups, KGroups):
        raise ValueError(f"{where} and groups of k, in all of which A has the same rows; leave it out")
    if spec.tile.m % body.part_rows or spec.tile.m == body.part_rows:
        raise ValueError(f"{where}: tile.m is {spec.tile.m}, which is not several of those; change either")
    return body.part_rows
