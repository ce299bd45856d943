"""Runs every conformance case on the simulator and on the GPU and compares the bits.

    python tests/gpu/conformance.py --json OUT          both halves, on a Hopper machine
    python tests/gpu/conformance.py --sim-only          the simulator against numpy, anywhere

Each module of cases runs in a process of its own, so that a kernel that hangs or faults costs only its neighbours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from conformance_cases.registry import cases_of, module_names  # noqa: E402
from conformance_cases.report import print_table, summary  # noqa: E402

WORKER_SECONDS = 300


def main() -> int:
    options = arguments()
    if options.worker:
        return work(options)
    start = time.time()
    modules = [name for name in module_names() if not options.only or name in options.only]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for result in pool.map(lambda name: run_worker(name, options), modules) for row in result]
    print_table(rows)
    report = {**summary(rows), "seconds": round(time.time() - start, 1), "cases": rows}
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
    parser.add_argument("--jobs", type=int, default=1, help="worker processes at a time")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_worker(module: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one module, from a process that may die; what it had not reached is reported as lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        command = [sys.executable, __file__, "--worker", module, "--json", str(path), "--match", options.match]
        command += [
            "--arch",
            options.arch,
            *["--sim-only"] * options.sim_only,
            *["--device-only"] * options.device_only,
        ]
        try:
            process = subprocess.run(command, timeout=WORKER_SECONDS, capture_output=True, text=True, check=False)
            ending = f"exit code {process.returncode}: {process.stderr[-1500:]}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            ending = f"no end after {WORKER_SECONDS} s"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    finished = {row["name"] for row in rows}
    lost = [case for case in cases_of(module) if options.match in case.name and case.name not in finished]
    return rows + [{"family": c.family, "name": c.name, "result": "lost", "detail": ending} for c in lost]


def work(options: argparse.Namespace) -> int:
    """Run the cases of one module in this process, a line of JSON each."""
    from conformance_cases.execute import Device, Simulator, examine

    simulator = None if options.device_only else Simulator(options.arch)
    device = None if options.sim_only else Device(options.arch)
    with Path(options.json).open("w") as rows:
        for case in cases_of(options.worker):
            if options.match in case.name:
                row = examine(case, simulator, device)
                rows.write(json.dumps(row) + "\n")
                rows.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
