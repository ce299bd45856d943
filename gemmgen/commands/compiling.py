"""``gemmgen compile``: kernels to binaries for the chip through the disk cache, and what each costs there.

Needs NVRTC and neither a GPU nor a driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen import backends
from gemmgen.commands.output import print_table, progress
from gemmgen.ir import KernelSpec
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.nvrtc import Compiled
from gemmgen.runtime.resources import Resources

COLUMNS = ("kernel", "seconds", "registers", "spill bytes", "shared bytes", "cubin bytes")


def compile_all(specs: Sequence[KernelSpec]) -> int:
    """Compile each spec and print a table; returns how many spill registers to memory."""
    rows, spilling = [], 0
    for spec in progress(specs, "compiling"):
        row, resources = cost(spec)
        rows.append(row)
        spilling += spills(resources) > 0
    print_table(COLUMNS, rows)
    return spilling


def cost(spec: KernelSpec) -> tuple[list[object], Resources]:
    """A table row and the resources of one kernel; seconds are those of its compile, also when it was cached."""
    plan = backends.lower(spec)
    compiled = compile_spec(spec)
    resources = compiled.resources[spec.name]
    row = [spec.name, f"{compiled.seconds:.2f}", resources.registers, spills(resources), plan.shared_bytes]
    return [*row, resources.cubin_bytes], resources


def compile_spec(spec: KernelSpec) -> Compiled:
    """The binary of a spec."""
    return cached_cubin(backends.emit(spec), spec.arch, f"{spec.name}.cu")


def spills(resources: Resources) -> int:
    """Bytes a thread spills to memory, stores and loads together."""
    return resources.spill_store_bytes + resources.spill_load_bytes
