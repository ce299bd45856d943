"""What templates print of groups: the schedule that walks them, where a tile's own rows end, whose operand is read."""

from __future__ import annotations

from typing import Any

from gemmgen.backends.names import C_TYPES, moved_columns
from gemmgen.ir import (
    FOUND_GROUPS,
    FOUND_PARTS,
    FOUND_ROWS,
    Arch,
    FoundRuns,
    Groups,
    KernelSpec,
    KGroups,
    MapEdits,
    Operand,
    Plan,
    Reduce,
    Residual,
    RowGroups,
    Workspace,
    split_axis,
)

WORDS_A_CHUNK = 4
"""Words in the 16 bytes at whose multiples the copy engine starts boxes."""
WARPGROUP = 4
"""Warps that multiply together."""
MAPS = "maps"
"""The workspace of tensor maps that CTAs edit."""
MAP_BYTES, MAP_TURNS = 128, 2
"""Bytes of a tensor map, and how many of an operand a CTA has where it edits them: copies still use the one before."""


def schedule(plan: Plan) -> str:
    """The type that walks the tiles of all groups."""
    raster = f"gemmgen::Raster<TILE_M, TILE_N, {plan.raster_group}, CLUSTER_M, CLUSTER_N>"
    groups = plan.groups
    assert groups is not None
    if isinstance(groups, KGroups):
        kind = "KBlocks" if groups.apart else "GroupEnds" if groups.by == "ends" else "KCounts"
        spans = f"gemmgen::{kind}<{groups.alignment}>"
        word = max((split_axis(each.outer)[1] for each in plan.operands if each.ragged), default=1)
        return f"gemmgen::KGroups<{spans}, {raster}{f', {word}' if word > 1 else ''}>"
    if plan.found_runs is not None:
        found = f"gemmgen::Runs<{plan.found_runs.place}, {plan.found_runs.parts}, {groups.alignment}>"
        return f"gemmgen::RunTiles<{raster}, {found}>"
    if groups.by == "ids":
        unit = ", TILE_M * CLUSTER_M" if plan.cluster.m > 1 else ""
        return f"gemmgen::RowIds<{raster}, TILE_M{unit}>"
    spans = f"gemmgen::GroupEnds<{groups.alignment}>" if groups.by == "ends" else "gemmgen::GroupCounts"
    return f"gemmgen::RowGroups<{spans}, {raster}>"


def groups_view(plan: Plan) -> dict[str, Any]:
    """Fields of templates: nothing changes without groups."""
    if plan.groups is None:
        return {
            "grouped": False,
            "rows": "p.m",
            "moves": [],
            "store_in_tile": plan.sliced,
            "cleared": [],
            "k_grouped": False,
            "k_extent": "p.k",
        }
    own, staged = plan.operand(plan.store.operand).grouped, plan.store.through is not None
    return {
        "grouped": True,
        "rows": row_end(plan),
        "moves": _moves(plan) if own and staged else [],
        "store_in_tile": own and not staged,
        "cleared": _cleared(plan),
        "k_grouped": isinstance(plan.groups, KGroups),
        "k_extent": "tile.k_count()" if isinstance(plan.groups, KGroups) else "p.k",
    }


def row_end(plan: Plan) -> str:
    """Where the rows of a tile end that are stored."""
    return "p.m" if plan.groups is None else "rows"


def skips_idle_rows(plan: Plan, warps: int) -> bool:
    """Whether a warpgroup multiplies nothing where all rows of its part of a tile are past the end of the group.

    That is where CTAs copy B for each other: those that have less to do would otherwise run ahead of their neighbours,
    and B would come from memory for each of them; that cost an H100 up to 20 %. Rows that become 0 need every warp, and
    so do reductions across rows; warpgroups of a swapped product have the same rows.
    """
    swapped = getattr(plan.mma, "row_axis", "m") == "n"
    several = warps > WARPGROUP and plan.cluster.m > 1 and not swapped
    meets = any(isinstance(entry.step, Reduce) and entry.step.along != "n" for entry in plan.epilogue)
    return isinstance(plan.groups, RowGroups) and not plan.groups.zero_padding and several and not meets


def _moves(plan: Plan) -> list[str]:
    """What a staged store is told of a tile whose group has a matrix of its own."""
    store, scales = "out" if plan.arch == Arch.SM100 else "store", plan.store.scales
    lines = [f"{store}.rows().of(group);"]
    if scales is not None:
        lines.append(f"{store}.scales() = {{{address(plan, scales)}, p.{scales}_stride}};")
    return lines


def _cleared(plan: Plan) -> list[str]:
    """What is cleared of outputs between the rows of a group and those of the next, but for the warp that does it."""
    if not isinstance(plan.groups, RowGroups) or not plan.groups.zero_padding:
        return []
    found = []
    for operand in map(plan.operand, plan.outputs):
        if operand.plane == ("m",):  # one number a row, which tiles of the first columns clear
            found.append(f"1>(p.{operand.name}, 1, rows, tile.next(), tile.n(), 1")
        elif "m" in operand.plane:
            found.append(_cleared_columns(plan, operand))
    return found


def _cleared_columns(plan: Plan, operand: Operand) -> str:
    """A tile's columns of an output, or the scales of its blocks of columns."""
    per = split_axis(operand.plane[-1])[1] * operand.dtype.packed
    scales = operand.name == plan.store.scales
    part = f" / {per}" if per > 1 else ""
    width = f"(TILE_N + {per - 1}) / {per}" if scales and plan.tile.n % per else f"TILE_N{part}"
    columns = f"gemmgen::ceil_div(p.n, {per})" if scales else f"p.n{part}"
    staged = "_rows" if operand.name == plan.store.operand and plan.store.through is not None else ""
    moved = moved_columns(plan.store) if operand.name == plan.store.operand else ""
    at, order = f"p.{operand.name}{staged}", ", true" if operand.inner == "m" else f", false, {moved}" if moved else ""
    return f"{width}{order}>({at}, {at}_stride, rows, tile.next(), tile.n(){part}, {columns}"


def extents(plan: Plan) -> str:
    """What the schedule of groups is made of."""
    assert plan.groups is not None
    sizes = "p.m, p.n, p.k" if isinstance(plan.groups, KGroups) else "p.m, p.n"
    return f"{sizes}, p.g, p.{plan.groups.layout}"


def k_place(plan: Plan, axis: str) -> str:
    """Where a K block begins along an axis of k as boxes write it, ``"k"`` or ``"k/128"``."""
    if axis != "k":
        return k_block(plan)
    begin = "tile.k() + " if isinstance(plan.groups, KGroups) and not plan.groups.apart else ""
    return f"{begin}kb * TILE_K"


def k_block(plan: Plan) -> str:
    """Which K block of the matrix a tile's kb'th is."""
    return "(tile.k() / TILE_K + kb)" if isinstance(plan.groups, KGroups) else "kb"


def finds_runs(spec: KernelSpec) -> bool:
    """Whether a launch finds by row ids where groups lie, and tiles begin there."""
    return isinstance(spec.groups, RowGroups) and spec.groups.found


def check_found_runs(spec: KernelSpec) -> None:
    """Refuse tiles that begin where the copy engine starts no box, and places further apart than a launch counts."""
    groups = spec.groups
    if not isinstance(groups, RowGroups) or not groups.found:
        return
    where, alignment = f"spec {spec.name!r} has groups by ids with an alignment", groups.alignment
    if spec.arch != Arch.SM90:
        raise ValueError(f"{where}, which are lowered for sm90 alone; leave it out and use tiles that divide it")
    step = groups.first_rows(spec.tile.m)
    if step % WORDS_A_CHUNK:
        raise ValueError(
            f"{where} of {alignment}, where tiles of {spec.tile.m} rows begin at multiples of {step}; TMA starts boxes "
            f"of words at every fourth, so use an alignment that is a multiple of {WORDS_A_CHUNK}"
        )
    if alignment > FOUND_ROWS:
        raise ValueError(
            f"{where} of {alignment}; a launch counts {FOUND_ROWS} rows at most between places where groups may start, "
            "so use less, or groups by ends, or leave it out and use tiles that divide it"
        )
    if any(isinstance(each, Reduce) for each in spec.epilogue):
        raise ValueError(
            f"{where} and a reduction, whose warps meet by rows of tiles; pad groups to a multiple of a tile's rows, "
            "64 or 128, and leave it out, or use groups by ends"
        )


def found_run_bytes(spec: KernelSpec) -> int:
    """Shared memory for what a launch finds: a word for the ids of a part, two for a run, and which is first."""
    return (4 + 8) * FOUND_PARTS + 8 if finds_runs(spec) else 0


def found_runs(spec: KernelSpec, end: int) -> FoundRuns | None:
    """Where it lies, if shared memory ends there."""
    if not finds_runs(spec):
        return None
    return FoundRuns(parts=FOUND_PARTS, groups=FOUND_GROUPS, place=end - found_run_bytes(spec))


def edits_maps(spec: KernelSpec) -> bool:
    """Whether tensor maps of factors are edited for every group."""
    return isinstance(spec.groups, KGroups) and spec.groups.apart


def map_bytes(spec: KernelSpec) -> int:
    """Shared memory that maps of both factors are edited in, wherever it may begin."""
    return (2 + 1) * MAP_BYTES if edits_maps(spec) else 0


def map_edits(spec: KernelSpec, a: str, b: str, start: int) -> tuple[MapEdits | None, tuple[Workspace, ...]]:
    """Where maps of the factors are edited, from ``start`` on, and the memory that they are copied to."""
    if not edits_maps(spec):
        return None, ()
    assert spec.groups is not None
    if spec.groups.alignment % spec.tile.k:
        raise ValueError(
            f"spec {spec.name!r} has groups of k that are apart, with an alignment of {spec.groups.alignment}; their K "
            f"blocks are whole, so it must be a multiple of tile.k = {spec.tile.k}"
        )
    edits = MapEdits(operands=(a, b), place=-(-start // MAP_BYTES) * MAP_BYTES)
    return edits, (Workspace(name=MAPS, elements=2 * MAP_TURNS * MAP_BYTES // 4, per=("cta",)),)


def edited_maps(plan: Plan) -> str:
    """What edits the maps of a plan, as the loading thread declares it; empty where nothing is edited."""
    edits, ring = plan.map_edits, plan.mainloop.name
    if edits is None:
        return ""
    of_each = ", ".join(f"p.{name}" for name in edits.operands)
    return f"gemmgen::GroupMaps<{edits.place}, {ring}::SLOTS, {ring}::EMPTY> maps(p.{MAPS}, {of_each});"


def edited_factors(plan: Plan) -> str:
    """What a change of groups is told of the factors."""
    data = (f"p.{name}_data, " for name in plan.map_edits.operands) if plan.map_edits else ()
    return "".join(data) + "p.m, p.n"


def loaded_map(plan: Plan, operand: str) -> str:
    """The tensor map that boxes of an operand are copied with."""
    if plan.map_edits is None or operand not in plan.map_edits.operands:
        return f"p.{operand}"
    return f"maps.{'ab'[plan.map_edits.operands.index(operand)]}()"


def added_matrices(plan: Plan) -> list[str]:
    """Where the matrices lie that the epilogue adds to a tile of a group of k, and their strides."""
    if not isinstance(plan.groups, KGroups):
        return []
    names = [entry.step.matrix for entry in plan.epilogue if isinstance(entry.step, Residual)]
    return [f"{address(plan, name, 'tile.group()')}, p.{name}_stride" for name in names]


def cut_factors(plan: Plan) -> tuple[str, ...]:
    """Factors whose rows are k: of a group's last block, those of the next group are cleared."""
    if not isinstance(plan.groups, KGroups):
        return ()
    return tuple(name for name in (plan.mma.a, plan.mma.b) if plan.operand(name).outer == "k")


def address(plan: Plan, operand: str, group: str = "group") -> str:
    """Where an operand begins, that of a group where each has its own."""
    if not plan.operand(operand).grouped:
        return f"p.{operand}"
    return f"p.{operand} + {group}" + (f" * p.{operand}_group" if plan.operand(operand).plane else "")


def shifted_rows(groups: Groups | None) -> bool:
    """Whether tiles may start at any row, where the copy engine starts boxes of words at every fourth."""
    return isinstance(groups, RowGroups) and groups.by == "ends" and groups.alignment % WORDS_A_CHUNK != 0


def word_start(plan: Plan, axis: str) -> tuple[str, str]:
    """Where boxes of a tile's words along m or n start, and how many words come before the tile's own, if any do."""
    start = f"tile.{axis}()"
    return (f"{start} / 4 * 4", f"{start} % 4") if axis == "m" and shifted_rows(plan.groups) else (start, "")


def group_coordinate(plan: Plan, operand: str) -> str:
    """The last coordinate of a box of the operand, with the comma before it, where every group has its own."""
    return ", tile.group()" if plan.operand(operand).grouped else ""


def staged_rows(plan: Plan) -> tuple[str, str]:
    """The type of rows that a staged store is made for, and with, where the end of a group cuts them; commas first.

    Behind the type comes how many buffers go in a turn, where that is several.
    """
    kind, cut = _kind_of_rows(plan)
    if plan.store.turn > 1:
        kind = f"{kind or ', gemmgen::Clipped'}, {plan.store.through}::TURN"
    return kind, cut


def _kind_of_rows(plan: Plan) -> tuple[str, str]:
    adds = plan.store.accumulate
    if isinstance(plan.groups, KGroups):
        return f", gemmgen::Group{'Added' if adds else 'Clipped'}", ""
    if plan.groups is None:
        return ", gemmgen::Added" if adds else "", ""
    output = plan.operand(plan.store.operand)
    kind = f"gemmgen::{'Own' if output.grouped else 'Next'}Rows<{C_TYPES[output.dtype]}>"
    group = f", p.{output.name}_rows_group" if output.grouped else ""
    return f", {kind}", f", {{p.{output.name}_rows, p.{output.name}_rows_stride{group}}}"
