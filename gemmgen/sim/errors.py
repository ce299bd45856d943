"""Every exception the simulator raises, each a sentence that says where it happened, what rule was broken and by whom.
This module knows nothing of instructions or machines; it only formats places."""

from __future__ import annotations

from dataclasses import dataclass


class SimulationError(Exception):
    """Base class: a kernel broke a rule of the simulated GPU."""


class ParseError(SimulationError):
    """The text is not PTX that the simulator can read."""


class UnknownInstruction(SimulationError):
    """An opcode, modifier or operand form that has no meaning here; never guessed."""


class Deadlock(SimulationError):
    """No warp can run and nothing asynchronous is left that could wake one."""


class Race(SimulationError):
    """Two accesses to the same bytes, at least one a write, with no order between them."""


class OutOfBounds(SimulationError):
    """An access outside the buffer, the shared memory or the allocation it belongs to."""


class Fault(SimulationError):
    """Anything else the hardware would trap on or leave undefined."""


def as_simulation_error(error: Exception) -> SimulationError:
    """The same complaint as a simulation error, with the traceback that leads to the instruction."""
    if isinstance(error, SimulationError):
        return error
    kind = OutOfBounds if isinstance(error, IndexError) else Fault
    return kind(str(error)).with_traceback(error.__traceback__)


@dataclass(frozen=True)
class Place:
    """Where an instruction stands: PTX line, and the CUDA line and spec comment if the text was compiled with them."""

    text: str
    ptx_line: int
    cuda: str = ""
    spec: str = ""

    def __str__(self) -> str:
        parts = [f"`{self.text}` (PTX line {self.ptx_line}"]
        if self.cuda:
            parts.append(f", {self.cuda}")
        if self.spec:
            parts.append(f", spec: {self.spec}")
        return "".join(parts) + ")"
