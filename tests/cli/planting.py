"""Faults in the text of kernels, for tests of what finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gemmgen.ops import kernels


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Iterator[None]:
    """Every kernel rendered inside has ``old`` replaced in its text."""
    true_render = kernels.render

    def render(plan: Any) -> str:
        text = true_render(plan)
        assert old in text
        return text.replace(old, new)

    kernels.kernel_of.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "render", render)
        yield
    kernels.kernel_of.cache_clear()
