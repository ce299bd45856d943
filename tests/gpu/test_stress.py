"""A thousand launches, of every kernel and schedule: right, bitwise equal, and they end, on two streams at once too.

    GEMMGEN_STRESS_JSON=benchmarks/results/stress_h200.json python -m pytest tests/gpu/test_stress.py

`stress_plan.py` says which they are. B and its scales are constant and outputs are filled before anything is launched,
so kernels that start early may read their weights whenever they like. ``GEMMGEN_STRESS_JSON`` names a file that says
what ran.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from agreement import environment
from conformance_cases.device import versions
from stress_calls import Factors, call, expected, worst_tile
from stress_plan import COUNT, Launch, counts, drawn
from stress_record import Record, asked_for

from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu

PATIENCE_SECONDS = 60
"""For work of well under one."""
ROUNDING = 6e-3
"""Of bf16, and of sums of e4m3 products, in the worst tile of 64x64."""


@pytest.fixture(scope="module")
def factors() -> Factors:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    return Factors.random("cuda")


@pytest.fixture(scope="module")
def launches() -> list[Launch]:
    """Drawn, and held to reach every kernel before anything is launched; their kernels are compiled at once."""
    target = gpu()
    found = drawn(target.sms)
    reached = counts(found, target.sms, target.card)
    assert len(found) == COUNT
    assert not reached.missing, f"not launched both as they are and early: {', '.join(reached.missing)}"
    assert not reached.rare, f"forms with too few launches: {reached.rare}"
    specs = dict.fromkeys(each.taken(target.sms, target.card) for each in found)
    list(compile_texts([kernel_of(spec).text for spec in specs], target.architecture))
    return found


@pytest.fixture(scope="module")
def record(launches: list[Launch]) -> Record:
    where = {**environment(False), "driver": versions()["driver"], "sms": gpu().sms}
    return Record(asked_for(), where, launches)


def poisoned(launches: Sequence[Launch]) -> list[torch.Tensor]:
    return [torch.full((each.m, each.n), math.nan, dtype=torch.bfloat16, device="cuda") for each in launches]


def run(
    launches: Sequence[Launch], factors: Factors, stream_of: Callable[[int], torch.cuda.Stream]
) -> list[torch.Tensor]:
    """Every launch into an output of its own, nothing in between; fails when they do not end."""
    outputs = poisoned(launches)
    torch.cuda.synchronize()
    for index, (each, d) in enumerate(zip(launches, outputs, strict=True)):
        with torch.cuda.stream(stream_of(index)):
            call(each, factors, d)
    events = [torch.cuda.Event() for _ in range(2)]
    for index, event in enumerate(events):
        event.record(stream_of(index))
    limit = time.monotonic() + PATIENCE_SECONDS
    while not all(event.query() for event in events):
        assert time.monotonic() < limit, f"{len(launches)} launches did not end in {PATIENCE_SECONDS} seconds"
        time.sleep(0.01)
    return outputs


def unequal(launches: Sequence[Launch], found: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[Launch]:
    """Launches whose bits are others."""
    return [each for each, x, y in zip(launches, found, wanted, strict=True) if not torch.equal(x, y)]


@pytest.fixture(scope="module")
def first(launches: list[Launch], factors: Factors, record: Record) -> list[torch.Tensor]:
    with record.of("launches back to back end"):
        return run(launches, factors, lambda index: torch.cuda.current_stream())


def test_every_result_is_right(
    launches: list[Launch], factors: Factors, first: list[torch.Tensor], record: Record
) -> None:
    with record.of("every result is right"):
        errors = [
            (each, worst_tile(d, expected(each, factors), each.k)) for each, d in zip(launches, first, strict=True)
        ]
        assert [(each, error) for each, error in errors if not error < ROUNDING] == []


def test_repeats_are_bitwise_equal(
    launches: list[Launch], factors: Factors, first: list[torch.Tensor], record: Record
) -> None:
    with record.of("repeats are bitwise equal"):
        again = run(launches, factors, lambda index: torch.cuda.current_stream())
        assert unequal(launches, again, first) == []


def test_two_streams_at_once_give_the_same_bits(
    launches: list[Launch], factors: Factors, first: list[torch.Tensor], record: Record
) -> None:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    with record.of("two streams at once give the same bits"):
        for _ in range(2):
            again = run(launches, factors, lambda index: streams[index % 2])
            assert unequal(launches, again, first) == []
