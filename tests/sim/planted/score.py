"""The page that shows what the deletion campaign found: a table of kinds by kernels, and a note for every exception."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from .deletions import Outcome
from .kernels import Timing

Outcomes = Mapping[str, Sequence[Outcome]]

INTRODUCTION = (
    "`python tests/sim/run_deletions.py` writes this page in a few minutes; a sample of it runs with the tests.",
    "Each synchronising or asynchronous instruction that a kernel executes is deleted from the PTX that NVRTC made, "
    "one at a time (a deleted wait counts as passed). The kernel then runs under {timings} until the simulator reports "
    "something or the output differs from the exact one: inputs are small integers and powers of two, so that every "
    "sum is exact and one wrong bit shows. The unedited kernels pass under all of these timings without a warning. "
    "Rings are cut to 2 or 3 slots and a CTA walks several tiles, so that slots, phases and buffers come round. "
    "`setmaxnreg` and `griddepcontrol` are left out: neither registers nor the kernel before this one are simulated.",
    "A cell counts found deletions of all executed ones.",
)
WARNED = (
    "The simulator does not call these faults, because kernels that are known to run on hardware do the same. It lists "
    "them in `report.warnings`."
)
REASONS = {
    "bar.warp.sync": (
        "It stands between the lanes that read a slot's scales and lane 0, which releases the slot for all of them. "
        "Public kernels leave it out and rely on lanes that advance together; PTX does not promise that."
    ),
    "bulk wait": (
        "The last one of the kernel: a CTA exits while the copy engine still reads its shared memory. Public kernels "
        "leave it out, and no run on hardware is known to have shown harm."
    ),
    "fence.mbarrier_init": (
        "Redundant here. It is a restricted form of the release that the cluster barrier after it makes anyway, at the "
        "same scope. Kernels without a cluster need it, and both share the text."
    ),
}
UNKNOWN = "No reason is known; a rule is missing in the simulator."


def page(outcomes: Outcomes, kinds: Sequence[str], timings: Sequence[Timing]) -> str:
    """The whole page in Markdown."""
    executed = {title: [each for each in found if each.executed] for title, found in outcomes.items()}
    every = [each for found in executed.values() for each in found]
    parts = [
        "# Deletions that the simulator finds",
        *(_wrapped(text.format(timings=_timings(timings))) for text in INTRODUCTION),
        _table(executed, kinds),
        "## What found them",
        _counts("report", Counter(_reporter(each) for each in every if each.found)),
        _counts("first found under", Counter(each.timing[0] for each in every if each.timing)),
        "## Found as a warning",
        _wrapped(WARNED),
        _notes(executed, lambda each: each.warned),
        "## Not found",
        _notes(executed, lambda each: not each.found),
    ]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_on_hyphens=False)


def _timings(timings: Sequence[Timing]) -> str:
    modes = Counter(mode for mode, _ in timings)
    parts = [f"`{mode}`" + (f" with {count} seeds" if count > 1 else "") for mode, count in modes.items()]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _table(outcomes: Outcomes, kinds: Sequence[str]) -> str:
    rows = [f"| deleted | {' | '.join(outcomes)} |", f"|---|{'---|' * len(outcomes)}"]
    for kind in kinds:
        of_kind = [[each for each in found if each.deletion.kind == kind] for found in outcomes.values()]
        if any(of_kind):
            rows.append(f"| {kind} | {' | '.join(map(_score, of_kind))} |")
    rows.append(f"| all | {' | '.join(_score(found) for found in outcomes.values())} |")
    return "\n".join(rows)


def _score(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "-"
    return f"{sum(each.found for each in outcomes)}/{len(outcomes)}"


def _reporter(outcome: Outcome) -> str:
    return "warning" if outcome.warned else outcome.report.split(":", 1)[0]


def _counts(title: str, counts: Counter[str]) -> str:
    rows = [f"| {name} | {count} |" for name, count in counts.most_common()]
    return "\n".join([f"| {title} | deletions |", "|---|---|", *rows])


def _notes(outcomes: Outcomes, wanted: Callable[[Outcome], bool]) -> str:
    places: dict[str, list[str]] = {}
    for title, found in outcomes.items():
        for each in filter(wanted, found):
            places.setdefault(each.deletion.kind, []).append(f"{title} {each.deletion.where}")
    notes = [f"- {kind} ({'; '.join(at)}): {REASONS.get(kind, UNKNOWN)}" for kind, at in places.items()]
    return "\n".join(_wrapped(note, "  ") for note in notes) or "Every deletion was found."
