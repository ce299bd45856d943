"""``gemmgen generate``: brings the generated library up to date, or says how it differs."""

from __future__ import annotations

import sys
from pathlib import Path

from gemmgen.generate import differences, library_files, library_root, write

SHOWN = 20


def generate(into: Path | None, check: bool) -> None:
    """Write the library; with ``check`` write nothing and raise when it is not up to date."""
    root = into or library_root()
    files = library_files()
    if not check:
        changed = write(root, files)
        sys.stdout.write(f"{len(files)} files in {_shown(root)}, {len(changed)} changed\n")
        return
    found = differences(root, files)
    for line in found[:SHOWN]:
        sys.stdout.write(line + "\n")
    if len(found) > SHOWN:
        sys.stdout.write(f"... and {len(found) - SHOWN} more\n")
    if found:
        raise ValueError(f"{len(found)} generated files are not up to date; run `gemmgen generate`")
    sys.stdout.write(f"{len(files)} files in {_shown(root)} are up to date\n")


def _shown(root: Path) -> str:
    return str(root.relative_to(Path.cwd())) if root.is_relative_to(Path.cwd()) else str(root)
