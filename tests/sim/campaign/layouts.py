"""Layout kernels on ragged matrices under every schedule: every byte of the destination's memory, and none beside.

Calls the operator of the spec on the simulator; expectations are those of ``gemmgen run``, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

import gemmgen
from gemmgen.commands.relayout import expected_memory, memory_of, random_layout_operands
from gemmgen.ir import LayoutSpec
from gemmgen.runtime.simulation import SCHEDULES

from .problems import Sizes
from .runs import Found

SMS = (1, 4)


def run_layout(spec: LayoutSpec, problems: Sequence[Sizes], schedules: Sequence[str] = SCHEDULES) -> Found:
    """Each matrix under each schedule; there is no arithmetic to be inexact in, so all runs are exact."""
    found = Found(spec.name)
    for number, (m, _, k) in enumerate(problems):
        for schedule in schedules:
            fault = _fault(spec, m, k, number, schedule)
            if fault is None:
                found.exact += 1
            else:
                found.faults.append(f"{m}x{k} {schedule}: {fault}")
    return found


def _fault(spec: LayoutSpec, m: int, k: int, seed: int, schedule: str) -> str | None:
    operands = random_layout_operands(spec, {"m": m, "k": k}, seed)
    wanted = expected_memory(spec, operands)
    try:
        with gemmgen.simulate(spec.arch, schedule, seed, SMS[seed % len(SMS)]) as simulation:
            gemmgen.op(spec)(**operands)
    except Exception as error:  # whatever goes wrong is one kernel's, and the others are still to be run
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wrong = int((memory_of(operands[spec.output.name]) != wanted).sum())
    warnings = [warning for report in simulation.reports for warning in report.warnings]
    return f"{wrong} of {wanted.numel()} bytes are wrong" if wrong else "; ".join(warnings) or None
