"""Render: a plan becomes CUDA text.

Everything a template prints is decided here or in the plan; templates only choose and repeat.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemmgen.backends.epilogue import quantising_store, step_view
from gemmgen.backends.names import C_TYPES, PAIR_TYPES, place_name
from gemmgen.backends.sm120_view import scale_words, sm120_view
from gemmgen.ir import (
    Arch,
    DType,
    MmaPlan,
    MmaSyncPlan,
    Param,
    Part,
    Plan,
    RingPlan,
    UmmaPlan,
)

MMA_CALLS = {"e4m3": "f32_e4m3_e4m3", "bf16": "f32_bf16_bf16<A::TRANSPOSE, B::TRANSPOSE>"}

STORED_AT = {"m": "tile.m() + warp * 32, tile.n() + col", "n": "tile.m() + col, tile.n() + warp * 32"}
"""Where a warp's block of an output tile starts, by the axis on the lanes."""


def render(plan: Plan) -> str:
    """The CUDA source of a plan: the same bytes for the same plan, always."""
    view = {Arch.SM90: _sm90_view, Arch.SM100: _sm100_view, Arch.SM120: sm120_view}[plan.arch]
    return environment().get_template(f"{plan.arch}_gemm.cu.jinja").render(**_common(plan), **view(plan))


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
        "params": [_param_line(param, plan.store.outputs) for param in plan.params],
        "places": {entry.name: [_place(plan, entry, part) for part in entry.parts] for entry in plan.rings},
        "steps": [step_view(step) for step in plan.epilogue],
        "pair_type": PAIR_TYPES[DType.F32 if plan.store.scales else plan.store.dtype],
    }


def _sm90_view(plan: Plan) -> dict[str, Any]:
    ring, mma = plan.mainloop, plan.mma
    assert isinstance(mma, MmaPlan)
    math = next(role for role in plan.roles if role.kind == "wgmma")
    dtype = next(entry.dtype for entry in plan.tensor_maps if entry.operand == mma.a)
    return {
        "ring": ring,
        "math": math,
        "places_of": {role: place_name(ring, name) for role, name in _multiplied(plan).items()},
        "box_parts": [_box_part(plan, ring, part) for part in ring.parts if part.copy_by == "tma"],
        "lane_parts": [_lane_part(ring, part) for part in ring.parts if part.copy_by == "lanes"],
        "a_layout": _layout(mma.a_major, plan.tile.m, plan.tile.k),
        "b_layout": _layout(mma.b_major, plan.tile.n, plan.tile.k),
        "mma_call": MMA_CALLS[dtype],
        "group_rows": 64 * mma.row_blocks,
        "unit_regs": mma.width // 2,
        "sfb_count": plan.tile.n // mma.sfb_columns if mma.sfb_columns else 0,
        "store_line": _store_line(plan, math.first_warp),
    }


def _sm100_view(plan: Plan) -> dict[str, Any]:
    mma = plan.mma
    assert isinstance(mma, UmmaPlan)
    ring = plan.mainloop
    store = next(role for role in plan.roles if role.kind == "tmem_store")
    scaled = [entry for entry in plan.rings if entry.ready_count]
    roles = {role.kind: role for role in plan.roles}
    return {
        "ring": ring,
        "launches": next((entry for entry in plan.rings if entry.turns == "launch"), None),
        "fetch": roles.get("fetch_tiles"),
        "walk": _walks(plan),
        "acc": next(entry for entry in plan.rings if entry.columns),
        "scale_rings": [_scale_ring(plan, mma, entry) for entry in scaled],
        "issue": roles["tcgen05"],
        "transpose": roles.get("transpose_scales"),
        "store": store,
        "box_parts": [_pair_box(plan, ring, part) for part in ring.parts],
        "a_place": place_name(ring, mma.a),
        "b_place": place_name(ring, mma.b),
        "a_layout": _umma_layout(mma.a_major, plan.tile.k, mma.step_k),
        "b_layout": _umma_layout(mma.b_major, plan.tile.k, mma.step_k),
        "scale_ids": _scale_ids(plan, mma),
        "store_line": _rows_line(plan),
        "store_at": STORED_AT[mma.lane_axis],
    }


def _walks(plan: Plan) -> dict[str, str]:
    """How a role names its walk over tiles: a launch ring must know whether a thread or a warp drains it."""
    if plan.schedule.kind != "launch_control":
        return {"thread": "Schedule", "warp": "Schedule"}
    return {"thread": "Schedule<false>", "warp": "Schedule<true>"}


def _umma_layout(major: str, k: int, step: int) -> str:
    return "gemmgen::UmmaKMajor" if major == "k" else f"gemmgen::UmmaMnMajor<{k}, {step}>"


def _scale_ring(plan: Plan, mma: UmmaPlan, ring: RingPlan) -> dict[str, Any]:
    """A ring of scales holds one operand; `word` is the first of the words that a K block needs."""
    (part,) = ring.parts
    word = f"kb / {ring.name}::EVERY" if ring.every > 1 else f"kb * {part.words}" if part.words > 1 else "kb"
    return {
        "name": ring.name,
        "operand": part.operand,
        "place": place_name(ring, part.operand),
        "axis": part.inner_axis,
        "word": word,
        "column": part.column,
        "every": ring.every,
        "ready_count": ring.ready_count,
        "full_count": ring.full_count,
        "empty_count": ring.empty_count,
    }


def _scale_ids(plan: Plan, mma: UmmaPlan) -> list[dict[str, str]]:
    """Per step of a K block: which byte of its word each operand's scale is, and how many columns on its word lies.

    Where a word serves several K blocks, the byte follows the block instead of the step.
    """
    if mma.sfa is None or mma.sfb is None:
        return []
    steps = []
    for step in range(mma.steps):
        view = {}
        for name, operand, block in (("a", mma.sfa, mma.sfa_block), ("b", mma.sfb, mma.sfb_block)):
            part = next(part for ring in plan.rings for part in ring.parts if part.operand == operand)
            span, at = 4 * block, step * mma.step_k
            moving = part.per > 1
            view[f"{name}_id"] = f"kb % {part.per}" if moving else str(at % span // block)
            word = 0 if moving else at // span
            further = f" + {word} * {_scale_place(plan, operand)}::COLUMNS" if word else ""
            view[f"{name}_at"] = f"tmem + TMEM_{operand.upper()}{further}"
        steps.append(view)
    return steps


def _scale_place(plan: Plan, operand: str) -> str:
    ring = next(ring for ring in plan.rings if any(part.operand == operand for part in ring.parts))
    return place_name(ring, operand)


def _pair_box(plan: Plan, ring: RingPlan, part: Part) -> dict[str, str]:
    """Where a box starts; the instruction's b is shared out between the CTAs of a pair."""
    assert isinstance(plan.mma, UmmaPlan)
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    spread = plan.tile.k // 2 if entry.element == "u8" and entry.dtype == DType.E2M1 else plan.tile.k
    named = {"m": "tile.m()", "n": "tile.n()", "k": "kb * TILE_K" if spread == plan.tile.k else f"kb * {spread}"}
    if plan.mma.ctas == 2 and part.operand == plan.mma.b:
        axis = "n" if plan.mma.lane_axis == "m" else "m"
        named[axis] += f" + rank * (TILE_{axis.upper()} / 2)"
    inner, outer = (named[axis] for axis in entry.axes)
    return {"place": place_name(ring, part.operand), "operand": part.operand, "inner": inner, "outer": outer}


def _rows_line(plan: Plan) -> str:
    store = plan.store
    assert isinstance(plan.mma, UmmaPlan)
    if store.scales is not None:
        return quantising_store(plan, "Rows", "warp", "out")
    lanes = "Rows" if plan.mma.lane_axis == "m" else "Columns"
    ctype = C_TYPES[store.dtype]
    if store.through is None:
        count = store.row_bytes // store.dtype.bytes if lanes == "Rows" else store.rows
        return f"gemmgen::Direct{lanes}<{ctype}, {count}> out(p.{store.operand}, p.{store.operand}_stride);"
    size = store.row_bytes if lanes == "Rows" else store.rows
    kind = f"gemmgen::Staged{lanes}<{ctype}, {size}, {store.through}::SLOTS>"
    return f"{kind} out(p.{store.operand}, {store.through}::{store.operand.upper()}, warp);"


def _param_line(param: Param, outputs: tuple[str, ...]) -> str:
    if param.kind == "tensor_map":
        return f"ptx::TensorMap {param.name};"
    if param.kind == "pointer":
        assert param.dtype is not None
        const = "" if param.operand in outputs else "const "
        return f"{const}{C_TYPES[param.dtype]}* {param.name};"
    if param.kind == "workspace":
        return {"partials": "float* partials;", "arrivals": "u32* arrivals;"}[param.name]
    if param.kind == "stride":
        return f"u64 {param.name};"
    if param.kind == "scalar":
        return f"float {param.name};"
    return f"u32 {param.name};"


def _layout(major: str, rows: int, k: int) -> str:
    return f"gemmgen::KMajor<{rows}>" if major == "k" else f"gemmgen::MnMajor<{k}>"


def _multiplied(plan: Plan) -> dict[str, str]:
    mma = plan.mma
    assert isinstance(mma, MmaPlan)
    names = {"a": mma.a, "b": mma.b, "sfa": mma.sfa, "sfb": mma.sfb}
    return {role: name for role, name in names.items() if name is not None}


def _place(plan: Plan, ring: RingPlan, part: Part) -> str:
    """The declaration of an operand's place in a ring's namespace."""
    name = part.operand.upper()
    if ring.turns in ("store", "launch"):
        return f"constexpr u32 {name} = {part.offset};"
    if part.copy_by == "lanes":
        return f"using {name} = gemmgen::Gather<{part.offset}, {part.count}, {part.step}, {part.per}>;"
    if part.copy_by == "words":
        if isinstance(plan.mma, MmaSyncPlan):
            return f"using {name} = {scale_words(plan.mma, part)};"
        assert isinstance(plan.mma, UmmaPlan)
        block = plan.mma.sfa_block if part.operand == plan.mma.sfa else plan.mma.sfb_block
        return f"using {name} = gemmgen::Scales<{part.offset}, {part.count}, {part.words}, {block}>;"
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    element_bytes = part.atom_bytes // (entry.box[0] * entry.box[1] * part.shared)
    shape = [part.offset, part.atoms, entry.box[1] * part.shared, entry.box[0], element_bytes]
    shape += [part.shared] if part.shared > 1 else []
    return f"using {name} = gemmgen::Boxes<{', '.join(map(str, shape))}>;"


def _coordinate(axis: str, tile_k: int) -> str:
    return {"m": "tile.m()", "n": "tile.n()", "k": "kb * TILE_K", f"k/{tile_k}": "kb"}[axis]


def _box_part(plan: Plan, ring: RingPlan, part: Part) -> dict[str, str]:
    entry = next(entry for entry in plan.tensor_maps if entry.operand == part.operand)
    inner, outer = (_coordinate(axis, plan.tile.k) for axis in entry.axes)
    return {"operand": part.operand, "place": place_name(ring, part.operand), "inner": inner, "outer": outer}


def _lane_part(ring: RingPlan, part: Part) -> dict[str, str]:
    pitch = f"p.{part.operand}_stride"
    k_contiguous = part.inner_axis == "k"
    return {
        "operand": part.operand,
        "place": place_name(ring, part.operand),
        "along_k": "kb" if k_contiguous else f"kb * {pitch}",
        "stride": pitch if k_contiguous else "1",
        "axis": part.outer_axis,
    }


def _store_line(plan: Plan, first_warp: int) -> str:
    store = plan.store
    if store.scales is not None:
        return quantising_store(plan, "Fragments", f"ptx::warp_index() - {first_warp}", "store")
    if store.through is None:
        return f"gemmgen::DirectStore<{C_TYPES[store.dtype]}> store(p.{store.operand}, p.{store.operand}_stride);"
    staging = f"{store.through}::{store.operand.upper()}"
    kind = f"gemmgen::StagedStore<{C_TYPES[store.dtype]}, {store.row_bytes}, {store.through}::SLOTS>"
    return f"{kind} store(p.{store.operand}, {staging}, ptx::warp_index() - {first_warp});"
