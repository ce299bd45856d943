"""What a planted mistake is, and the list they register themselves in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmgen.ir import Plan

from .kernels import Subject, subject
from .ptx_text import Statement, address_constant, find, replace_all, rewrite

Change = Callable[[str, Plan], str]


@dataclass(frozen=True)
class Edit:
    """A mistake in one subject's PTX. ``says`` is what the report must contain, a regular expression, if it matters."""

    name: str
    on: str
    change: Change
    says: str = ""

    @property
    def subject(self) -> Subject:
        return subject(self.on)

    @property
    def ptx(self) -> str:
        """The PTX with the mistake; raises if there is nothing to change any more."""
        before = self.subject.ptx
        after = self.change(before, self.subject.plan)
        if after == before:
            raise LookupError(f"edit {self.name!r} changes nothing in {self.on}")
        return after


EDITS: list[Edit] = []


def planted(on: str, says: str = "") -> Callable[[Change], Change]:
    """Register a mistake under its function's name."""

    def register(change: Change) -> Change:
        name = f"{change.__name__}@{on}"
        EDITS.append(Edit(name, on, change, says))
        return change

    return register


def waits(text: str, plan: Plan, side: str) -> list[Statement]:
    """The try_waits on the ring's ``full`` or ``empty`` barriers."""
    first: int = getattr(plan.mainloop, side)
    return find(text, "mbarrier.try_wait", lambda each: address_constant(text, each, 1) == first)


def barrier_inits(text: str, plan: Plan, side: str) -> list[Statement]:
    """The mbarrier.inits of one side, one a slot."""
    first: int = getattr(plan.mainloop, side)
    places = range(first, first + 8 * plan.mainloop.slots, 8)
    return find(text, "mbarrier.init", lambda each: address_constant(text, each, 0) in places)


def with_operand(text: str, found: list[Statement], position: int, operand: str) -> str:
    """The same operand of several statements exchanged."""
    return replace_all(text, found, lambda each: rewrite(each, **{f"_{position}": operand}))
