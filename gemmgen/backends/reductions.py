"""Reductions of an epilogue: what a warp holds of a tile, the memory in which warps meet, what the templates print.

Knows specs and plans of products, no other part of lowering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gemmgen.backends.groups import address, row_end
from gemmgen.ir import (
    Gate,
    Groups,
    KernelSpec,
    KGroups,
    MmaPlan,
    MmaSyncPlan,
    Plan,
    Reduce,
    RowGroups,
    UmmaPlan,
    Workspace,
)

FUNCTIONS = {"sum": "Sum", "sum_of_squares": "SumOfSquares", "amax": "Amax"}
"""Kinds of gemmgen/cuda/gemmgen/reductions.cuh."""


@dataclass(frozen=True)
class Grid:
    """The warps that share a tile, ``rows`` by ``columns`` of them; a warp has ``blocks`` of ``block_rows`` rows.

    Blocks of a warp start ``step`` rows apart. ``fragments`` says that a row is spread over four lanes.
    """

    rows: int
    columns: int
    blocks: int
    block_rows: int
    step: int
    fragments: bool = True

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.blocks * self.block_rows


def grid(mma: MmaPlan | UmmaPlan | MmaSyncPlan) -> Grid:
    """How warps share the rows and columns of a tile."""
    if isinstance(mma, MmaPlan):
        return Grid(4 * mma.groups, 1, mma.row_blocks, block_rows=16, step=64)
    if isinstance(mma, UmmaPlan):
        return Grid(4, 1, 1, block_rows=32, step=32, fragments=False)
    return Grid(mma.warp_rows, mma.warp_columns, mma.row_blocks, block_rows=16, step=16)


def reduction_workspaces(spec: KernelSpec, mma: MmaPlan | UmmaPlan | MmaSyncPlan) -> tuple[Workspace, ...]:
    """Memory for the partial results of reductions. Raises ``ValueError`` for what is not lowered."""
    steps = [step for step in spec.epilogue if isinstance(step, Reduce)]
    if not steps:
        return ()
    _check(spec, mma, steps)
    warps, tile, found = grid(mma), spec.tile, []
    columns, wholes = (sum(step.along == along for step in steps) for along in ("m", "mn"))
    if rows := len(steps) - columns:
        found.append(Workspace(name="row_partials", elements=rows * tile.m * warps.columns, per=("m", "n")))
        found.append(Workspace(name="row_arrivals", elements=warps.rows, per=("m",)))
    each: tuple[Literal["g"], ...] = ("g",) if spec.groups is not None else ()
    if wholes:
        found.append(Workspace(name="whole_partials", elements=wholes * warps.rows, per=("m",)))
        found.append(Workspace(name="whole_arrivals", elements=1, per=each))
    if columns:
        found.append(
            Workspace(
                name="column_partials", elements=columns * spec.output_columns(tile.n) * warps.rows, per=("m", "n")
            )
        )
        found.append(Workspace(name="column_arrivals", elements=warps.columns, per=("n", *each)))
    return tuple(found)


def _check(spec: KernelSpec, mma: MmaPlan | UmmaPlan | MmaSyncPlan, steps: list[Reduce]) -> None:
    lanes = mma.lane_axis if isinstance(mma, UmmaPlan) else mma.row_axis
    if lanes == "n":
        raise ValueError(
            f"spec {spec.name!r} reduces to {steps[0].to!r}, but swap_ab puts n on the rows of its product, and "
            "reductions know products with m there; do not swap"
        )


def reductions_view(plan: Plan) -> dict[str, Any]:
    """What the templates print of reductions; nothing for a chain without any."""
    warps = grid(plan.mma)
    rows, columns = _lines(plan, ("n", "mn")), _lines(plan, ("m",))
    if not rows and not columns:
        return {}
    gated, grouped = _gated(plan), plan.groups is not None
    across_rows = bool(columns) or any(each["along"] == "mn" for each in rows)
    width = plan.tile.n // warps.columns // (2 if gated else 1)
    held, at_once = (
        ("Fragment", width) if warps.fragments else ("Lane", plan.store.row_bytes * 8 // plan.store.dtype.bits)
    )
    warp = "warp" if not isinstance(plan.mma, MmaPlan) else f"ptx::warp_index() - {plan.storing.first_warp}"
    across = (f"warp / {warps.columns}", f"warp % {warps.columns}") if warps.columns > 1 else (warp, "")
    return {
        "rows": rows,
        "wholes": [each for each in rows if each["along"] == "mn"],
        "columns": columns,
        "held": held,
        "at_once": at_once,
        "end": row_end(plan),
        "grouped": grouped,
        "groups": f"p.m, p.g, p.{plan.groups.layout}" if plan.groups else "",
        "empty_groups": across_rows and isinstance(plan.groups, RowGroups),
        "share": f"tile.share<{warps.rows}>({across[0]})" if grouped and across_rows else "",
        "warp_rows": warps.warp_rows,
        "block_rows": warps.block_rows,
        "block_step": warps.step,
        "warp_columns": width,
        "half": " / 2" if gated else "",
        "row": _place("M", warps.rows, across[0], grouped),
        "column": _place("N", warps.columns, across[1]),
        "warps_along_m": _places("M", warps.rows, plan.groups),
        "warps_along_n": _places("N", warps.columns),
    }


def _gated(plan: Plan) -> bool:
    """Whether the chain joins pairs of columns, before it reduces."""
    return any(isinstance(entry.step, Gate) for entry in plan.epilogue)


def _lines(plan: Plan, alongs: tuple[str, ...]) -> list[dict[str, Any]]:
    """Reductions along these axes, in the order of their lines in the workspace."""
    steps = [(index, entry.step) for index, entry in enumerate(plan.epilogue) if isinstance(entry.step, Reduce)]
    return [
        {
            "step": index,
            "to": step.to,
            "address": address(plan, step.to),
            "along": step.along,
            "function": FUNCTIONS[step.function],
            "line": line,
        }
        for line, (index, step) in enumerate((index, step) for index, step in steps if step.along in alongs)
    ]


def _place(axis: str, warps: int, warp: str, grouped: bool = False) -> str:
    """Which of all warps along an axis this one is; tiles of groups begin at any row, and are counted."""
    tile = "tile.tile_row()" if grouped else f"tile.{axis.lower()}() / TILE_{axis}"
    return f"{tile} * {warps} + {warp}" if warps > 1 else tile


def _places(axis: str, warps: int, groups: Groups | None = None) -> str:
    """How many warps there are along an axis, in whole clusters, at most where groups decide."""
    share = f"CLUSTER_{axis} * {warps}" if warps > 1 else f"CLUSTER_{axis}"
    units = f"gemmgen::ceil_div(p.{axis.lower()}, TILE_{axis} * CLUSTER_{axis})"
    if groups is not None:
        by = "counts" if isinstance(groups, KGroups) else groups.by
        units = {"ids": units, "ends": f"({units} + p.g)", "counts": f"{units} * p.g"}[by]
    return f"{units} * {share}"


def gate_on_block(plan: Plan) -> str:
    """The functor that joins pairs of columns of a block of accumulators."""
    if not any(isinstance(entry.step, Reduce) for entry in plan.epilogue):
        return f"Gate{{{_whose(plan)}}}"
    return f"Gate{{{_whose(plan)}, reductions, {'0' if isinstance(plan.mma, UmmaPlan) else '2 * i'}}}"


def _whose(plan: Plan) -> str:
    return "p" if plan.groups is None else "p, group, rows"


def epilogue_on_block(plan: Plan) -> str:
    """The functor that a block of accumulators is stored with."""
    if not any(isinstance(entry.step, Reduce) for entry in plan.epilogue):
        return "epilogue"
    if isinstance(plan.mma, UmmaPlan):
        return f"Epilogue{{{_whose(plan)}, reductions, 0, 0}}"
    pairs = (
        f"{plan.mma.width // (16 if _gated(plan) else 8)} * j"
        if isinstance(plan.mma, MmaPlan) and plan.mma.col_blocks > 1 and not plan.store.joined
        else "0"
    )
    return f"Epilogue{{{_whose(plan)}, reductions, 2 * i, {pairs}}}"
