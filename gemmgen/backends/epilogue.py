"""The epilogue chain in CUDA: what each step's macro prints. Knows plans and expressions, not architectures."""

from __future__ import annotations

import ast
import itertools
from typing import Any

from gemmgen.backends.groups import address, row_end, staged_rows
from gemmgen.backends.names import PAIR_TYPES
from gemmgen.ir import (
    Activation,
    Apply,
    Bias,
    Broadcast,
    Cast,
    ClusterSplitK,
    DType,
    Gate,
    Keep,
    MmaPlan,
    Operand,
    Plan,
    Quantise,
    Reduce,
    Residual,
    Scale,
    SoftCap,
    StepPlan,
    Store,
)
from gemmgen.ir.expression import ACCUMULATOR, BINARY, COMPARISONS, PAIR, names

C_FUNCTIONS = {"abs": "fabsf", "maximum": "fmaxf", "minimum": "fminf"}
"""Functions of an expression that CUDA has under another name; the others are in gemmgen/cuda/gemmgen/math.cuh."""
SIGMOIDS = {"silu", "gelu_tanh"}
"""Functions of which two cost one reciprocal. sigmoid is not among them: its form for two makes a number of NaN."""
OF_BOTH = SIGMOIDS | {"gelu", "relu", "squared_relu"}
"""Functions that take two columns at once."""
LOOSEST, SUM, PRODUCT, UNARY = range(4)
"""How tightly an operator binds."""


def chain_view(plan: Plan) -> dict[str, Any]:
    """The chain as templates print it: ``steps`` on columns of the output and, in ``gate``, what comes before them."""
    at = next((index for index, entry in enumerate(plan.epilogue) if isinstance(entry.step, Gate)), None)
    columns = [f"p.n{' / 2' if at is not None and index >= at else ''}" for index in range(len(plan.epilogue))]
    views = [
        {"index": index, **step_view(plan, entry, cols)}
        for index, (entry, cols) in enumerate(zip(plan.epilogue, columns, strict=True))
    ]
    _leave_relu_to_casts(views)
    first = int(plan.starts)
    common = {"start": _start(plan, views[0]) if plan.starts else None, "paired": _paired(plan, first, at)}
    if at is None:
        return {"steps": views[first:], "gate": None, **common}
    step = plan.epilogue[at].step
    assert isinstance(step, Gate)
    gate = {**views[at], "before": views[first:at], "places": PLACES[step.layout]}
    return {"steps": views[at + 1 :], "gate": gate, **common}


def _start(plan: Plan, view: dict[str, Any]) -> dict[str, Any]:
    """The first step where sums start from its vector: what reads that, and from which place of the tile.

    One along n is read ``ahead`` where products are: when the tile before ends, or before the first one. Where a CTA
    has one tile it is read at ``once``; CTAs that share K blocks add zeros, but the first one. Else registers are for
    the epilogue before, and what a tile needs is only brought ``near``, as it is of any CTA's first tile.
    """
    mma, entry = plan.mma, plan.epilogue[0]
    assert isinstance(mma, MmaPlan)
    (axis,) = entry.along
    rows, end = axis == "m", f"p.{axis}"
    dtype = plan.operand(entry.step.operands[0]).dtype
    kind, blocks = ("StartFromRows", mma.row_blocks) if rows else ("StartFromColumns", mma.col_blocks)
    held = ", bf16x2" if dtype == DType.BF16 and not rows else ""
    ahead = mma.overlap_epilogue and not rows

    def vector(tile: str) -> str:
        return address(plan, entry.step.operands[0], f"{tile}.group()")

    return {
        **view,
        "reader": f"{kind}<{blocks}, {mma.width // 2}{held}>",
        "vector": vector("tile"),
        "place": "tile.m() + first_row" if rows else "tile.n()",
        "end": f"tile.split() > 0 ? 0 : {end}" if plan.splits > 1 else end,
        "near": {
            tile: f"gemmgen::ahead<TILE_{axis.upper()}>({vector(tile)}, {tile}.{axis}(), {end});"
            for tile in ("tile", "next")
        },
        "once": isinstance(plan.schedule, ClusterSplitK),
        "ahead": {tile: f"start.read({vector(tile)}, {tile}.n(), p.n);" for tile in ("tile", "next") if ahead},
    }


def _leave_relu_to_casts(views: list[dict[str, Any]]) -> None:
    """A relu right before a cast is done by the instruction that converts."""
    for view, after in itertools.pairwise(views):
        if view.get("function") == "relu" and after["kind"] == "cast":
            view.update(function=None, note=" relu, by the cast")
            after.update(cast="relu_cast")


PLACES = {"interleaved": ("n / 8 * 16 + n % 8", "gate_n + 8"), "halves": ("n < p.n / 2 ? n : p.n", "n + p.n / 2")}
"""Which columns of the product the gate and the up of column n are; past the edge, none."""


def _paired(plan: Plan, first: int, gate: int | None) -> dict[str, Any]:
    """How steps from the first on, or behind the gate, read operands two columns at a time.

    Nothing if none reads a vector along n: matrices alone are not worth a second form of the chain, as their reads
    cost what they move.
    """
    steps = plan.epilogue[first if gate is None else gate + 1 :]
    reads = {name: along for entry in steps for name, along in zip(entry.step.reads, entry.along, strict=True)}
    vectors = [name for name, along in reads.items() if along == "n"]
    if not vectors:
        return {}
    matrices = [name for name, along in reads.items() if along == "matrix"]
    checks = [f"gemmgen::is_paired({address(plan, name)})" for name in vectors]
    checks += [f"gemmgen::is_paired({address(plan, name)}, p.{name}_stride)" for name in matrices]
    vectors = [address(plan, name) for name in vectors]
    half = "" if gate is None else " / 2"
    return {"checks": checks, "vectors": vectors, "width": f"TILE_N{half}", "columns": f"p.n{half}"}


def step_view(plan: Plan, entry: StepPlan, columns: str) -> dict[str, Any]:
    """The fields that a step's macro prints; the value it reads has ``columns`` columns."""
    step, rows = entry.step, row_end(plan)
    reads = [_value(plan, name, along, columns) for name, along in zip(step.reads, entry.along, strict=True)]
    view: dict[str, Any] = {"kind": step.kind, "note": "", "reads": reads, "columns": columns, "rows": rows}
    if isinstance(step, Scale | Bias):
        by = step.operands[0]
        view["note"] = f" by {by}" if entry.along[0] in ("scalar", "element") else f" {by} along {entry.along[0]}"
    elif isinstance(step, Residual):
        view["note"] = f" {step.beta} * {step.matrix}" if step.beta else f" {step.matrix}"
    elif isinstance(step, Activation):
        view.update(function=step.function, note=f" {step.function}")
    elif isinstance(step, SoftCap):
        view.update(cap=f"{step.cap!r}f", note=f" {step.cap}")
    elif isinstance(step, Apply | Gate):
        values = PAIR if isinstance(step, Gate) else (ACCUMULATOR,)
        both = _of_both(step.tree)
        number = "gemmgen::Both" if both else "float"
        arguments = ", ".join(f"{number} {name}" for name in (*values, *step.operands))
        layout = f", {step.layout}" if isinstance(step, Gate) else ""
        note = f" {step.expression}{layout}"
        view.update(parameters=arguments, body=c_text(step.tree), both=both, note=note)
    elif isinstance(step, Keep):
        view.update(to=f"{address(plan, step.to)}, p.{step.to}_stride", note=f" to {step.to}")
    elif isinstance(step, Reduce):
        counted = f"first_pair + pair, m, {rows}" if step.along == "m" else f"first_row + row, n, {columns}"
        view.update(to=step.to, counted=counted, note=f" {step.function} along {step.along} to {step.to}")
    elif isinstance(step, Cast):
        view.update(pair=PAIR_TYPES[step.to], cast="cast", note=f" to {step.to}")
    elif isinstance(step, Quantise):
        view.update(note=f" to {step.to} with scales {step.scales}{_through(step.through)}")
    elif isinstance(step, Store):
        adds = ", which adds" if step.accumulate else ""
        view.update(note=f" to {step.to}{_through(step.through)}{adds}")
    return view


def _through(ring: str | None) -> str:
    return f" through ring {ring}" if ring else ""


def quantising_store(plan: Plan, layout: str, warp: str, name: str) -> str:
    """The declaration of what quantises a thread's values and writes them with their scales.

    ``layout`` says how a warp holds its block: fragments, or a row a lane.
    """
    store = plan.store
    assert store.scales is not None
    scales = plan.operand(store.scales)
    arguments = [f"gemmgen::{RULES[store.dtype, scales.dtype]}<{store.block}>", f"gemmgen::{_scale_place(scales)}"]
    begin = address(plan, scales.name) if store.through is None else f"p.{scales.name}"
    place = f"{{{begin}, p.{scales.name}_stride}}"
    if store.through is None:
        kind, given = "Direct", f"{address(plan, store.operand)}, p.{store.operand}_stride, {place}"
        arguments += [str(store.row_bytes * 8 // store.dtype.bits)] if layout == "Rows" else []
    else:
        rows, cut = staged_rows(plan)
        kind, given = "Staged", f"p.{store.operand}, {store.through}::{store.operand.upper()}, {warp}, {place}{cut}"
        arguments += [str(store.row_bytes), f"{store.through}::SLOTS{rows}"]
    return f"using Store = gemmgen::{kind}Quantised{layout}<{', '.join(arguments)}>;\n  Store {name}({given});"


RULES = {
    (DType.E4M3, DType.UE8M0): "Mxfp8",
    (DType.E4M3, DType.UE8M0X4): "Mxfp8",
    (DType.E4M3, DType.F32): "Fp8",
    (DType.E2M1, DType.UE8M0): "Mxfp4",
    (DType.E2M1, DType.UE8M0X4): "Mxfp4",
    (DType.E2M1, DType.UE4M3): "Nvfp4",
    (DType.E2M1, DType.UE4M3X4): "Nvfp4",
}
"""How blocks are quantised, in gemmgen/cuda/gemmgen/quantise.cuh, by the type of values and of scales."""


def _scale_place(scales: Operand) -> str:
    if scales.dtype.scales > 1:
        return "ScalesByWord"
    if scales.dtype == DType.F32:
        return "ScalesByBlock" if scales.inner == "m" else "ScalesByRow<float>"
    return "ScalesByRow<u8>"


def _value(plan: Plan, operand: str, along: Broadcast, columns: str) -> str:
    at, rows = address(plan, operand), row_end(plan)
    return {
        "scalar": f"gemmgen::both({at})",
        "element": f"gemmgen::both(gemmgen::load({at}, 0, 1))",
        "m": f"gemmgen::both(gemmgen::load({at}, m, {rows}))",
        "n": f"gemmgen::load_columns({at}, n, {columns})",
        "matrix": f"gemmgen::load_row({at}, p.{operand}_stride, m, n, {rows}, {columns})",
    }[along]


def c_text(tree: ast.expr, around: int = LOOSEST) -> str:
    """An expression of ``gemmgen.ir.expression`` in C++, in fp32, with no more parentheses than it needs."""
    match tree:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int() | float() as value):
            return f"{float(value)!r}f"
        case ast.UnaryOp(operand=operand):
            return _within(f"-{c_text(operand, UNARY + 1)}", UNARY, around)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"gemmgen::divide({c_text(left)}, {c_text(right)})"
        case ast.BinOp(left=left, op=operator, right=right):
            level = PRODUCT if isinstance(operator, ast.Mult) else SUM
            text = f"{c_text(left, level)} {BINARY[type(operator)]} {c_text(right, level + 1)}"
            return _within(text, level, around)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return f"{c_text(left, SUM)} {COMPARISONS[type(operator)]} {c_text(right, SUM)}"
        case ast.Call(func=ast.Name(id="where"), args=[condition, yes, no]):
            return f"({c_text(condition)} ? {c_text(yes, SUM)} : {c_text(no, SUM)})"
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return f"{C_FUNCTIONS.get(function, f'gemmgen::{function}')}({', '.join(map(c_text, arguments))})"
    raise AssertionError(ast.dump(tree))


def _of_both(tree: ast.expr) -> bool:
    """Whether an expression asks for one of SIGMOIDS, and all of it can be said of two columns at once."""
    nodes = list(ast.walk(tree))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    chooses = any(isinstance(node, ast.Compare | ast.Div) for node in nodes)
    return bool(called & SIGMOIDS and names(tree, ())) and called <= OF_BOTH and not chooses


def _within(text: str, level: int, around: int) -> str:
    return f"({text})" if level < around else text
