"""The table of what kernels cost on each chip, as the Markdown of ``docs/compile_table.md``.

Knows rows and text; compiling is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = ("kernel", "registers", "spill bytes", "shared bytes", "cubin bytes")
INTRODUCTION = """\
# What kernels cost on the chip

Every kernel we ship, compiled with {compiler}: registers and bytes spilled per thread as ptxas reports them, dynamic
shared memory of a CTA, and the size of the binary. Written by `gemmgen compile --all --table docs/compile_table.md`;
no GPU takes part.

| chip | kernels | most registers | kernels that spill | most shared bytes |
|---|---|---|---|---|
"""


def markdown(rows: Sequence[Sequence[object]], compiler: str) -> str:
    """The document: a summary, then a table a chip. Rows are kernel, chip, seconds and the other columns."""
    by_chip: dict[str, list[list[object]]] = {}
    for kernel, chip, _, *costs in rows:
        by_chip.setdefault(str(chip), []).append([kernel, *costs])
    summary = "".join(_line(_summary(chip, costs)) for chip, costs in by_chip.items())
    tables = "".join(f"\n## {chip}\n\n{_table(costs)}" for chip, costs in by_chip.items())
    return INTRODUCTION.format(compiler=compiler) + summary + tables


def parse(text: str) -> dict[tuple[str, str], tuple[int, ...]]:
    """The costs of each kernel and chip in a document that ``markdown`` wrote."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for section in text.split("\n## ")[1:]:
        chip, *lines = section.splitlines()
        for line in lines:
            if line.startswith("| sm"):
                kernel, *costs = (cell.strip() for cell in line.strip("|").split("|"))
                found[kernel, chip] = tuple(map(int, costs))
    return found


def _summary(chip: str, costs: Sequence[Sequence[object]]) -> list[object]:
    registers, spills, shared = ([int(str(row[column])) for row in costs] for column in (1, 2, 3))
    return [chip, len(costs), max(registers), sum(each > 0 for each in spills), max(shared)]


def _table(costs: Sequence[Sequence[object]]) -> str:
    return _line(COLUMNS) + "|---" * len(COLUMNS) + "|\n" + "".join(map(_line, costs))


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"
