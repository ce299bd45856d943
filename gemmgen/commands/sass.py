"""SASS text of a cubin, from the nvdisasm that comes as a Python package. Knows files and processes only."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path


def disassemble(cubin: bytes) -> str:
    """The machine code as nvdisasm prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(find_nvdisasm()), "-c", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def find_nvdisasm() -> Path:
    """The program inside the installed nvidia package, else the one on PATH."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for candidate in sorted(Path(folder).glob("*/bin/nvdisasm*")):
            return candidate
    on_path = shutil.which("nvdisasm")
    if on_path is None:
        raise FileNotFoundError("nvdisasm is not installed; pip install nvidia-cuda-nvdisasm")
    return Path(on_path)
