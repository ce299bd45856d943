"""Backends: limits, placement, one ``lower`` per architecture, ``render``. Know the ir; no torch, driver or files."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.backends import sm90, sm100, sm120
from gemmgen.backends.render import render
from gemmgen.backends.table import table
from gemmgen.ir import Arch, KernelSpec, Plan

_LOWER: dict[Arch, Callable[[KernelSpec], Plan]] = {
    Arch.SM90: sm90.lower,
    Arch.SM100: sm100.lower,
    Arch.SM120: sm120.lower,
}


def lower(spec: KernelSpec) -> Plan:
    """The plan of a spec on its architecture; raises ``ValueError`` in sentences when something does not fit."""
    return _LOWER[spec.arch](spec)


def emit(spec: KernelSpec) -> str:
    """The CUDA text of a spec."""
    return render(lower(spec))


__all__ = ["emit", "lower", "render", "table"]
