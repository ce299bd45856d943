"""Render: a plan becomes CUDA text.

Everything a template prints is decided here or in the plan; templates only choose and repeat.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemmgen.backends import groups
from gemmgen.backends.epilogue import chain_view, quantising_store
from gemmgen.backends.names import C_TYPES, PAIR_TYPES, columns_of, place_name
from gemmgen.backends.prologue_view import even_splits, prologue_view, slice_place
from gemmgen.backends.reductions import epilogue_on_block, gate_on_block, reductions_view
from gemmgen.backends.sm90_tiles_view import tiles_view
from gemmgen.backends.sm100_view import scales, sm100_view
from gemmgen.backends.sm120_view import scale_words, sm120_view
from gemmgen.ir import (
    Arch,
    ClusterSplitK,
    CutRemainder,
    DType,
    MmaPlan,
    MmaSyncPlan,
    Param,
    Part,
    Plan,
    RingPlan,
    UmmaPlan,
    is_counter,
    split_axis,
)

BOX_SOURCES = {
    (False, False): "gemmgen::Whole",
    (True, False): "gemmgen::RowsInTurn",
    (False, True): "gemmgen::OfGroup",
    (True, True): "gemmgen::RowsInTurnOfGroup",
}
"""What boxes are of, by whether they take halves in turn and whether every group has a matrix."""
MMA_CALLS = {"e4m3": "f32_e4m3_e4m3", "bf16": "f32_bf16_bf16<A::TRANSPOSE, B::TRANSPOSE>"}
FEW_COLUMNS = 32
"""Columns of a warpgroup's products for which sums of every other step have registers of their own, where A is cast."""


def render(plan: Plan) -> str:
    """The CUDA source of a plan: the same bytes for the same plan, always."""
    view = {Arch.SM90: _sm90_view, Arch.SM100: sm100_view, Arch.SM120: sm120_view}[plan.arch]
    template = "cluster_split_k" if isinstance(plan.schedule, ClusterSplitK) else "gemm"
    return environment().get_template(f"{plan.arch}_{template}.cu.jinja").render(**_common(plan), **view(plan))


@cache
def environment() -> Environment:
    """Templates, which may name nothing that is undefined."""
    return Environment(
        loader=PackageLoader("gemmgen", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _common(plan: Plan) -> dict[str, Any]:
    load = next(role for role in plan.roles if role.kind == "tma_load")
    return {
        "plan": plan,
        "mma": plan.mma,
        "load": load,
        "budget": "" if plan.ctas_per_sm == 1 else f", {plan.ctas_per_sm} CTAs an SM",
        "clustered": plan.cluster.size > 1,
        "params": [_param_line(param, plan.outputs) for param in plan.params],
        "places": {entry.name: [_place(plan, entry, part) for part in entry.parts] for entry in plan.rings},
        "reduced": reductions_view(plan),
        "epilogue_on_block": epilogue_on_block(plan),
        "gate_on_block": gate_on_block(plan),
        **chain_view(plan),
        "pair_type": PAIR_TYPES[DType.F32 if plan.store.scales else plan.store.dtype],
        **prologue_view(plan),
        **groups.groups_view(plan),
    }


def _sm90_view(plan: Plan) -> dict[str, Any]:
    ring, mma = plan.mainloop, plan.mma
    assert isinstance(mma, MmaPlan)
    math = next(role for role in plan.roles if role.kind == "wgmma")
    dtype = next(entry.dtype for entry in plan.tensor_maps if entry.operand == mma.a)
    boxes = [_box_part(plan, ring, part) for part in ring.parts if part.copy_by == "tma"]
    of_rows, of_columns = _extents_of(plan, mma)
    strips = next((each for each in plan.rings if each.every > 1), None)
    columns_held = mma.sfb_per_column and mma.row_blocks > 1 and mma.col_blocks == 1
    return {
        "ring": ring,
        "math": math,
        "schedule": _sm90_schedule(plan),
        "places_of": {role: _place_of(plan, name) for role, name in _multiplied(plan).items()},
        "strips": strips,
        "strip_parts": [_lane_part(plan, strips, part) for part in strips.parts] if strips else [],
        "box_parts": boxes,
        "hinted_parts": [box for box in boxes if box["hint"]],
        "edited_maps": groups.edited_maps(plan),
        "edited_factors": groups.edited_factors(plan),
        "added": groups.added_matrices(plan),
        "ahead_parts": [box for box in boxes if box["operand"] in plan.ahead],
        "other_parts": [box for box in boxes if box["operand"] not in plan.ahead],
        "sfb_ahead": not plan.programmatic_launch or mma.read_by_lanes in plan.ahead,
        "lane_parts": [_lane_part(plan, ring, part) for part in ring.parts if part.copy_by == "lanes"],
        "a_layout": _layout(plan, mma.a_major, max(of_rows, 64)),
        "b_layout": _layout(plan, mma.b_major, of_columns),
        "mma_call": MMA_CALLS[dtype],
        "group_rows": 64 * mma.row_blocks,
        "columns_held": columns_held,
        "scales_beside": strips is not None or (columns_held and mma.whole_rounds),
        "two_sums": mma.cast_a and mma.row_blocks * mma.col_blocks * mma.width <= FEW_COLUMNS,
        "skips_idle_rows": groups.skips_idle_rows(plan, math.warps),
        "shift": _shift(plan, ring, mma),
        "swapped": mma.row_axis == "n",
        **tiles_view(plan, ring),
        "k_places": ", ".join(place_name(ring, name) for name in groups.cut_factors(plan)),
        "storing_warps": math.warps if mma.row_axis == "n" else min(math.warps, plan.tile.m // 16),
        "sfb_count": plan.tile.n // mma.sfb_columns if mma.sfb_columns else 0,
        "sfa_count": strips.parts[0].count if strips else plan.tile.n // mma.sfa_rows,
        "store_line": _store_line(plan, math.first_warp),
    }


def _place_of(plan: Plan, operand: str) -> str:
    """The name in CUDA of where an operand stands in the slots of its ring."""
    ring = next(ring for ring in plan.rings if any(part.operand == operand for part in ring.parts))
    return place_name(ring, operand)


def _extents_of(plan: Plan, mma: MmaPlan) -> tuple[int, int]:
    """Rows and columns of the tile's product."""
    return (plan.tile.n, plan.tile.m) if mma.row_axis == "n" else (plan.tile.m, plan.tile.n)


def _shift(plan: Plan, ring: RingPlan, mma: MmaPlan) -> str:
    """What to add to a row of the tile to find its scale, where those come as boxes of words along m."""
    of_rows = mma.sfb if mma.row_axis == "n" else mma.sfa
    _, skipped = groups.word_start(plan, "m")
    return f" + {skipped}" if of_rows and skipped and ring.part(of_rows).copy_by == "tma" else ""


def _sm90_schedule(plan: Plan) -> str:
    if plan.groups is not None:
        return groups.schedule(plan)
    if isinstance(plan.schedule, ClusterSplitK):
        return f"gemmgen::ClusterSplitK<TILE_M, TILE_N, {plan.splits}>"
    if not plan.splits:
        return even_splits(plan)
    if isinstance(plan.schedule, CutRemainder):
        return f"gemmgen::CutRemainder<TILE_M, TILE_N, {plan.raster_group}, {plan.schedule.parts}>"
    return f"gemmgen::Persistent<TILE_M, TILE_N, {plan.raster_group}, CLUSTER_M, CLUSTER_N>"


def _param_line(param: Param, outputs: tuple[str, ...]) -> str:
    if param.kind == "tensor_map":
        return f"ptx::TensorMap {param.name};"
    if param.kind == "pointer":
        assert param.dtype is not None
        const = "" if param.operand in outputs else "const "
        return f"{const}{C_TYPES[param.dtype]}* {param.name};"
    if param.kind == "workspace":
        kind = "ptx::TensorMap" if param.name == groups.MAPS else "u32" if is_counter(param.name) else "float"
        return f"{kind}* {param.name};"
    if param.kind == "stride":
        return f"u64 {param.name};"
    if param.kind == "scalar":
        return f"float {param.name};"
    return f"u32 {param.name};"


def _layout(plan: Plan, major: str, rows: int) -> str:
    if major == "k":
        return f"gemmgen::KMajor<{rows}>"
    clustered = plan.cluster.size > 1 or isinstance(plan.schedule, ClusterSplitK)
    return f"gemmgen::MnMajor<{plan.tile.k}{', true' if clustered else ''}>"


def _multiplied(plan: Plan) -> dict[str, str]:
    mma = plan.mma
    assert isinstance(mma, MmaPlan)
    names = {"a": mma.a, "b": mma.b, "sfa": mma.sfa, "sfb": mma.sfb}
    return {role: name for role, name in names.items() if name not in (None, mma.read_by_lanes)}


def _place(plan: Plan, ring: RingPlan, part: Part) -> str:
    """The declaration of an operand's place in a ring's namespace."""
    name = part.operand.upper()
    if ring.turns in ("store", "launch"):
        return f"constexpr u32 {name} = {part.offset};"
    if part.copy_by == "lanes":
        halves = ", gemmgen::RowsInTurn" if part.halves else ""
        kind, every = ("GatherBlocks", f", {ring.every}") if ring.every > 1 else ("Gather", "")
        return f"using {name} = gemmgen::{kind}<{part.offset}, {part.count}, {part.step}, {part.per}{every}{halves}>;"
    if part.copy_by == "words":
        if isinstance(plan.mma, MmaSyncPlan):
            return f"using {name} = {scale_words(plan, part)};"
        assert isinstance(plan.mma, UmmaPlan)
        return f"using {name} = {scales(plan, plan.mma, part)};"
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    element_bytes = part.atom_bytes // (entry.box[0] * entry.box[1] * part.shared * part.stack)
    if part.stack > 1:
        box = f"{entry.box[1]}, {entry.box[0]}, {element_bytes}"
        return f"using {name} = gemmgen::Stack<{part.offset}, {part.stack}, {box}>;"
    shape = [part.offset, part.atoms, entry.box[1] * part.shared, entry.box[0], element_bytes]
    source = BOX_SOURCES[part.halves, plan.operand(part.operand).grouped]
    source = f"gemmgen::ReadOnce<{source}>" if part.evict_first else source
    further = [part.shared, source, part.atom_rows]
    usual = [1, "gemmgen::Whole", shape[2]]
    while further and further[-1] in (usual[len(further) - 1], 0):
        further.pop()
    return f"using {name} = gemmgen::Boxes<{', '.join(map(str, shape + further))}>;"


def _coordinate(plan: Plan, axis: str) -> str:
    return {"m": "tile.m()", "n": "tile.n()"}.get(axis) or groups.k_place(plan, axis)


def _box_part(plan: Plan, ring: RingPlan, part: Part) -> dict[str, str]:
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    inner, outer = (_coordinate(plan, axis) for axis in entry.axes[:2])
    if entry.axes[0] == "m" and entry.dtype == DType.F32:
        inner, _ = groups.word_start(plan, "m")
    return {
        "operand": part.operand,
        "load": f"{place_name(ring, part.operand)}::load{f'_parts<{entry.part_rows}>' if entry.part_rows else ''}",
        "inner": inner,
        "outer": outer,
        "map": ", ".join((groups.loaded_map(plan, part.operand), *(f"p.{name}" for name in entry.names[1:]))),
        "parts": ", tile.parts()" if part.stack > 1 else ", parts" if entry.part_rows else "",
        "group": groups.group_coordinate(plan, part.operand),
        "hint": f", {part.operand}_goes_first" if part.evict_first else "",
        "bytes": _bytes_of(plan, part.operand),
    }


def _bytes_of(plan: Plan, operand: str) -> str:
    """All of the operand, as 64 bits."""
    entry = plan.operand(operand)
    extents = [
        f"p.{axis}" if per == 1 else f"gemmgen::ceil_div(p.{axis}, {per})" for axis, per in map(split_axis, entry.box)
    ]
    return f"{f'{entry.dtype.bytes} * ' if entry.dtype.bytes > 1 else ''}u64({extents[0]}) * {' * '.join(extents[1:])}"


def _lane_part(plan: Plan, ring: RingPlan, part: Part) -> dict[str, str]:
    pitch = f"p.{part.operand}_stride"
    k_contiguous, block = part.inner_axis == "k", groups.k_block(plan)
    return {
        "from": groups.address(plan, part.operand, "tile.group()"),
        "place": place_name(ring, part.operand),
        "along_k": block if k_contiguous else f"{block} * {pitch}",
        "stride": pitch if k_contiguous else "1",
        "k_stride": "1" if k_contiguous else pitch,
        "axis": part.outer_axis,
    }


def _store_line(plan: Plan, first_warp: int) -> str:
    store = plan.store
    if store.scales is not None:
        return quantising_store(plan, "Fragments", f"ptx::warp_index() - {first_warp}", "store")
    ctype, moved = C_TYPES[store.dtype], columns_of(store)
    if store.through is None:
        begin = groups.address(plan, store.operand) if plan.groups else slice_place(plan)
        place = f"{begin}, p.{store.operand}_stride"
        if isinstance(plan.mma, MmaPlan) and plan.mma.row_axis == "n":
            columns = moved or ", gemmgen::SideBySide"
            return f"gemmgen::SwappedStore<{ctype}{columns}, gemmgen::PairStore<{ctype}{moved}>> store({place});"
        return f"gemmgen::DirectStore<{ctype}{moved}> store({place});"
    staging = f"{store.through}::{store.operand.upper()}"
    rows, cut = groups.staged_rows(plan)
    moved = moved or (rows and ", gemmgen::SideBySide")
    swapped = isinstance(plan.mma, MmaPlan) and plan.mma.row_axis == "n"
    box = f"SwappedStagedStore<{ctype}, {store.rows}" if swapped else f"StagedStore<{ctype}, {store.row_bytes}"
    kind = f"gemmgen::{box}, {store.through}::SLOTS{moved}{rows}>"
    return f"{kind} store(p.{store.operand}, {staging}, ptx::warp_index() - {first_warp}{cut});"
