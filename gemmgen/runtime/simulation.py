"""The user's choice to run CPU tensors on the simulator: a context, or the environment variable GEMMGEN_SIMULATE.

Holds only the choice, per thread and task; it loads neither torch nor the simulator.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from gemmgen.runtime.architectures import Architecture, ArchitectureLike, resolve

SIMULATE_VARIABLE = "GEMMGEN_SIMULATE"
SCHEDULES = ("early", "late", "random", "starve")


@dataclass(frozen=True)
class Simulation:
    """Which GPU is simulated and when its asynchronous effects land.

    ``reports`` collects what the simulator says of each launch, in order: instructions, seconds, warnings.
    """

    arch: Architecture
    schedule: str = "early"
    seed: int = 0
    sms: int = 4
    reports: list[Any] = field(default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule: {self.schedule!r} is unknown; use one of {', '.join(SCHEDULES)}")
        if self.sms < 1:
            raise ValueError(f"sms: {self.sms} is not positive; a simulated GPU has at least one SM")


_chosen: ContextVar[Simulation | None] = ContextVar("gemmgen_simulation", default=None)


@contextlib.contextmanager
def simulate(arch: ArchitectureLike, schedule: str = "early", seed: int = 0, sms: int = 4) -> Iterator[Simulation]:
    """Run ops on CPU tensors on a simulated GPU of `arch` inside the block (in this thread)."""
    simulation = Simulation(resolve(arch), schedule, seed, sms)
    token = _chosen.set(simulation)
    try:
        yield simulation
    finally:
        _chosen.reset(token)


def current_simulation() -> Simulation | None:
    """The innermost `simulate` block, else what GEMMGEN_SIMULATE names, else None."""
    if (chosen := _chosen.get()) is not None:
        return chosen
    asked = os.environ.get(SIMULATE_VARIABLE)
    return Simulation(resolve(asked)) if asked else None
