"""Run catalog kernels on ragged problems: python tests/sim/run_campaign.py [--arch sm100] [NAME ...] [--every]

Writes docs/campaign_ARCH.json and .md after each kernel; a kernel whose PTX has a row already is not run again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from campaign.layouts import run_layout  # noqa: E402
from campaign.page import RULES, Row, from_json, page, row, to_json  # noqa: E402
from campaign.problems import Choice, admission  # noqa: E402
from campaign.runs import digest, run  # noqa: E402

from gemmgen import catalog  # noqa: E402
from gemmgen.ir import AnySpec, Arch, LayoutSpec  # noqa: E402
from gemmgen.runtime.simulation import SCHEDULES  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Run what has no row yet; 1 if a row holds a fault, or with --check, if one is missing or of other PTX."""
    arguments = _arguments()
    torch.set_num_threads(1)
    specs = {name: spec for name, spec in catalog.all_specs().items() if spec.arch == arguments.arch and _judged(spec)}
    if unknown := [name for name in arguments.names if name not in specs]:
        raise SystemExit(f"{unknown[0]}: no kernel of {arguments.arch}; `gemmgen list` shows what there is")
    record = Record(arguments.arch, specs)
    choice = Choice(arguments.few, arguments.every)
    chosen = [spec for name, spec in specs.items() if name in arguments.names or not arguments.names]
    stale = [spec for spec in chosen if arguments.fresh or not record.holds(spec, choice)]
    if arguments.check:
        sys.stdout.write("".join(f"{spec.name}: no row of its PTX\n" for spec in stale))
        return 1 if stale or record.faults(chosen) else 0
    for spec in stale:
        began = time.perf_counter()
        record.add(examine(spec, choice, list(specs).index(spec.name)))
        seconds = time.perf_counter() - began
        sys.stdout.write(f"{spec.name}: {record.rows[spec.name].exact} exact runs, {seconds:.0f} s\n")
        sys.stdout.flush()
    faults = record.faults(chosen)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


def examine(spec: AnySpec, choice: Choice, place: int) -> Row:
    """One kernel on the problems that are chosen for the one at its place in the catalog."""
    admitted = admission(spec)
    if isinstance(spec, LayoutSpec):
        found = run_layout(spec, admitted.taken)
        return row(digest(spec), admitted, admitted.taken, found, found.faults)
    problems = choice.problems(admitted.taken, place)
    found = run(spec, problems, first=place * choice.few)
    short = [] if choice.few else found.short_of(spec)
    return row(digest(spec), admitted, problems, found, [*found.faults, *short])


class Record:
    """The rows of an architecture on disk; kernels that left the catalog leave it, too."""

    def __init__(self, arch: Arch, specs: dict[str, AnySpec]) -> None:
        self.arch, self.specs = arch, specs
        self.json = DOCS / f"campaign_{arch}.json"
        self.rows = from_json(self.json.read_text()) if self.json.is_file() else {}

    def holds(self, spec: AnySpec, choice: Choice) -> bool:
        """Whether there is a row of this kernel's PTX without a fault, of as many problems as are asked for."""
        found = self.rows.get(spec.name)
        if found is None or found.faults or found.rules != RULES or found.ptx != digest(spec):
            return False
        return isinstance(spec, LayoutSpec) or found.problems >= len(choice.problems(admission(spec).taken, 0))

    def add(self, found: Row) -> None:
        """Keep a row and write both files."""
        self.rows[found.kernel] = found
        kept = [self.rows[name] for name in self.specs if name in self.rows]
        self.json.write_text(to_json(kept))
        self.json.with_suffix(".md").write_text(page(self.arch, kept, SCHEDULES))

    def faults(self, specs: list[AnySpec]) -> list[str]:
        """What is wrong in the rows of these kernels."""
        rows = [self.rows[spec.name] for spec in specs if spec.name in self.rows]
        return [f"{each.kernel}: {fault}" for each in rows for fault in each.faults]


def _judged(spec: AnySpec) -> bool:
    """Whether a run's case knows all its outputs; quantised ones, prologues and groups have tests of their own."""
    if isinstance(spec, LayoutSpec):
        return True
    return not spec.prologue and spec.groups is None and len(spec.outputs) == 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels; all of the architecture by default")
    parser.add_argument("--arch", type=Arch, default=Arch.SM100, choices=list(Arch), help="sm100 by default")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--every", action="store_true", help="every combination of sizes, not every pair of them")
    size.add_argument("--few", type=int, default=0, metavar="COUNT", help="so many of those, others for each kernel")
    parser.add_argument("--fresh", action="store_true", help="also kernels that have a row of their PTX")
    parser.add_argument("--check", action="store_true", help="run nothing; say which kernels have no row of their PTX")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
