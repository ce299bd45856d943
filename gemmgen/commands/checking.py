"""``gemmgen check``: what can be said of a spec without a GPU, a table for compiling and one for simulating."""

from __future__ import annotations

import torch

from gemmgen.commands.compiling import COLUMNS, cost, spills
from gemmgen.commands.output import print_table, progress
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec
from gemmgen.runtime.simulation import SCHEDULES

SEED = 1


def check(spec: KernelSpec) -> None:
    """Compile, then simulate ragged problems under every schedule; raises ``ValueError`` that counts what failed."""
    row, resources = cost(spec)
    print_table(COLUMNS, [row])
    cases = [(sizes, schedule) for sizes in ragged_sizes(spec) for schedule in SCHEDULES]
    rows, failures, firsts = [], 0, dict[Sizes, torch.Tensor]()
    for sizes, schedule in progress(cases, "simulating"):
        verdict, error, diff = _simulate(spec, sizes, schedule, firsts)
        rows.append([f"{sizes.m} x {sizes.n} x {sizes.k}", schedule, error, diff, verdict])
        failures += verdict != "right"
    print_table(["m x n x k", "schedule", "worst tile", "calc_diff", "result"], rows)
    if failures:
        raise ValueError(f"{spec.name}: {failures} of {len(cases)} simulated runs failed")
    if spills(resources):
        raise ValueError(
            f"{spec.name}: a thread spills {spills(resources)} bytes; use a smaller tile or fewer slots of K"
        )


def ragged_sizes(spec: KernelSpec) -> list[Sizes]:
    """Problems around the tile: one element past it, one short of two, less than one, and an empty sum."""
    tile = spec.tile
    return [
        Sizes(1, 8, tile.k),
        Sizes(tile.m + 1, tile.n + 8, 2 * tile.k + 16),
        Sizes(2 * tile.m - 1, tile.n - 8 or 8, tile.k - 16),
        Sizes(5, 8, 0),
    ]


def _simulate(spec: KernelSpec, sizes: Sizes, schedule: str, firsts: dict[Sizes, torch.Tensor]) -> tuple[str, str, str]:
    """Verdict, worst tile error and calc_diff; a correct kernel gives the same bits under every schedule."""
    from gemmgen.sim import SimulationError

    try:
        outcome = execute(spec, sizes, torch.device("cpu"), schedule, SEED)
    except SimulationError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}", "-", "-"
    bits = outcome.result.contiguous().view(torch.uint8)
    same = torch.equal(firsts.setdefault(sizes, bits), bits)
    verdict = "wrong" if outcome.wrong else "right" if same else "differs between schedules"
    return verdict, f"{outcome.errors.worst_tile:.1e}", f"{outcome.errors.calc_diff:.1e}"
