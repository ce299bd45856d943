"""What the sm100 template prints beside the plan: finished strings for operands, scales, products and the store."""

from __future__ import annotations

from typing import Any

from gemmgen.backends import groups
from gemmgen.backends.epilogue import quantising_store
from gemmgen.backends.names import C_TYPES, WORD_SOURCES, columns_of, place_name
from gemmgen.backends.prologue_view import even_splits, slice_place
from gemmgen.backends.sm100_product import SCALES_PER_WORD
from gemmgen.ir import DType, KGroups, Part, Plan, RingPlan, StepPlan, UmmaPlan

STORED_AT = {"m": "tile.m() + warp * 32, tile.n() + col", "n": "tile.m() + col, tile.n() + warp * 32"}
"""Where a warp's block of an output tile starts, by the axis on the lanes."""


def scales(plan: Plan, mma: UmmaPlan, part: Part) -> str:
    """The type of an operand's scales in shared memory."""
    block = mma.sfa_block if part.operand == mma.sfa else mma.sfb_block
    shape = f"{part.offset}, {part.count}, {part.words}, {block}"
    source = WORD_SOURCES[part.halves, plan.operand(part.operand).grouped]
    if part.atoms * part.atom_elements > part.count:
        return f"gemmgen::Scales<{shape}, {source}, {part.atoms}, {part.atom_elements}, {part.bytes // part.words}>"
    return f"gemmgen::Scales<{shape}{'' if source == 'gemmgen::Whole' else f', {source}'}>"


def sm100_view(plan: Plan) -> dict[str, Any]:
    """Everything the template needs that is no field of the plan."""
    mma = plan.mma
    assert isinstance(mma, UmmaPlan)
    ring = plan.mainloop
    store = next(role for role in plan.roles if role.kind == "tmem_store")
    scaled = [entry for entry in plan.rings if entry.ready_count and entry != ring]
    roles = {role.kind: role for role in plan.roles}
    return {
        "ring": ring,
        "launches": next((entry for entry in plan.rings if entry.turns == "launch"), None),
        "fetch": roles.get("fetch_tiles"),
        "walk": _walks(plan),
        "acc": next(entry for entry in plan.rings if entry.columns and entry.turns == "tile"),
        "cast": roles.get("tmem_cast"),
        "cast_ring": next((entry for entry in plan.rings if entry.columns and entry.turns == "k"), None),
        "a_place": place_name(ring, mma.a),
        "a_steps": [
            f"a + {step * mma.step_k}" if mma.cast_a else f"a.at(at.slot, {step})" for step in range(mma.steps)
        ],
        "product_call": "ptx::tcgen05_mma_tf32_tmem" if mma.cast_a else f"ptx::tcgen05_mma_{mma.call}<CTAS>",
        "schedule": _schedule(plan),
        "scale_rings": [_scale_ring(plan, entry) for entry in scaled],
        "issue": roles["tcgen05"],
        "transpose": roles.get("transpose_scales"),
        "store": store,
        "box_parts": [_pair_box(plan, ring, part) for part in ring.parts if part.copy_by == "tma"],
        "leader_fills": mma.ctas == 2 and not ring.ready_count,
        "words": [_scale_part(plan, ring, part) for part in ring.parts if part.copy_by == "words"],
        "a_layout": _umma_layout(mma.a_major, place_name(ring, mma.a), plan.tile.k, mma.step_k),
        "b_layout": _umma_layout(mma.b_major, place_name(ring, mma.b), plan.tile.k, mma.step_k),
        "moving": _moving_ids(plan, mma),
        "products": [_product_operands(plan, mma, step) for step in range(mma.steps)],
        "store_line": _rows_line(plan),
        "store_at": STORED_AT[mma.lane_axis],
        "k_places": ", ".join(place_name(ring, name) for name in groups.cut_factors(plan)),
    }


def _schedule(plan: Plan) -> str:
    if plan.groups is not None:
        return groups.schedule(plan)
    if not plan.splits:
        return even_splits(plan)
    return f"gemmgen::Persistent<TILE_M, TILE_N, {plan.raster_group}, CLUSTER_M, CLUSTER_N>"


def _walks(plan: Plan) -> dict[str, str]:
    """How a role names its walk over tiles: a launch ring must know whether a thread or a warp drains it."""
    if plan.schedule.kind != "launch_control":
        return {"thread": "Schedule", "warp": "Schedule"}
    return {"thread": "Schedule<false>", "warp": "Schedule<true>"}


def _umma_layout(major: str, place: str, k: int, step: int) -> str:
    return f"gemmgen::UmmaKMajor<{place}>" if major == "k" else f"gemmgen::UmmaMnMajor<{place}, {k}, {step}>"


def _scale_ring(plan: Plan, ring: RingPlan) -> dict[str, Any]:
    return {
        "name": ring.name,
        "parts": [_scale_part(plan, ring, part) for part in ring.parts],
        "every": ring.every,
        "ready_count": ring.ready_count,
        "full_count": ring.full_count,
        "empty_count": ring.empty_count,
    }


def _scale_part(plan: Plan, ring: RingPlan, part: Part) -> dict[str, Any]:
    """One operand's scales in a ring; `word` is the first of the words that a K block needs.

    Boxes `start` at the first row of the tile, or in front of it where that is no place to start; those are `skipped`.
    """
    word = f"kb / {ring.name}::EVERY" if ring.every > 1 else f"kb * {part.words}" if part.words > 1 else "kb"
    word = f"tile.words() + {word}" if isinstance(plan.groups, KGroups) else word
    start, skipped = groups.word_start(plan, part.inner_axis)
    return {
        "operand": part.operand,
        "place": place_name(ring, part.operand),
        "start": start,
        "skipped": f", {skipped}" if skipped else "",
        "group": groups.group_coordinate(plan, part.operand),
        "word": word,
        "column": part.column,
    }


def _scales_of(plan: Plan, mma: UmmaPlan) -> list[tuple[str, RingPlan, Part, int]]:
    """The instruction's a and b with scales: which of them, the ring and part that hold its words, k of a scale."""
    named = (("a", mma.sfa, mma.sfa_block), ("b", mma.sfb, mma.sfb_block))
    found = ((ring, part) for ring in plan.rings for part in ring.parts)
    places = {part.operand: (ring, part) for ring, part in found}
    return [(which, *places[name], block) for which, name, block in named if name is not None]


def _moving_ids(plan: Plan, mma: UmmaPlan) -> dict[str, Any]:
    """Which operands' scale bytes move on with the K block because a word serves several; empty for none."""
    moving = {which: ring for which, ring, part, _ in _scales_of(plan, mma) if part.per > 1}
    rings = {ring.name for ring in moving.values()}
    return {"ring": min(rings), "a": int("a" in moving), "b": int("b" in moving)} if moving else {}


def _product_operands(plan: Plan, mma: UmmaPlan, step: int) -> str:
    """What the step's product takes besides its factors: instruction descriptor and columns of scales.

    Where a word serves one K block, the step says which byte of which word is meant.
    """
    scales = _scales_of(plan, mma)
    moving = _moving_ids(plan, mma)
    ids, columns = {"a": 0, "b": 0}, []
    for which, ring, part, block in scales:
        span, at = SCALES_PER_WORD * block, step * mma.step_k
        word = 0 if part.per > 1 else at // span
        ids[which] = 0 if part.per > 1 else at % span // block
        further = f" + {word} * {place_name(ring, part.operand)}::COLUMNS" if word else ""
        columns.append(f"tmem + TMEM_{part.operand.upper()}{further}")
    fixed = f" | gemmgen::scale_ids({ids['a']}, {ids['b']})" if any(ids.values()) else ""
    return ", ".join([f"{'shape' if moving else 'SHAPE'}{fixed}", *columns])


def _pair_box(plan: Plan, ring: RingPlan, part: Part) -> dict[str, str]:
    """Where a box starts; the instruction's b is shared out between the CTAs of a pair."""
    assert isinstance(plan.mma, UmmaPlan)
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    spread = plan.tile.k // 2 if entry.element == "u8" and entry.dtype == DType.E2M1 else plan.tile.k
    along_k = groups.k_place(plan, "k") if spread == plan.tile.k else f"kb * {spread}"
    named = {"m": "tile.m()", "n": "tile.n()", "k": along_k}
    if plan.mma.ctas == 2 and part.operand == plan.mma.b:
        axis = "n" if plan.mma.lane_axis == "m" else "m"
        named[axis] += f" + rank * (TILE_{axis.upper()} / 2)"
    inner, outer = (named[axis] for axis in entry.axes[:2])
    return {
        "place": place_name(ring, part.operand),
        "operand": part.operand,
        "inner": inner,
        "outer": outer,
        "group": groups.group_coordinate(plan, part.operand),
    }


def _is_alike(entry: StepPlan) -> bool:
    """Whether a step treats elements alike wherever they lie: it reads numbers only and writes nothing by itself."""
    return {*entry.along} <= {"scalar", "element"} and not entry.step.outputs


def _rows_line(plan: Plan) -> str:
    store = plan.store
    assert isinstance(plan.mma, UmmaPlan)
    if store.scales is not None:
        return quantising_store(plan, "Rows", "warp", "out")
    lanes = "Rows" if plan.mma.lane_axis == "m" else "Columns"
    ctype = C_TYPES[store.dtype]
    alike = lanes == "Columns" and all(_is_alike(entry) for entry in plan.epilogue[:-1])
    rows, cut = groups.staged_rows(plan)
    columns = columns_of(store) or (rows and store.through and ", gemmgen::SideBySide") or ""
    apart = ", !gemmgen::ELEMENTWISE" if columns and lanes == "Columns" else ""
    mark = (", gemmgen::ELEMENTWISE" if alike else apart) + columns
    if store.through is None:
        count = store.row_bytes // store.dtype.bytes if lanes == "Rows" else store.rows
        begin = groups.address(plan, store.operand) if plan.groups else slice_place(plan)
        return f"gemmgen::Direct{lanes}<{ctype}, {count}{mark}> out({begin}, p.{store.operand}_stride);"
    size = store.row_bytes if lanes == "Rows" else store.rows
    kind = f"gemmgen::Staged{lanes}<{ctype}, {size}, {store.through}::SLOTS{mark}{rows}>"
    return f"{kind} out(p.{store.operand}, {store.through}::{store.operand.upper()}, warp{cut});"
