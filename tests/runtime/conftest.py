"""Shared by the runtime tests: a cache directory of their own and the smallest kernel that does something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmgen.runtime import cache

VECTOR_ADD = """\
struct Params {
  const float* a;
  const float* b;
  float* out;
  unsigned n;
};

extern "C" __global__ void __launch_bounds__(128) vector_add(const __grid_constant__ Params p) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.out[i] = p.a[i] + p.b[i];
}
"""


@pytest.fixture
def vector_add() -> str:
    return VECTOR_ADD


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """GEMMGEN_CACHE_DIR in a fresh directory that nobody has made yet, and a process that has not opened it."""
    directory = tmp_path / "kernel cache"
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(directory))
    monkeypatch.setattr(cache, "_default", None)
    yield directory
