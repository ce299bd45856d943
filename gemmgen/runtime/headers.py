"""The CUDA headers that emitted sources include, read once and handed to NVRTC from memory.

Passing text instead of a directory keeps awkward install paths out of the command line and makes the cache key
exactly what was compiled.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

Headers = tuple[tuple[str, str], ...]  # (name as written in #include, text), sorted by name


@cache
def package_headers() -> Headers:
    """Every header under gemmgen/cuda by its include name, for example `ptx/mbarrier.cuh`."""
    return tuple(sorted(_walk(files("gemmgen") / "cuda", "")))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _walk(item, f"{prefix}{item.name}/")
        elif item.name.endswith((".cuh", ".h")):
            found.append((prefix + item.name, item.read_text(encoding="utf-8")))
    return found
