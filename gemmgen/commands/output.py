"""How commands print: rich tables and progress bars on a terminal, plain aligned text when piped.

Knows nothing of specs or kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gemmgen.generate.tree import write_by_rename

_T = TypeVar("_T")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """One line a row; ruled and coloured where a person is looking and the terminal is wide enough."""
    texts = [[str(cell) for cell in row] for row in rows]
    if not (sys.stdout.isatty() and _print_rich(columns, texts)):
        sys.stdout.write(plain_table(columns, texts))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, two spaces apart."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(line.rstrip() + "\n" for line in padded)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Print a ruled table, or return False: names are there to be copied and may not be cut."""
    from rich.console import Console
    from rich.table import Table

    console, table = Console(), Table(*columns)
    for row in rows:
        table.add_row(*row)
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    if natural > console.width:
        return False
    console.print(table)
    return True


def progress(items: Sequence[_T], doing: str) -> Iterator[_T]:
    """The items, with a bar on standard error when that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=doing, console=Console(stderr=True), transient=True)


def deliver(data: str | bytes, path: Path | None) -> None:
    """Write to a file by rename, or to standard output."""
    raw = data.encode() if isinstance(data, str) else data
    if path is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
    else:
        write_by_rename(path, raw)
