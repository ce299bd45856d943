"""How commands print: rich tables and progress bars on a terminal, plain aligned text when piped.

Knows nothing of specs or kernels.
"""

from __future__ import annotations

import os
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


def deliver(data: str | bytes, path: Path | None, option: str = "-o") -> None:
    """Write to a file, or to standard output, which "-" means as well; ``option`` is the word that named the file.

    A file is replaced by a rename, so that nobody reads half of one; a link stays, and what it leads to is replaced.
    Pipes and devices are written to.
    """
    raw = data.encode() if isinstance(data, str) else data
    if path is None or path == Path("-") or _is_standard_output(path):
        sys.stdout.flush()
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return
    try:
        why = _no_place(path)
        if why is None:
            _write(path, raw)
    except BrokenPipeError:  # whoever read it has gone, which is nobody's mistake
        raise
    except OSError as error:  # without its path, which may be a temporary one
        why = f"cannot be written: {error.strerror}; name another file"
    if why is not None:
        raise OSError(f"{option}: {str(path)!r} {why}")


def _write(path: Path, raw: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(raw)
    else:
        write_by_rename(Path(os.path.realpath(path)), raw)


def _no_place(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder; name a file in it"
    folder = Path(os.path.realpath(path)).parent
    return None if folder.is_dir() else f"cannot be written, as there is no folder {folder}; make it first"


def _is_standard_output(path: Path) -> bool:
    """Whether a link such as /dev/stdout leads to what is standard output already, maybe a file that is appended to."""
    try:
        return path.is_symlink() and os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False
