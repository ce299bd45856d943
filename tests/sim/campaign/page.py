"""What the campaign keeps: a row of numbers for every kernel, as JSON and as a page with a short table.

Knows results only; a row is of one PTX text and of one version of the rules, and says of which.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from .problems import AXES, Admission, K, M, N, Sizes
from .runs import Found

RULES = 1
"""Counts changes of inputs, problems or judgement: rows of another number are out of date."""

FEWEST_PAIRS = len(M) * len(N)
"""Fewer problems cannot hold every pair of m and n."""


@dataclass(frozen=True)
class Row:
    """One kernel: the PTX that ran, how many runs of which kind were right, and what the operator refused."""

    kernel: str
    ptx: str
    problems: int
    every: int
    exact: int
    wide: int
    worst_tile: float
    worst_at: str
    refused: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    rules: int = RULES


def row(ptx: str, admission: Admission, problems: Sequence[Sizes], found: Found, faults: Iterable[str]) -> Row:
    """A kernel's row."""
    return Row(
        kernel=found.kernel,
        ptx=ptx,
        problems=len(problems),
        every=len(admission.taken),
        exact=found.exact,
        wide=found.wide,
        worst_tile=float(f"{found.worst_tile:.3g}"),
        worst_at=found.worst_at,
        refused=tuple(refusals(admission.refused)),
        faults=tuple(faults),
    )


def refusals(refused: Mapping[Sizes, str]) -> Iterable[str]:
    """Each message once, behind the sizes that all problems have that it was said of, and their number."""
    messages: dict[str, list[Sizes]] = {}
    for sizes, message in refused.items():
        messages.setdefault(message, []).append(sizes)
    for message, problems in messages.items():
        columns = zip(AXES, zip(*problems, strict=True), strict=True)
        same = ", ".join(f"{axis}={column[0]}" for axis, column in columns if len(set(column)) == 1)
        yield f"{same} ({len(problems)} problems): {message}"


def to_json(rows: Iterable[Row]) -> str:
    """A kernel a line, so that a changed one is a changed line."""
    lines = ",\n".join(json.dumps(asdict(each)) for each in rows)
    return f"[\n{lines}\n]\n"


def from_json(text: str) -> dict[str, Row]:
    """Rows by kernel."""
    return {
        each["kernel"]: Row(**{**each, "refused": tuple(each["refused"]), "faults": tuple(each["faults"])})
        for each in json.loads(text)
    }


def page(arch: str, rows: Sequence[Row], schedules: Sequence[str]) -> str:
    """The page of an architecture."""
    notes = list(dict.fromkeys(note for each in rows for note in each.refused))
    table = [
        "| kernel | problems | refused | exact | wide | worst tile | at |",
        "|---|---|---|---|---|---|---|",
        *(_line(each, notes) for each in rows),
    ]
    sections = [f"# Every {arch} kernel on ragged problems", *map(_wrap, _introduction(arch, rows, schedules))]
    sections.append("\n".join(table))
    if notes:
        listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
        sections.append(f"Refused, in the operator's words:\n\n{listed}")
    for each in rows:
        sections += [f"**{each.kernel}**: {fault}" for fault in each.faults]
    return "\n\n".join(sections) + "\n"


def _introduction(arch: str, rows: Sequence[Row], schedules: Sequence[str]) -> Iterable[str]:
    runs = sum(each.exact + each.wide for each in rows)
    faults = sum(len(each.faults) for each in rows)
    yield (
        f"`python tests/sim/run_campaign.py --arch {arch}` writes this page and the JSON beside it; kernels whose PTX "
        "is what it was are not run again. A slice of it runs with the tests."
    )
    yield (
        f"{len(rows)} kernels of the catalog, {runs} runs of the PTX that NVRTC made, {faults} wrong. Sizes are "
        f"M = {_listed(M)}, N = {_listed(N)} and K = {_listed(K)}, those that the operator admits; where it refuses a "
        "K, the next multiple of 128 is taken. Problems are chosen so that every pair of sizes of two axes occurs, "
        f"or are all of them{_fewer(rows)}. One cluster walks all tiles, or two or three share them."
    )
    yield (
        f"*exact*: runs under each of {_listed(schedules)} whose output is, bit for bit, the only right one. Inputs "
        "are whole numbers from -4 to 4 or any 4-bit codes, all sixteen of them; scales differ from row to row and "
        "block to block, UE8M0 bytes are 1, 2, 125 to 128, 253 and 254. Sums are exact in fp32. *wide*: runs with any "
        "finite codes and scales further apart, under one schedule in turn; each element must be within what rounding "
        "explains, and *worst tile* is the largest relative error of a 64x64 tile against float64 on the dequantised "
        "inputs (for bf16 outputs that is the rounding of the output). Scale bytes beyond K, rows between columns, "
        "and whatever lies behind rows hold NaN; so does the output, around which nothing may be written. A warning "
        "of the simulator counts as wrong."
    )
    yield (
        "Layout kernels, which only move bytes, run on matrices of all these M and N by K; every byte of the "
        "destination's memory is compared."
    )


def _fewer(rows: Sequence[Row]) -> str:
    """What to say of kernels whose problems are too few to hold every pair."""
    few = sum(each.problems < min(each.every, FEWEST_PAIRS) for each in rows)
    some = (
        f"; for {few} kernels (`--few`), some of those, others from kernel to kernel: where it is a single one, *at* "
        "is its size, and such a kernel need not have met every code and byte that is named below"
    )
    return some if few else ""


def _line(each: Row, notes: Sequence[str]) -> str:
    refused = ", ".join(str(notes.index(note) + 1) for note in each.refused)
    worst = (f"{each.worst_tile:.1e}", each.worst_at) if each.wide else ("-", "-")
    cells = (f"`{each.kernel}`", f"{each.problems} of {each.every}", refused or "-", each.exact, each.wide, *worst)
    return "| " + " | ".join(map(str, cells)) + " |"


def _listed(values: Sequence[object]) -> str:
    *some, last = map(str, values)
    return f"{', '.join(some)} and {last}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)
