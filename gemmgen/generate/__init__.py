"""Writes the library that users import as ``gemmgen_ops``: CUDA and spec of every shipped kernel, a module an op.

A pure function of the catalog and the signatures of ``gemmgen.ops``: the same bytes on any machine, for any hash seed.
"""

from __future__ import annotations

from pathlib import Path

from gemmgen import catalog
from gemmgen.backends import emit
from gemmgen.generate.modules import python_files
from gemmgen.generate.tree import Files, differences, write
from gemmgen.ir import AnySpec


def library_files() -> dict[str, bytes]:
    """Every file of ``generated/gemmgen_ops`` by its path in it, sorted."""
    texts = python_files()
    for spec in catalog.all_specs().values():
        texts.update(kernel_files(spec))
    return {path: texts[path].encode() for path in sorted(texts)}


def kernel_files(spec: AnySpec) -> dict[str, str]:
    """The CUDA text and the spec of one kernel."""
    stem = f"kernels/{spec.arch}/{spec.name}"
    return {f"{stem}.cu": emit(spec), f"{stem}.json": spec.to_json()}


def library_root() -> Path:
    """``generated/gemmgen_ops`` of the working tree that this package is imported from."""
    top = Path(__file__).resolve().parents[2]
    if not (top / "pyproject.toml").is_file():
        raise FileNotFoundError(
            f"gemmgen is installed in {top}, which is no working tree of the project; name the folder with --into"
        )
    return top / "generated" / "gemmgen_ops"


__all__ = ["Files", "differences", "kernel_files", "library_files", "library_root", "write"]
