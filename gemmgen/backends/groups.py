"""What templates print of groups: the schedule that walks them, where a tile's own rows end, whose operand is read."""

from __future__ import annotations

from typing import Any

from gemmgen.backends.names import C_TYPES
from gemmgen.ir import Plan, RowGroups


def schedule(plan: Plan) -> str:
    """The type that walks the tiles of all groups."""
    raster = f"gemmgen::Raster<TILE_M, TILE_N, {plan.raster_group}, CLUSTER_M, CLUSTER_N>"
    groups = plan.groups
    assert groups is not None
    if groups.by == "ids":
        return f"gemmgen::RowIds<{raster}, TILE_M>"
    spans = f"gemmgen::GroupEnds<{groups.alignment}>" if groups.by == "ends" else "gemmgen::GroupCounts"
    return f"gemmgen::RowGroups<{spans}, {raster}>"


def groups_view(plan: Plan) -> dict[str, Any]:
    """Fields of templates: nothing changes without groups."""
    if plan.groups is None:
        return {"grouped": False, "rows": "p.m", "moves": [], "store_in_tile": plan.sliced, "cleared": []}
    own, staged = plan.operand(plan.store.operand).grouped, plan.store.through is not None
    return {
        "grouped": True,
        "rows": row_end(plan),
        "moves": _moves(plan) if own and staged else [],
        "store_in_tile": own and not staged,
        "cleared": _cleared(plan),
    }


def row_end(plan: Plan) -> str:
    """Where the rows of a tile end that are stored."""
    return "rows" if isinstance(plan.groups, RowGroups) else "p.m"


def _moves(plan: Plan) -> list[str]:
    """What a staged store is told of a tile whose group has a matrix of its own."""
    lines, scales = ["store.rows().of(group);"], plan.store.scales
    if scales is not None:
        lines.append(f"store.scales() = {{{address(plan, scales)}, p.{scales}_stride}};")
    return lines


def _cleared(plan: Plan) -> list[str]:
    """What is cleared of outputs between the rows of a group and those of the next, but for the warp that does it."""
    if not isinstance(plan.groups, RowGroups) or not plan.groups.zero_padding:
        return []
    found = []
    for operand in map(plan.operand, plan.outputs):
        if operand.plane[:1] != ("m",) or operand.plane[1:] not in (("n",), ("n/2",)):
            continue
        part = "" if operand.plane[1] == "n" else " / 2"
        staged = "_rows" if operand.name == plan.store.operand and plan.store.through is not None else ""
        at = f"p.{operand.name}{staged}"
        found.append(f"TILE_N{part}>({at}, {at}_stride, rows, tile.next(), tile.n(){part}, p.n{part}")
    return found


def extents(plan: Plan) -> str:
    """What the schedule of groups is made of."""
    assert plan.groups is not None
    return f"p.m, p.n, p.g, p.{plan.groups.layout}"


def address(plan: Plan, operand: str, group: str = "group") -> str:
    """Where an operand begins, that of a group where each has its own."""
    if not plan.operand(operand).grouped:
        return f"p.{operand}"
    return f"p.{operand} + {group}" + (f" * p.{operand}_group" if plan.operand(operand).plane else "")


def group_coordinate(plan: Plan, operand: str) -> str:
    """The last coordinate of a box of the operand, with the comma before it, where every group has its own."""
    return ", tile.group()" if plan.operand(operand).grouped else ""


def staged_rows(plan: Plan) -> tuple[str, str]:
    """The type of rows that a staged store is made for, and with, where the end of a group cuts them; commas first."""
    if not isinstance(plan.groups, RowGroups):
        return "", ""
    output = plan.operand(plan.store.operand)
    kind = f"gemmgen::{'Own' if output.grouped else 'Next'}Rows<{C_TYPES[output.dtype]}>"
    group = f", p.{output.name}_rows_group" if output.grouped else ""
    return f", {kind}", f", {{p.{output.name}_rows, p.{output.name}_rows_stride{group}}}"
