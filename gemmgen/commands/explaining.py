"""``gemmgen explain``: which kernels could serve a problem, what each is expected to cost, and why one is taken.

Knows the selection and its costs; it compiles and launches nothing.
"""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import dataclass

from gemmgen.commands.output import print_table
from gemmgen.commands.place import Place, place, stores_directly
from gemmgen.commands.targets import Sizes, check_shares_no_k
from gemmgen.generate.operators import OPERATORS
from gemmgen.ir import Arch
from gemmgen.ops import choice
from gemmgen.ops.choice_prenorm import PRENORM
from gemmgen.ops.family import Candidate, Selection
from gemmgen.ops.groups import GROUPED_NAME
from gemmgen.ops.selection import NAME_FORMS, NAMES, Choices, select


@dataclass(frozen=True)
class Unit:
    """What costs are shown in: microseconds where an architecture's cards were measured, else the rule's own unit."""

    name: str
    scale: float
    launch: float = 0.0
    fitted_on: str | None = None
    """The card whose times the constants were fitted to."""

    def of(self, candidate: Candidate) -> float:
        """The whole cost."""
        return self.launch + candidate.cost.total * self.scale

    def caution(self, card: str | None) -> str:
        """Whose numbers these are, where it is not the card's own; empty where it is, or no card is meant."""
        if self.fitted_on is None or card in (None, self.fitted_on):
            return ""
        return (
            f"Costs in {self.name} are by constants fitted to an {self.fitted_on}: on {card} they only compare tiles."
        )


MICROSECONDS = Unit("us", 1 / choice.MHZ, choice.LAUNCH_US, choice.FITTED_ON)
UNITS = {Arch.SM90: MICROSECONDS, Arch.SM100: Unit("cost", 1.0), Arch.SM120: Unit("cost", 1.0)}


MOST_SHOWN = 12
"""Candidates that are printed if not all are asked for."""


def explain(operator: str, sizes: Sizes, arch: str | None, card: str | None, every: bool, as_json: bool) -> None:
    """Print candidates with their terms, the cheapest first, and a sentence on the one taken."""
    if operator == PRENORM:
        raise ValueError(
            f"operator: {PRENORM} takes its form by two comparisons, not by costs: read gemmgen/ops/choice_prenorm.py"
        )
    operator = _whose_kernels(operator)
    product = _product(operator)
    if sizes.m == 0 or sizes.n == 0:
        raise ValueError(
            f"-m, -n: are {sizes.m} and {sizes.n}; D is empty, so a call launches nothing; explain 1 or more of both"
        )
    where = place(product, arch, card)
    choices = Choices(arch=where.arch, card=where.card, direct_store=stores_directly(sizes.n))
    selection = select(operator, sizes.m, sizes.n, sizes.k, where.sms, choices)
    unit = UNITS[where.arch]
    if as_json:
        facts = {"operator": operator, "m": sizes.m, "n": sizes.n, "k": sizes.k, **_facts(selection, where, unit)}
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    rows = f"m={sizes.m}" if operator == product else f"one group of m={sizes.m} rows,"
    sys.stdout.write(f"{operator}, {rows} n={sizes.n} k={sizes.k}, D in bf16, on {where}\n")
    sys.stdout.write(f"{caution}\n\n" if (caution := unit.caution(where.card)) else "\n")
    ordered = _cheapest_first(selection)
    shown = [each for at, each in enumerate(ordered) if every or at < MOST_SHOWN or each is selection.picked]
    names = _names(*shown)
    lines = [
        [each.spec.name, f"{unit.of(each):.1f}", *(_cell(each, name, unit) for name in names), _mark(each, selection)]
        for each in shown
    ]
    print_table(["kernel", unit.name, *names, ""], lines)
    if len(shown) < len(ordered):
        most = f"up to {unit.of(ordered[-1]):.1f} {unit.name}"
        sys.stdout.write(f"and {len(ordered) - len(shown)} more, {most}; --all shows them\n")
    sys.stdout.write(f"\n{reason(selection, unit)}\n")


def _whose_kernels(operator: str) -> str:
    """The operator whose kernels an operator takes: its own, but where they differ in what is behind them only."""
    taken = OPERATORS[operator].kernels if operator in OPERATORS else ""
    return taken if taken in NAMES else operator


def _product(operator: str) -> str:
    """The name that tiles are chosen by: of an operator of groups of rows, the product of each."""
    if operator in NAMES:
        return operator
    if operator in OPERATORS and (match := GROUPED_NAME.fullmatch(operator)) is not None:
        return match["product"] + match["output"]
    check_shares_no_k(f"operator: {operator}", operator)
    grouped = [each for each in OPERATORS if GROUPED_NAME.fullmatch(each)]
    close = difflib.get_close_matches(operator, [*NAMES, *grouped], n=3, cutoff=0.75)
    hint = f", did you mean {' or '.join(close)}" if close else ""
    raise ValueError(f"operator: {operator!r} is unknown{hint}; use {NAME_FORMS}; or one of {', '.join(grouped)}")


def reason(selection: Selection, unit: Unit) -> str:
    """Why the picked candidate was taken."""
    picked, found = selection.picked, selection.measured
    if found is not None:
        entry = found.entry
        return (
            f"{picked.spec.name}: measured, by {found.file.name} for m={entry.m}: {entry.us:.1f} us, where the rule's "
            f"{entry.rule} took {entry.rule_us:.1f} us."
            + (f" Launched early, {entry.ahead} is taken, which reads weights ahead." if entry.ahead else "")
        )
    term = picked.cost.dominant
    share = picked.cost.terms[term] / picked.cost.total if picked.cost.total else 1.0
    text = f"{picked.spec.name}: the cheapest by the rule, and {share:.0%} of that is {term}."
    others = [each for each in _cheapest_first(selection) if each is not picked]
    if not others:
        return f"{text} There is no other."
    return f"{text} {_against(picked, others[0], unit)}"


def _against(picked: Candidate, other: Candidate, unit: Unit) -> str:
    """What the next best pays more for."""
    terms = {name: other.cost.terms.get(name, 0.0) - picked.cost.terms.get(name, 0.0) for name in _names(picked, other)}
    most = max(terms, key=lambda name: terms[name])
    ratio = unit.of(other) / unit.of(picked)
    if ratio <= 1.0005:
        return f"{other.spec.name} costs the same; the one listed first, or that the rule prefers, is taken."
    return f"Next is {other.spec.name} at {ratio:.3f} of it, which pays {terms[most] * unit.scale:.1f} more for {most}."


def _names(*candidates: Candidate) -> list[str]:
    return list(dict.fromkeys(name for each in candidates for name in each.cost.terms))


def _cheapest_first(selection: Selection) -> list[Candidate]:
    return sorted(selection.candidates, key=lambda each: each.cost.key)


def _cell(candidate: Candidate, name: str, unit: Unit) -> str:
    value = candidate.cost.terms.get(name)
    return "" if value is None else f"{value * unit.scale:.1f}"


def _mark(candidate: Candidate, selection: Selection) -> str:
    if candidate is not selection.picked:
        return ""
    return "<- measured" if selection.measured else "<- rule"


def _facts(selection: Selection, where: Place, unit: Unit) -> dict[str, object]:
    return {
        "arch": str(where.arch),
        "sms": where.sms,
        "card": where.card,
        "unit": unit.name,
        "fitted_on": unit.fitted_on,
        "kernel": selection.picked.spec.name,
        "decided_by": "measured" if selection.measured else "rule",
        "why": reason(selection, unit),
        "candidates": [
            {
                "kernel": each.spec.name,
                "total": round(unit.of(each), 3),
                "terms": {name: round(value * unit.scale, 3) for name, value in each.cost.terms.items()},
            }
            for each in _cheapest_first(selection)
        ],
    }
