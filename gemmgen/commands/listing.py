"""``gemmgen list``: every op and every kernel we ship. Reads the catalog and nothing else."""

from __future__ import annotations

import json
import sys

from gemmgen import backends, catalog
from gemmgen.commands.output import print_table
from gemmgen.generate.operators import op_of
from gemmgen.ir import AnySpec, LayoutSpec


def show(as_json: bool) -> None:
    """A line a kernel, or a JSON list with the same facts."""
    rows = [_facts(spec) for spec in catalog.all_specs().values()]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        print_table(["kernel", "op", "arch", "tile", "cluster", "d", "c"], [_line(row) for row in rows])


def _facts(spec: AnySpec) -> dict[str, object]:
    if isinstance(spec, LayoutSpec):
        return _layout_facts(spec)
    tile, cluster = spec.tile, spec.cluster
    return {
        "name": spec.name,
        "op": op_of(spec),
        "arch": str(spec.arch),
        "tile": [tile.m, tile.n, tile.k],
        "cluster": [cluster.m, cluster.n],
        "d": str(spec.output.dtype),
        "c": any(step.kind == "residual" for step in spec.epilogue),
    }


def _layout_facts(spec: LayoutSpec) -> dict[str, object]:
    plan = backends.lower(spec)
    return {
        "name": spec.name,
        "op": op_of(spec),
        "arch": str(spec.arch),
        "tile": [plan.tile_m, plan.tile_k],
        "cluster": [1, 1],
        "d": str(spec.output.dtype),
        "c": False,
    }


def _line(row: dict[str, object]) -> list[object]:
    return [
        row["name"],
        row["op"],
        row["arch"],
        _times(row["tile"]),
        _times(row["cluster"]),
        row["d"],
        "yes" if row["c"] else "no",
    ]


def _times(extents: object) -> str:
    assert isinstance(extents, list)
    return "x".join(map(str, extents))
