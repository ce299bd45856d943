"""Runs every conformance case on the simulator and on the GPU and compares the bits.

    python tests/gpu/conformance.py --json OUT          both halves, on a Hopper machine
    python tests/gpu/conformance.py --sim-only          the simulator against numpy, anywhere
    python tests/gpu/conformance.py --document OUT      its table into docs/conformance.md; runs nothing

A few cases at a time run in a process of their own: a kernel that hangs or faults ends its process, and the next
process goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from conformance_cases.case import Case  # noqa: E402
from conformance_cases.registry import cases_of, module_names  # noqa: E402
from conformance_cases.report import print_table, summary, write_document  # noqa: E402

Row = dict[str, Any]
WORKER_SECONDS = 120
WORKER_CASES = 24  # of one process: few enough that all processes end at about the same time
TRAPPING_CASES = 2  # likewise, where every case ends its process
DEVICE_FAILED = 3  # exit code of a worker whose context is no longer usable


def main() -> int:
    options = arguments()
    if options.worker:
        return work(options)
    if options.document:
        write_document(json.loads(Path(options.document).read_text()))
        return 0
    start = time.time()
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for part in pool.map(lambda part: run_part(part, options), parts(options)) for row in part]
    print_table(rows)
    report = {**summary(rows), "seconds": round(time.time() - start, 1), "machine": machine(options), "cases": rows}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["unequal"] == 0 else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write every case's result here")
    parser.add_argument("--sim-only", action="store_true", help="run the simulator alone, compare with numpy")
    parser.add_argument("--device-only", action="store_true", help="run the GPU alone, compare with numpy")
    parser.add_argument("--only", nargs="*", help=f"modules of cases: {', '.join(module_names())}")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--schedule", default="random", help="of the simulator: early, late, random, starve")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--document", metavar="JSON", help="write the table of this result into docs/conformance.md")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="worker processes at a time")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(module: str, options: argparse.Namespace) -> list[Case]:
    return [case for case in cases_of(module) if options.match in case.name]


@dataclass(frozen=True)
class Part:
    """Consecutive cases of a module, for one process."""

    module: str
    first: int
    cases: list[Case]


def parts(options: argparse.Namespace) -> list[Part]:
    modules = [name for name in module_names() if not options.only or name in options.only]
    return [part for module in modules for part in module_parts(module, chosen(module, options))]


def module_parts(module: str, cases: list[Case]) -> list[Part]:
    size = TRAPPING_CASES if any(case.refused for case in cases) else WORKER_CASES
    return [Part(module, first, cases[first : first + size]) for first in range(0, len(cases), size)]


def run_part(part: Part, options: argparse.Namespace) -> list[Row]:
    """The rows of one part; a case at which a worker died or hung gets a row that says so."""
    cases, rows = part.cases, list[Row]()
    while len(rows) < len(cases):
        new, ending = run_worker(part, options, len(rows))
        rows += new
        if ending and len(rows) < len(cases):
            case = cases[len(rows)]
            rows.append({"family": case.family, "name": case.name, "result": "lost", "detail": ending})
    return rows


def run_worker(part: Part, options: argparse.Namespace, skip: int) -> tuple[list[Row], str]:
    """Rows from one process, and how it ended unless every case got a row."""
    first, stop = part.first + skip, part.first + len(part.cases)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        command = [sys.executable, __file__, "--worker", part.module, "--json", str(path)]
        command += ["--first", str(first), "--stop", str(stop), "--match", options.match, "--arch", options.arch]
        command += ["--schedule", options.schedule, "--seed", str(options.seed)]
        command += ["--sim-only"] * options.sim_only + ["--device-only"] * options.device_only
        try:
            process = subprocess.run(command, timeout=WORKER_SECONDS, capture_output=True, text=True, check=False)
            ended = process.returncode not in (0, DEVICE_FAILED)
            ending = f"exit code {process.returncode}: {process.stderr[-1500:]}" if ended else ""
        except subprocess.TimeoutExpired:
            ending = f"no end after {WORKER_SECONDS} s"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return rows, ending


def work(options: argparse.Namespace) -> int:
    """Run cases of one module in this process, a line of JSON each, until a case leaves the device unusable."""
    from conformance_cases.device import Device
    from conformance_cases.execute import examine
    from conformance_cases.simulator import Simulator

    simulator = None if options.device_only else Simulator(options.arch, options.schedule, options.seed)
    device = None if options.sim_only else Device(options.arch)
    with Path(options.json).open("w") as rows:
        for case in chosen(options.worker, options)[options.first : options.stop]:
            row = examine(case, simulator, device)
            rows.write(json.dumps(row) + "\n")
            rows.flush()
            if device is not None and not device.usable():
                return DEVICE_FAILED
    return 0


def machine(options: argparse.Namespace) -> dict[str, str]:
    """What the device half ran on."""
    if options.sim_only:
        return {}
    from conformance_cases.device import versions

    return versions()


if __name__ == "__main__":
    sys.exit(main())
