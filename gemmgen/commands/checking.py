"""``gemmgen check``: what can be said of a spec without a GPU, a table for compiling and one for simulating."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch

from gemmgen import backends
from gemmgen.commands.compiling import COLUMNS, cost, spills
from gemmgen.commands.inputs import k_step
from gemmgen.commands.output import print_table, progress
from gemmgen.commands.relayout import memory_of
from gemmgen.commands.running import Outcome, execute
from gemmgen.commands.targets import Sizes, chip
from gemmgen.ir import AnySpec, DType, LayoutSpec
from gemmgen.runtime.simulation import SCHEDULES

SEED = 1
RUNS = ("m x n x k", "schedule", "worst tile", "calc_diff", "warnings", "result")


@dataclass
class Findings:
    """What simulated runs showed: a row each, how many failed, and warnings with the runs that gave them."""

    rows: list[list[object]] = field(default_factory=list)
    failures: int = 0
    warnings: dict[str, list[str]] = field(default_factory=dict)
    firsts: dict[Sizes, torch.Tensor] = field(default_factory=dict)

    def add(self, spec: AnySpec, sizes: Sizes, schedule: str) -> None:
        """Simulate once more; a correct kernel gives the same bits under every schedule."""
        from gemmgen.sim import SimulationError

        where = f"{sizes.m} x {sizes.n} x {sizes.k}"
        try:
            outcome = execute(spec, sizes, torch.device("cpu"), schedule, SEED)
        except SimulationError as error:
            verdict = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self._add_row([where, schedule, "-", "-", "-", verdict])
            return
        for warning in outcome.warnings:
            self.warnings.setdefault(warning, []).append(f"{where} {schedule}")
        errors = outcome.errors
        cells = [f"{errors.worst_tile:.1e}", f"{errors.calc_diff:.1e}", len(outcome.warnings)]
        self._add_row([where, schedule, *cells, self._verdict(sizes, outcome)])

    def _verdict(self, sizes: Sizes, outcome: Outcome) -> str:
        bits = torch.cat([memory_of(result).flatten() for result in outcome.results])
        same = torch.equal(self.firsts.setdefault(sizes, bits), bits)
        wrong = f"wrong{outcome.errors.remark}"
        return wrong if outcome.wrong else "right" if same else "differs between schedules"

    def _add_row(self, row: list[object]) -> None:
        self.rows.append(row)
        self.failures += row[-1] != "right"


def check(spec: AnySpec, arch: str | None = None) -> None:
    """Compile, for the chip that is named, then simulate ragged problems under every schedule.

    Raises ``ValueError`` that counts what failed; warnings are shown and fail nothing.
    """
    row, resources = cost(spec, chip(spec, arch))
    print_table(COLUMNS, [row])
    cases = [(sizes, schedule) for sizes in ragged_sizes(spec) for schedule in SCHEDULES]
    found = Findings()
    for sizes, schedule in progress(cases, "simulating"):
        found.add(spec, sizes, schedule)
    print_table(RUNS, found.rows)
    for warning, runs in found.warnings.items():
        sys.stdout.write(f"warning in {len(runs)} runs, first {runs[0]}: {warning}\n")
    if found.failures:
        raise ValueError(f"{spec.name}: {found.failures} of {len(cases)} simulated runs failed")
    if spills(resources):
        raise ValueError(
            f"{spec.name}: a thread spills {spills(resources)} bytes; use a smaller tile or fewer slots of K"
        )


def ragged_sizes(spec: AnySpec) -> list[Sizes]:
    """Problems around the tile: one element past it, one short of two, less than one, and an empty sum."""
    if isinstance(spec, LayoutSpec):
        return _ragged_layouts(spec)
    tile, step = spec.tile, k_step(spec)
    exact, past, short = (-(-k // step) * step for k in (tile.k, 2 * tile.k + 16, tile.k - 16))
    chunk = 128 // spec.output.dtype.bits  # TMA stores whole chunks of 16 bytes
    n = max(8, chunk) if tile.n > 8 else chunk
    n = (spec.output.heads.head if spec.output.heads else n) * (2 if spec.gate else 1)
    return [
        Sizes(1, n, exact),
        Sizes(tile.m + 1, tile.n // n * n + n, past),
        Sizes(2 * tile.m - 1, (tile.n - 1) // n * n or n, short),
        Sizes(5, n, 0),
    ]


def _ragged_layouts(spec: LayoutSpec) -> list[Sizes]:
    """Likewise; two 4-bit elements share a byte on both sides. n is not looked at."""
    plan = backends.lower(spec)
    step = 2 if spec.source.dtype == DType.E2M1 else 1
    odd_m, odd_k = plan.tile_m + step, 2 * plan.tile_k - step
    return [Sizes(step, 0, step), Sizes(odd_m, 0, odd_k), Sizes(plan.tile_m, 0, plan.tile_k), Sizes(3 * step, 0, 50)]
