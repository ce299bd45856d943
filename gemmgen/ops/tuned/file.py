"""The JSON file of measured picks: what it holds, how it is read, merged and printed.

One entry a line, in the order of their problems, so that a reader and a diff see what changed. Knows paths and data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Entry(BaseModel):
    """The fastest right kernel for a problem: microseconds of it and of the one that the rule would take.

    ``ahead`` is the fastest one that reads weights ahead of an early launch, where that is another one and as good as
    that alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: str
    m: int = Field(ge=1)
    n: int = Field(ge=1)
    k: int = Field(ge=1)
    kernel: str
    us: float = Field(gt=0)
    rule: str
    rule_us: float = Field(gt=0)
    ahead: str | None = None

    @property
    def problem(self) -> tuple[str, int, int, int]:
        """What it is an entry for."""
        return self.op, self.n, self.k, self.m


class CardEntries(BaseModel):
    """Entries measured on one kind of card, with the versions and the date of the last of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    card: str
    sms: int = Field(ge=1)
    arch: str
    environment: dict[str, str] = {}
    entries: tuple[Entry, ...] = ()


class TunedFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    cards: tuple[CardEntries, ...] = ()

    def of(self, card: str, sms: int) -> CardEntries | None:
        """What is kept for a card."""
        return next((each for each in self.cards if (each.card, each.sms) == (card, sms)), None)

    def with_entries(self, new: CardEntries) -> TunedFile:
        """With these entries in the place of older ones for the same problems on the same card."""
        old = self.of(new.card, new.sms)
        entries = {each.problem: each for each in (*(old.entries if old else ()), *new.entries)}
        merged = new.model_copy(update={"entries": tuple(entries[problem] for problem in sorted(entries))})
        others = [each for each in self.cards if each is not old]
        return TunedFile(cards=tuple(sorted((*others, merged), key=lambda each: (each.card, each.sms))))

    def text(self) -> str:
        """JSON with a line an entry."""
        cards = ",\n".join(_card_text(each) for each in self.cards)
        return f'{{"format": {self.format}, "cards": [\n{cards}\n]}}\n'


def _card_text(card: CardEntries) -> str:
    head = json.dumps(card.model_dump(exclude={"entries"}))
    lines = ",\n".join(f"  {json.dumps(each.model_dump(exclude_none=True))}" for each in card.entries)
    return f'{head[:-1]}, "entries": [\n{lines}\n]}}'


def read(path: Path) -> TunedFile:
    """The file's contents; raises ``FileNotFoundError``, or ``ValueError`` with the place that is wrong."""
    if not path.is_file():
        raise FileNotFoundError(f"tuned file {path}: there is no such file; gemmgen tune writes one")
    try:
        return TunedFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(
            f"tuned file {path}: {place}: {first['msg']}; write the file with gemmgen tune, or leave it out"
        ) from None
