"""What the sm90 template prints of the walk over tiles: a loop for each kind of tile, finished strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemmgen.backends.groups import address, group_coordinate
from gemmgen.backends.names import place_name
from gemmgen.backends.sm90_tiles import cut_tx_bytes
from gemmgen.ir import Cast, ClusterSplitK, MmaPlan, Plan, RingPlan, RowGroups, Store


def tiles_view(plan: Plan, ring: RingPlan) -> dict[str, Any]:
    """Loops over tiles with the product of each and its registers, and the bytes that a slot waits for."""
    mma = plan.mma
    assert isinstance(mma, MmaPlan)
    walks = mma.overlap_epilogue or mma.sfb_by_lanes or plan.starts
    whole, tx_bytes = ("whole()" if plan.cut_mma else "valid()"), f"{ring.name}::TX_BYTES"
    loops = [_loop(mma, whole, walks, plan.store.apart)]
    if plan.cut_mma:
        loops.append(_loop(plan.cut_mma, "valid()", mma.sfb_by_lanes, plan.store.apart))
        tx_bytes = f"tile.cut() ? {ring.name}::CUT_TX_BYTES : {tx_bytes}"
    parts = next((entry for entry in plan.tensor_maps if entry.part_rows), None)
    if parts:
        place = place_name(ring, parts.operand)
        whole_slot = f"({tx_bytes})" if plan.cut_mma else tx_bytes
        tx_bytes = f"{whole_slot} - {place}::bytes_without<{parts.part_rows}>(parts)"
    return {
        "row_parts": parts and f"{place}::parts_of<{parts.part_rows}>({_rows_end(plan)} - tile.m())",
        "maps_ahead": list(_maps_ahead(plan, ring)),
        "to_l2": [_to_l2(plan, name) for name in plan.to_l2],
        "tile_loops": loops,
        "unit_regs": mma.width // 2,
        "tile_first": plan.cut_mma is not None or walks,
        "scales_ahead": _scales_ahead(plan, mma),
        "empty_adds_nothing": _empty_adds_nothing(plan),
        "tx_bytes": tx_bytes,
        "cut_tx_bytes": cut_tx_bytes(ring),
    }


def _empty_adds_nothing(plan: Plan) -> bool:
    """Whether a product without any k changes nothing: it is added as it is to what the output holds."""
    return plan.store.accumulate and all(isinstance(entry.step, Cast | Store) for entry in plan.epilogue)


def _maps_ahead(plan: Plan, ring: RingPlan) -> Iterator[str]:
    """The maps that a CTA's first tile is copied by, and the outputs'."""
    for entry in plan.tensor_maps:
        if not entry.part_rows:
            yield f"p.{entry.operand}"
            continue
        place, rows = place_name(ring, entry.operand), f"<{entry.part_rows}>"
        parts = "parts" if isinstance(plan.schedule, ClusterSplitK) else f"{place}::parts_of{rows}(p.m)"
        yield f"{place}::map_of{rows}({', '.join(f'p.{name}' for name in entry.names)}, {parts})"


def _to_l2(plan: Plan, operand: str) -> str:
    """Fetches a share of the tile's part of an operand for the K block `kb`."""
    entry = next(entry for entry in plan.tensor_maps if entry.operand == operand)
    cols, rows = entry.box[:2]
    place = f"p.{operand}, tile.m(), tile.n(), k_blocks - kb, k_blocks{group_coordinate(plan, operand)}"
    return f"gemmgen::to_l2<TILE_M, TILE_N, {rows}, {cols}>({place});"


def _rows_end(plan: Plan) -> str:
    """Where rows end that a single thread knows of: of ids a warp would have to look for their group's."""
    ends = isinstance(plan.groups, RowGroups) and plan.groups.by != "ids"
    return "tile.rows()" if ends else "p.m"


def _scales_ahead(plan: Plan, mma: MmaPlan) -> dict[str, str]:
    """What lanes that read scales of B are told of a tile, and of the next one; nothing where a ring holds them."""
    if not mma.sfb_by_lanes:
        return {}
    return {
        tile: f"lane_scales.of({address(plan, mma.sfb or '', f'{tile}.group()')}, p.{mma.sfb}_stride, {tile}.n(), p.n);"
        for tile in ("tile", "next")
    }


def _loop(mma: MmaPlan, here: str, walks: bool, apart: bool) -> dict[str, Any]:
    """``here`` asks the schedule whether a tile is one of this loop's; one that ``walks`` knows the next one, too.

    Two products may be staged ``apart``: the first beside the last K block of the other, that beside the next tile.
    """
    walk = "next = tile" if walks else ""
    step = "tile = next" if walks else "tile.advance()"
    head = f"for ({'Schedule ' if walk else ''}{walk}; tile.{here}; {step}) {{"
    below = "acc[1][0], row + 64, tile.n()"
    second = below if mma.row_blocks == 2 else f"acc[0][1], row, tile.n() + {mma.width}"
    return {
        "mma": mma,
        "unit_regs": mma.width // 2,
        "here": here,
        "head": head,
        "walks": walks,
        "apart": apart and mma.overlap_epilogue,
        "second": second,
    }
