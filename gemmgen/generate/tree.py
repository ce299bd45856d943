"""A folder that must hold exactly the given files: compare it, or bring it up to date by renames.

Knows paths and bytes only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, bytes]  # path relative to the folder, with forward slashes -> contents


def differences(root: Path, files: Files) -> list[str]:
    """One line for each file that is missing, stale or not as it should be, in path order."""
    present = _present(root)
    lines = [(path, f"missing  {path}") for path in files if path not in present]
    lines += [(path, f"stale    {path}") for path in present if path not in files]
    both = [path for path in files if path in present]
    lines += [(path, f"differs  {path}") for path in both if (root / path).read_bytes() != files[path]]
    return [line for _, line in sorted(lines)]


def write(root: Path, files: Files) -> list[str]:
    """Make the folder hold exactly the files; returns what had to change, files that already match are not touched."""
    changed = differences(root, files)
    for line in changed:
        kind, path = line.split(maxsplit=1)
        if kind == "stale":
            (root / path).unlink()
            _prune(root, (root / path).parent)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            write_by_rename(root / path, files[path])
    return changed


def _present(root: Path) -> set[str]:
    found = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix() for path in found}


def _prune(root: Path, folder: Path) -> None:
    """Remove folders that a stale file left empty."""
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def write_by_rename(path: Path, data: bytes) -> None:
    """Readers see the old file or the whole new one; it gets the permissions any new file would have."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
