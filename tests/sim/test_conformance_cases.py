"""The conformance kernels on the interpreter, against what numpy and ml_dtypes say of them.

The same kernels run on an H100 by tests/gpu/conformance.py, where the two halves are compared bit for bit.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from conformance_cases.case import Case
from conformance_cases.execute import agreement_with_numpy
from conformance_cases.registry import all_cases
from conformance_cases.simulator import Simulator

from gemmgen.sim import Fault

CASES = [c for c in all_cases() if not c.refused and any(array is not None for array in c.expected)]
REFUSED = [case for case in all_cases() if case.refused]
SYNCHRONISING = ("cp.async", "cp.async.bulk", "mbarrier", "named barriers", "cluster", "tensormap.replace")


@cache
def simulator(schedule: str) -> Simulator:
    return Simulator("sm_90a", schedule)


def check(case: Case, schedule: str) -> None:
    row = agreement_with_numpy(case, simulator(schedule).run(case), "sim")
    assert row["result"] in ("equal", "close"), row["detail"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case, "random")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_copies_that_trap_are_faults(case: Case) -> None:
    with pytest.raises(Fault, match=r"must start at a multiple of 16 bytes|traps on a negative coordinate"):
        simulator("random").run(case)


@pytest.mark.parametrize("schedule", ["early", "late", "starve"])
@pytest.mark.parametrize("case", [c for c in CASES if c.family in SYNCHRONISING], ids=lambda case: case.name)
def test_synchronising_case_under_every_schedule(case: Case, schedule: str) -> None:
    check(case, schedule)
