"""What a problem costs with a tile: named terms that add up, and what decides among equals.

Pure data. The rules that fill it in are ``choice``, ``choice_grouped`` and ``choice_k_grouped`` (sm90),
``choice_sm100`` and ``choice_sm120``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

Terms = Mapping[str, float]
"""Time by what takes it, in the order of the formula, in the rule's unit of time."""


@dataclass(frozen=True)
class Cost:
    """Terms of one tile for one problem. The smallest ``key`` wins, among equal ones the tile listed first."""

    terms: Terms
    preference: tuple[float, ...] = ()
    """Further items, less is better, that decide among equal totals."""

    @cached_property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def key(self) -> tuple[float, ...]:
        """What to compare: the total without the noise of adding floats in another order, then the preference."""
        return (round(self.total, 3), *self.preference)

    @property
    def dominant(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda name: self.terms[name])


def added(*terms: Terms) -> Terms:
    """What takes time in several, by name."""
    names = dict.fromkeys(name for each in terms for name in each)
    return {name: sum(each.get(name, 0.0) for each in terms) for name in names}


def scaled(share: float, terms: Terms) -> Terms:
    """So much of each."""
    return {name: share * time for name, time in terms.items()}


def in_waves(tile: Terms, share: float, waves: float) -> Terms:
    """The terms of one tile for a CTA's share of tiles, and ``waves``: what the last, partly filled one adds."""
    return {**scaled(share, tile), "waves": (waves - share) * sum(tile.values())}


def beside_memory(terms: Terms, memory: float, unhidden: float) -> Terms:
    """With the time of device memory: the larger side counts whole, of the smaller one the share not hidden by it."""
    if memory > sum(terms.values()):
        return {**scaled(unhidden, terms), "device memory": memory}
    return {**terms, "device memory": unhidden * memory}
