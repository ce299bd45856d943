"""Whole numbers that callers pass, whatever type has them: numpy's integers are some too."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import torch


def whole_numbers(values: Iterable[Any] | Any) -> tuple[int, ...] | None:
    """The same numbers as ints; None where ``values`` are something else. Tensors are, which may lie on a GPU."""
    try:
        given = tuple(values)
        return None if any(isinstance(each, torch.Tensor) for each in given) else tuple(map(index, given))
    except TypeError:
        return None


def at_least(least: int, name: str, value: Any, usual: str) -> int:
    """How many of something; refuses what is no such number. Left out it means the ``usual``."""
    found = whole_numbers((value,))
    if found is None or found[0] < least:
        refused = TypeError if found is None else ValueError
        raise refused(f"{name}: is {value!r}; must be a whole number, {least} or more; leave it out for {usual}")
    return found[0]
