"""All conformance cases, by family."""

from __future__ import annotations

from functools import cache

from . import atomics, barriers, cluster, copies, elementwise, matrix, tma, tma_edit, tma_traps, warp_ops, wgmma
from .case import Case

MODULES = (matrix, wgmma, tma, tma_edit, tma_traps, copies, barriers, cluster, atomics, warp_ops, elementwise)


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(case for module in MODULES for case in module.cases())


def module_names() -> list[str]:
    return [module.__name__.rsplit(".", 1)[1] for module in MODULES]


def cases_of(module_name: str) -> tuple[Case, ...]:
    """The cases of one module: what a worker process runs."""
    module = next(m for m in MODULES if m.__name__.endswith("." + module_name))
    return tuple(module.cases())
