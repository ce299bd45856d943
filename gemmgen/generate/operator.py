"""An op as users read about it: a sentence for each of its parameters. Knows nothing of kernels or signatures."""

from __future__ import annotations

from dataclasses import dataclass

COMPILED_DIMS = "accepted for compatibility and checked; extents are run-time values."


@dataclass(frozen=True)
class Operator:
    """One op and a sentence for each of its parameters."""

    name: str
    summary: str
    parameters: dict[str, str]
    kernels: str = ""
    """The op whose kernels serve it, where it has none under its own name."""
    extents: str = "M, N and K may be any size: M or N of 0 launches nothing, K of 0 gives c or zeros."
