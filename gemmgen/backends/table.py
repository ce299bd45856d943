"""A plan as a table of about a dozen lines: what reviewers read and what golden files hold."""

from __future__ import annotations

from gemmgen.ir import (
    READ_ONCE_BYTES,
    ClusterSplitK,
    CutRemainder,
    Gate,
    KGroups,
    MmaPlan,
    MmaSyncPlan,
    Part,
    Plan,
    RingPlan,
    RolePlan,
    RowGroups,
    StepPlan,
    UmmaPlan,
)


def table(plan: Plan) -> str:
    """The plan in plain text, ending with a newline."""
    lines = [
        f"{plan.name}: {plan.threads} threads, {plan.shared_bytes} B smem, {plan.ctas_per_sm} CTA an SM, {plan.arch}"
    ]
    for ring in plan.rings:
        lines += _ring_lines(plan, ring)
    lines += [_role_line(role) for role in plan.roles]
    lines += [_mma_line(plan), *_prologue_lines(plan), _epilogue_line(plan)]
    lines += [*_push_lines(plan), *_workspace_lines(plan), *_group_lines(plan), _grid_line(plan)]
    return "\n".join(lines) + "\n"


def _ring_lines(plan: Plan, ring: RingPlan) -> list[str]:
    size = f"{ring.columns} tmem columns from {ring.column}" if ring.columns else f"{ring.slot_bytes} B"
    lines = [f"  ring {ring.name:<5} {ring.slots} x {size}{_barriers(ring)}"]
    boxes = {entry.operand: entry for entry in plan.tensor_maps}
    for part in ring.parts:
        if part.copy_by == "launch":
            text = "16 bytes: the CTA taken over"
        elif part.copy_by == "words":
            text = f"{part.words} words of scales for {part.count} rows{_words_go(plan, part)}{_halves(part)}"
        elif ring.turns == "store" or part.copy_by == "tma":
            entry = boxes[part.operand]
            times = f"{part.atoms} x " if part.atoms > 1 else ""
            swizzle = f", {entry.smem_swizzle} B smem_swizzle" if entry.smem_swizzle else ""
            shared = f", 1/{part.shared} multicast" if part.shared > 1 else ""
            hint = f", evicted first to {READ_ONCE_BYTES >> 20} MiB" if part.evict_first else ""
            parts = f", at the end {entry.part_rows} rows each" if entry.part_rows else ""
            box = f"{times}box {entry.box[0]} x {entry.box[1]} {entry.dtype}"
            text = f"{box}{parts}{swizzle}{shared}{_halves(part)}{hint}"
        else:
            of_blocks = f", of {ring.every} K blocks" if ring.every > 1 else ""
            text = f"{part.count} scales by lanes, one per {part.step}{of_blocks}{_halves(part)}"
        lines.append(f"    {part.operand:<8} @{part.offset:<7} {text}")
    return lines


def _halves(part: Part) -> str:
    return ", 8 of each half of n in turn" if part.halves else ""


def _words_go(plan: Plan, part: Part) -> str:
    if isinstance(plan.mma, UmmaPlan):
        return f", tmem columns from {part.column}"
    return f", with every {part.per}th K block" if part.per > 1 else ""


def _mma_line(plan: Plan) -> str:
    mma = plan.mma
    if isinstance(mma, UmmaPlan):
        return _umma_line(mma)
    if isinstance(mma, MmaSyncPlan):
        return _mma_sync_line(mma)
    by_lanes = f", {mma.read_by_lanes} by lanes" if mma.read_by_lanes else ""
    promoted = f", promoted by {mma.sfa} x {mma.sfb} every {plan.tile.k} of k{by_lanes}" if mma.sfa else ""
    count = f"{mma.steps * mma.units} a slot, {mma.accumulators} accumulators"
    shares = f", K steps shared by {mma.shares} warpgroups" if mma.shares > 1 else ""
    swapped = ", swapped" if mma.row_axis == "n" else ""
    copies = "whole rounds" if mma.whole_rounds else f"unroll {mma.unroll}"
    partials = f", {mma.partials} sets of partial sums" if mma.partials > 1 else ""
    return f"  mma        {mma.instruction} x {count}{promoted}{swapped}, {copies}{partials}{shares}"


def _umma_line(mma: UmmaPlan) -> str:
    scales = f", scales {mma.sfa} per {mma.sfa_block}, {mma.sfb} per {mma.sfb_block} of k" if mma.sfa else ""
    memory = f"\n  tmem       {mma.tmem_columns} columns, address@{mma.tmem_address}"
    return f"  mma        {mma.instruction} x {mma.steps} a slot, descriptor {mma.descriptor:#010x}{scales}{memory}"


def _mma_sync_line(mma: MmaSyncPlan) -> str:
    scales = f", scales {mma.sfa} per {mma.sfa_block}, {mma.sfb} per {mma.sfb_block} of k" if mma.sfa else ""
    count = f"{mma.steps * mma.row_blocks * mma.column_blocks} a slot, {mma.accumulators} accumulators"
    swapped = ", swapped" if mma.row_axis == "n" else ""
    share = f"{mma.row_blocks * 16}x{mma.column_blocks * 8} of the tile a warp in {mma.warp_rows}x{mma.warp_columns}"
    return f"  mma        {mma.instruction} x {count}{scales}\n  warps      {share}{swapped}, unroll {mma.unroll}"


def _prologue_lines(plan: Plan) -> list[str]:
    steps = [f"{step.kind} to {step.to}" for step in plan.prologue]
    return ["  prologue   " + " -> ".join(steps)] if steps else []


def _epilogue_line(plan: Plan) -> str:
    steps = list(map(_step, plan.epilogue))
    steps[0] += " that sums start from" if plan.starts else ""
    return "  epilogue   " + " -> ".join(steps) + f"   {_store(plan)}"


def _step(entry: StepPlan) -> str:
    return f"{entry.step.layout} gate" if isinstance(entry.step, Gate) else entry.step.kind


def _push_lines(plan: Plan) -> list[str]:
    """Where sums of a cluster's CTAs meet."""
    push = plan.push
    if push is None:
        return []
    owned = f"{push.per_cta} of {push.slices} slices of 16 x {push.columns} a CTA"
    return [f"  push       {owned}, {push.bytes} B @{push.buffers}, full@{push.full}"]


def _workspace_lines(plan: Plan) -> list[str]:
    """Memory that a launch gets beside its operands."""
    counted = {
        ("m", "n"): " a tile",
        ("m",): " a row of tiles",
        ("n",): " a column of tiles",
        ("cta",): " a CTA",
        (): "",
    }
    shares = (f"{each.elements * 4} B of {each.name}{counted[each.per]}" for each in plan.workspaces)
    return [f"  workspace  {', '.join(shares)}"] if plan.workspaces else []


def _group_lines(plan: Plan) -> list[str]:
    groups = plan.groups
    if groups is None:
        return []
    aligned = f", at multiples of {groups.alignment}" if groups.alignment > 1 else ""
    further = ", zeros between them" if isinstance(groups, RowGroups) and groups.zero_padding else ""
    further += ", factors apart" if isinstance(groups, KGroups) and groups.apart else ""
    if (found := plan.found_runs) is not None:
        further += f", found by ids of {found.parts} parts at most @{found.place}"
    return [f"  groups     of {groups.kind}, by {groups.by} in {groups.layout}{aligned}{further}"]


def _grid_line(plan: Plan) -> str:
    tile, schedule = plan.tile, plan.schedule
    cluster = f", cluster {plan.cluster.m}x{plan.cluster.n}" if plan.cluster.size > 1 else ""
    ahead = f", {', '.join(plan.ahead)} read ahead" if plan.ahead else ""
    launch = f", programmatic launch{ahead}" if plan.programmatic_launch else ""
    tiles = f"tiles of {tile.m}x{tile.n}x{tile.k}"
    if not isinstance(schedule, ClusterSplitK):
        tiles += f", raster {schedule.raster_group}"
    if isinstance(schedule, CutRemainder):
        tiles += f", the last wave's cut in {schedule.parts}"
    splits = f" of {plan.splits} splits" if plan.splits > 1 else ""
    if not plan.splits:
        splits = f" of {'slices as outputs have' if plan.sliced else 'splits that fill the GPU'}"
    return f"  grid       {schedule.kind}{splits}, {tiles}{cluster}{launch}"


def _barriers(ring: RingPlan) -> str:
    if ring.turns == "store":
        return ""
    every = f", a slot for {ring.every} K blocks" if ring.every > 1 else ""
    bytes_ = f" + {ring.tx_bytes} tx" if ring.tx_bytes else ""
    ready = f"   ready@{ring.ready} ({ring.ready_count})" if ring.ready_count else ""
    full = f"   full@{ring.full} ({ring.full_count}{bytes_})"
    return f"{full}{ready}   empty@{ring.empty} ({ring.empty_count}){every}"


def _role_line(role: RolePlan) -> str:
    warps = f"warps {role.first_warp}-{role.first_warp + role.warps - 1}"
    registers = f"regs {role.registers}" if role.registers else "regs -"
    arrow = {"tma_load": "->", "fetch_tiles": "->", "transpose_scales": "<->"}.get(role.kind, "<-")
    rings = ", ".join(role.rings) if role.kind != "tcgen05" else f"{', '.join(role.rings[1:])} -> {role.rings[0]}"
    return f"  role {role.name:<5} {warps:<11} {registers:<9} {role.kind} {arrow} {rings}"


def _store(plan: Plan) -> str:
    store = plan.store
    heads = store.heads
    moved = f", heads of {heads.left} + {heads.right} columns {heads.mid} apart" if heads else ""
    moved += ", added to what is there" if store.accumulate else ""
    moved += ", which L2 is asked for ahead" if store.operand in plan.to_l2 else ""
    if store.through is None:
        return f"direct {store.dtype}{moved}"
    turn = f", {store.turn} at a time" if store.turn > 1 else ""
    turn += ", products apart" if store.apart else ""
    whose = "a warpgroup" if isinstance(plan.mma, MmaPlan) and plan.mma.row_axis == "n" else "a warp"
    return f"{store.dtype} by TMA, {store.slots} buffers of {store.rows} x {store.row_bytes} B {whose}{turn}{moved}"
