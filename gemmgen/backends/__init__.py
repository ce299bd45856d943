"""Backends: limits, placement, one ``lower`` per architecture, ``render``. Know the ir; no torch, driver or files."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from gemmgen.backends import layout, sm90, sm100, sm120
from gemmgen.backends.common import is_shipped
from gemmgen.backends.render import render as render_pipeline
from gemmgen.backends.table import table as table_of_pipeline
from gemmgen.ir import AnyPlan, AnySpec, Arch, KernelSpec, LayoutPlan, LayoutSpec, Plan

_LOWER: dict[Arch, Callable[[KernelSpec], Plan]] = {
    Arch.SM90: sm90.lower,
    Arch.SM100: sm100.lower,
    Arch.SM120: sm120.lower,
}


@overload
def lower(spec: KernelSpec) -> Plan: ...
@overload
def lower(spec: LayoutSpec) -> LayoutPlan: ...
def lower(spec: AnySpec) -> AnyPlan:
    """The plan of a spec on its architecture; raises ``ValueError`` in sentences when something does not fit."""
    return layout.lower(spec) if isinstance(spec, LayoutSpec) else _LOWER[spec.arch](spec)


def render(plan: AnyPlan) -> str:
    """The CUDA source of a plan: the same bytes for the same plan, always."""
    return layout.render(plan) if isinstance(plan, LayoutPlan) else render_pipeline(plan)


def table(plan: AnyPlan) -> str:
    """The plan in plain text, ending with a newline."""
    return layout.table(plan) if isinstance(plan, LayoutPlan) else table_of_pipeline(plan)


def emit(spec: AnySpec) -> str:
    """The CUDA text of a spec, to be read; line for line what ``render`` has of its plan.

    Only of a spec of the catalog it names the command that prints it again.
    """
    plan = lower(spec)
    text = render(plan)
    return text if is_shipped(plan) else text.replace(REGENERATE.format(plan.name), NOT_SHIPPED, 1)


REGENERATE, NOT_SHIPPED = "// Regenerate: gemmgen emit {}\n", "// Its spec is none of the catalog.\n"


__all__ = ["emit", "lower", "render", "table"]
