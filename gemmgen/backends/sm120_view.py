"""What the sm120 template prints beside the plan: finished strings for fragments, scales, schedule and store."""

from __future__ import annotations

from math import lcm
from typing import Any

from gemmgen.backends import groups
from gemmgen.backends.epilogue import quantising_store
from gemmgen.backends.names import C_TYPES, WORD_SOURCES, columns_of, place_name
from gemmgen.backends.prologue_view import even_splits, slice_place
from gemmgen.backends.sm120_product import BLOCK_COLUMNS, BLOCK_ROWS, column_axis, spreads
from gemmgen.ir import DType, KGroups, MmaSyncPlan, Part, Plan, RolePlan

SCALES_PER_PRODUCT = {"mxf8f6f4": 1, "mxf4nvf4_2x": 2, "mxf4nvf4_4x": 4}


def scale_words(plan: Plan, part: Part) -> str:
    """The type of an operand's words of scales."""
    mma = plan.mma
    assert isinstance(mma, MmaSyncPlan)
    block = mma.sfa_block if part.operand == mma.sfa else mma.sfb_block
    shape = (part.offset, part.count, part.words, block, part.per, "TILE_K", SCALES_PER_PRODUCT[mma.call])
    source = WORD_SOURCES[part.halves, plan.operand(part.operand).grouped]
    return f"gemmgen::ScaleWords<{', '.join(map(str, shape))}{'' if source == 'gemmgen::Whole' else f', {source}'}>"


def sm120_view(plan: Plan) -> dict[str, Any]:
    """Everything the template needs that is no field of the plan."""
    mma = plan.mma
    assert isinstance(mma, MmaSyncPlan)
    ring = plan.mainloop
    math = next(role for role in plan.roles if role.kind == "mma_sync")
    words = [_word_part(plan, part) for part in ring.parts if part.copy_by == "words"]
    row, column = f"first_row + {BLOCK_ROWS} * i", "first_col"
    at = {mma.row_axis: row, column_axis(mma.row_axis): column}
    return {
        "ring": ring,
        "math": math,
        "schedule": _schedule(plan),
        "box_parts": [_box_part(plan, part) for part in ring.parts if part.copy_by == "tma"],
        "word_parts": words,
        "rare_words": [part for part in words if part["per"] > 1],
        "a_place": place_name(ring, mma.a),
        "b_place": place_name(ring, mma.b),
        "a_fragments": _fragments(plan, mma, "A"),
        "b_fragments": _fragments(plan, mma, "B"),
        "scales": [_scales(plan, mma, side) for side in ("a", "b")] if mma.sfa else [],
        "mma_call": _call(mma),
        "store_line": _store_line(plan, mma, math),
        "store_m": f"tile.m() + {at['m']}",
        "store_n": f"tile.n() + {at['n']}",
        "clear_k": _clear_k(plan, mma),
    }


def _call(mma: MmaSyncPlan) -> str:
    types = f"_{mma.a_type}_{mma.b_type}" if mma.call == "mxf8f6f4" else ""
    return f"mma_{mma.call}{types}"


def _schedule(plan: Plan) -> str:
    tiles = f"TILE_M, TILE_N, {plan.raster_group}"
    if plan.groups is not None:
        return groups.schedule(plan)
    if not plan.splits:
        return even_splits(plan)
    if plan.splits == 1:
        return f"gemmgen::Persistent<{tiles}, CLUSTER_M, CLUSTER_N>"
    unit = lcm(*(part.per for part in plan.mainloop.parts))
    return f"gemmgen::SplitK<{tiles}, {plan.splits}, {unit}>"


def _fragments(plan: Plan, mma: MmaSyncPlan, side: str) -> str:
    if mma.cast_a and side == "B":
        return "gemmgen::PairFragments<TILE_N>"
    major, dtype = (mma.a_major, mma.a_type) if side == "A" else (mma.b_major, mma.b_type)
    if major == "mn":
        return f"gemmgen::MnMajorFragments<gemmgen::Side::{side}, TILE_K>"
    spread = ", true" if spreads(dtype, mma.call) else ""
    return f"gemmgen::KMajorFragments<gemmgen::Side::{side}, {mma.row_bytes}{spread}>"


def _box_part(plan: Plan, part: Part) -> dict[str, str]:
    """Where a box starts; packed 4-bit elements are counted two at a time."""
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    halved = entry.element == "u8" and entry.dtype == DType.E2M1
    along_k = "kb * (TILE_K / 2)" if halved else groups.k_place(plan, "k")
    named = {"m": "tile.m()", "n": "tile.n()", "k": along_k}
    inner, outer = (named[axis] for axis in entry.axes[:2])
    return {
        "place": place_name(plan.mainloop, part.operand),
        "operand": part.operand,
        "inner": inner,
        "outer": outer,
        "group": groups.group_coordinate(plan, part.operand),
    }


def _clear_k(plan: Plan, mma: MmaSyncPlan) -> str:
    """What clears the k behind a group's end in a slot of both factors."""
    places = ", ".join(place_name(plan.mainloop, name) for name in (mma.a, mma.b))
    rows = "" if groups.cut_factors(plan) else f"{mma.row_bytes}, "
    return f"gemmgen::clear_k{'_of_rows' if rows else ''}_by_all<{mma.warps * 32}, {rows}{places}>"


def _word_part(plan: Plan, part: Part) -> dict[str, Any]:
    place = place_name(plan.mainloop, part.operand)
    start, skipped = groups.word_start(plan, part.inner_axis)
    grouped = isinstance(plan.groups, KGroups)
    return {
        "place": place,
        "operand": part.operand,
        "per": part.per,
        "load": "load_word" if grouped else "load",
        "word": f"tile.words() + kb / {part.per} * {part.words}" if grouped else "kb",
        "start": start,
        "skipped": f" + {skipped}" if skipped else "",
        "group": groups.group_coordinate(plan, part.operand),
    }


def _scales(plan: Plan, mma: MmaSyncPlan, side: str) -> dict[str, Any]:
    """The words of one factor's scales and what is picked from them for a product."""
    name = mma.sfa if side == "a" else mma.sfb
    assert name is not None
    part = plan.mainloop.part(name)
    rows, words = side == "a", _word_part(plan, part)
    first = "first_row + gemmgen::scale_row()" if rows else "first_col + gemmgen::scale_col()"
    return {
        **words,
        "words": part.words,
        "blocks": mma.row_blocks if rows else mma.column_blocks,
        "stride": BLOCK_ROWS if rows else BLOCK_COLUMNS,
        "first": first + words["skipped"],
        "picked": f"{side}_scale",
    }


def _store_line(plan: Plan, mma: MmaSyncPlan, math: RolePlan) -> str:
    store = plan.store
    if store.scales is not None:
        return quantising_store(plan, "Fragments", "warp", "store")
    ctype, moved = C_TYPES[store.dtype], columns_of(store)
    if store.through is None:
        kind = "SwappedStore" if mma.row_axis == "n" else "DirectStore"
        begin = groups.address(plan, store.operand) if plan.groups else slice_place(plan)
        return f"gemmgen::{kind}<{ctype}{moved}> store({begin}, p.{store.operand}_stride);"
    rows, cut = groups.staged_rows(plan)
    moved = moved or (rows and ", gemmgen::SideBySide")
    kind = f"gemmgen::StagedStore<{ctype}, {store.row_bytes}, {store.through}::SLOTS{moved}{rows}>"
    return f"{kind} store(p.{store.operand}, {store.through}::{store.operand.upper()}, warp{cut});"
