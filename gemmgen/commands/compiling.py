"""``gemmgen compile``: kernels to binaries for the chip through the disk cache, and what each costs there.

Needs NVRTC and neither a GPU nor a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from gemmgen import backends
from gemmgen.commands.compile_table import markdown
from gemmgen.commands.output import deliver, print_table, progress
from gemmgen.commands.targets import chip
from gemmgen.ir import AnySpec
from gemmgen.runtime.architectures import ARCHITECTURES, Architecture
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.resources import Resources

COLUMNS = ("kernel", "chip", "seconds", "registers", "spill bytes", "shared bytes", "cubin bytes")


def compile_all(specs: Sequence[AnySpec], arch: str | None = None, table: Path | None = None) -> int:
    """Compile each spec and print a table; returns how many spill registers to memory.

    ``arch`` names one chip. With ``table``, kernels are compiled for every chip, and the table is written there too.
    """
    jobs = [(spec, each) for spec in specs for each in ([chip(spec, arch)] if arch or not table else chips(spec))]
    rows, spilling = [], 0
    for spec, each in progress(jobs, "compiling"):
        row, resources = cost(spec, each)
        rows.append(row)
        spilling += spills(resources) > 0
    print_table(COLUMNS, rows)
    if table:
        deliver(markdown(rows, f"NVRTC {version('nvidia-cuda-nvrtc')}"), table, "--table")
    return spilling


def chips(spec: AnySpec) -> list[Architecture]:
    """Every chip of the spec's architecture, by the code that is for it alone."""
    return [each for each in ARCHITECTURES.values() if each.family == spec.arch and each.suffix == "a"]


def cost(spec: AnySpec, arch: Architecture | None = None) -> tuple[list[object], Resources]:
    """A table row and the resources of one kernel; seconds are those of its compile, also when it was cached."""
    arch = arch or chip(spec, None)
    plan = backends.lower(spec)
    compiled = cached_cubin(backends.emit(spec), arch, f"{spec.name}.cu")
    resources = compiled.resources[spec.name]
    row = [spec.name, arch.code, f"{compiled.seconds:.2f}", resources.registers, spills(resources), plan.shared_bytes]
    return [*row, resources.cubin_bytes], resources


def spills(resources: Resources) -> int:
    """Bytes a thread spills to memory, stores and loads together."""
    return resources.spill_store_bytes + resources.spill_load_bytes
