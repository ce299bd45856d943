"""Measured picks: which kernel was the fastest for a problem on a card, asked before the rule is.

Entries come from files that ``gemmgen tune`` writes: those that ``use_tuned`` named, those in ``GEMMGEN_TUNED``, and
last those of this package. Reads files when a problem is first seen on a card; knows names of kernels, not kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.ops.tuned.file import Entry, TunedFile, read

__all__ = ["VARIABLE", "Card", "Entry", "Measured", "TunedFile", "measured", "read", "use_tuned"]

VARIABLE = "GEMMGEN_TUNED"
"""Names tuned files, separated as in PATH."""
SHIPPED = {"NVIDIA H100 80GB HBM3": "h100.json", "NVIDIA H200": "h200.json"}
"""The file of this package for a card."""
FEW_ROWS, GRAIN_OF_FEW, GRAIN = 64, 8, 64
"""Up to FEW_ROWS rows tiles are told apart by 8 rows, beyond by 64."""


@dataclass(frozen=True)
class Card:
    """A GPU as entries are kept for it. A simulated one has no name: it takes what named files say of its size."""

    name: str | None
    sms: int
    arch: str


@dataclass(frozen=True)
class Measured:
    """An entry for a problem, and the file it is from."""

    entry: Entry
    file: Path


@dataclass(frozen=True)
class _Named:
    """What ``use_tuned`` said."""

    files: tuple[Path, ...] = ()
    shipped: bool = True


_named = _Named()


def use_tuned(*paths: str | os.PathLike[str], shipped: bool = True) -> None:
    """Let the entries of these files decide on kernels, before those in ``GEMMGEN_TUNED`` and those of this package.

    The first file with an entry for a problem decides. Every call replaces what the last one named; without paths,
    nothing is named. ``shipped=False`` leaves the package's own entries aside. Problems that were called before keep
    their kernel, so call it first.

    Raises ``FileNotFoundError`` when a file is not there, ``ValueError`` when one is not what ``gemmgen tune`` writes.
    """
    global _named
    files = tuple(Path(path).absolute() for path in paths)
    for file in files:
        _entries(file)
    _named = _Named(files, shipped)


def measured(card: Card, operators: Sequence[str], m: int, n: int, k: int) -> list[Measured]:
    """Entries for a problem, the ones to prefer first; mostly none.

    n and k must be an entry's own, and so must m, or else the entry of the nearest m decides, among those whose m is
    the same multiple of 64 when rounded up (of 8, where m is at most 64): then tiles cover m as often, but for those
    whose rows neither divide 64 nor are a multiple of it.
    """
    found: list[Measured] = []
    for file, any_name in _files(card):
        table = _table(file, None if any_name else card.name, card.sms, card.arch)
        for operator in operators:
            entries = [each for each in table.get((operator, n, k), ()) if bucket(each.m) == bucket(m)]
            nearest = sorted(entries, key=lambda each: (abs(each.m - m), -each.m))
            found += [Measured(each, file) for each in nearest]
    return found


def bucket(m: int) -> int:
    """The rows that m is rounded up to."""
    grain = GRAIN_OF_FEW if m <= FEW_ROWS else GRAIN
    return -(-m // grain) * grain


def _files(card: Card) -> Iterable[tuple[Path, bool]]:
    """Files in the order in which they decide, and whether their entries serve a card without a name."""
    variable = os.environ.get(VARIABLE, "")
    for file in (*_named.files, *(Path(each).absolute() for each in variable.split(os.pathsep) if each)):
        yield file, card.name is None
    if _named.shipped and card.name in SHIPPED:
        yield Path(__file__).with_name(SHIPPED[card.name]), False


@cache
def _entries(file: Path) -> TunedFile:
    return read(file)


@cache
def _table(file: Path, name: str | None, sms: int, arch: str) -> dict[tuple[str, int, int], list[Entry]]:
    """The file's entries for a card, or without a name for any of that architecture and size, by operator, n and k."""
    table: dict[tuple[str, int, int], list[Entry]] = {}
    for card in _entries(file).cards:
        if (card.arch, card.sms) == (arch, sms) and name in (None, card.card):
            for entry in card.entries:
                table.setdefault((entry.op, entry.n, entry.k), []).append(entry)
    return table
