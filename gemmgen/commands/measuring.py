"""Kernels that could serve a problem, timed against each other on the GPU, each checked against the reference first.

Knows specs, operands and the reference; it chooses nothing and stores nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import torch

import gemmgen
from gemmgen.commands.inputs import Operands, poison, random_operands
from gemmgen.commands.reference import compare, judged, numbers_of, reduction_errors, reference, tolerance
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec
from gemmgen.runtime.timing import Flush, times

FIRST_LOOK, FEWEST, MOST = 3, 9, 61
"""Launches of each kernel to see which are close, and of those that are."""
CLOSE, CLOSEST = 1.3, 1.03
"""Kernels are timed again that take no more than this times the fastest, and once more. The fastest of many was lucky,
too: a last look at few says which of them it is. Few in turn take less time than many, so times keep their level. What
others are compared with is in every look, so that both times are of the same launches in turn."""
BUDGET_US = 160_000
"""About the time that each further look may take for a problem."""
LAUNCH_US = 350
"""What a timed launch takes beside its kernel: the flush and the sleep."""


@dataclass(frozen=True)
class Measurement:
    """A kernel on one problem: median microseconds, and the worst tile's error against what rounding explains."""

    spec: KernelSpec
    us: float
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        """Whether the result was the reference's up to rounding; a NaN is not."""
        return self.error <= self.allowed


def measure(
    specs: Sequence[KernelSpec], sizes: Sizes, seed: int, flush: Flush, compared: int | None = None
) -> list[Measurement]:
    """Check every kernel on one problem, and time the right ones; those far from the fastest only roughly.

    ``compared`` is the index of one that is timed as long as the closest are, however far it is. A wrong kernel has no
    time: infinity. Kernels of one operator take the same operands.
    """
    operands = random_operands(specs[0], {"m": sizes.m, "n": sizes.n, "k": sizes.k}, seed, torch.device("cuda"))
    expected = {name: reference(specs[0], operands, name) for name in judged(specs[0])}
    errors = [error_of(spec, operands, expected) for spec in specs]
    del expected
    gc.collect()
    torch.cuda.empty_cache()
    right = [index for index, (spec, error) in enumerate(zip(specs, errors, strict=True)) if error <= tolerance(spec)]
    calls: dict[int, Callable[[], object]] = {index: _call(specs[index], operands) for index in right}
    found = _timed(calls, flush, compared)
    return [
        Measurement(spec, found.get(index, float("inf")), error, tolerance(spec))
        for index, (spec, error) in enumerate(zip(specs, errors, strict=True))
    ]


def error_of(spec: KernelSpec, operands: Operands, expected: dict[str, torch.Tensor]) -> float:
    """The worst tile's error of one launch into poisoned outputs; infinite where anything is NaN that should not be."""
    for output in spec.outputs:
        tensor = operands[output.name]
        assert isinstance(tensor, torch.Tensor)
        poison(tensor)
    _call(spec, operands)()
    worst = [compare(numbers_of(spec, operands, name), value).worst_tile for name, value in expected.items()]
    worst += [each.worst_tile for each in reduction_errors(spec, operands).values()]
    return float("inf") if any(each != each for each in worst) else max(worst)


def _call(spec: KernelSpec, operands: Operands) -> Callable[[], object]:
    function = gemmgen.op(spec)
    return lambda: function(**operands)


def _timed(calls: dict[int, Callable[[], object]], flush: Flush, compared: int | None = None) -> dict[int, float]:
    """Microseconds by index: a first look at all, then longer ones at those that are close and the one compared."""
    if not calls:
        return {}
    found = dict(zip(calls, times(list(calls.values()), flush, FIRST_LOOK), strict=True))
    found |= _again(calls, found, CLOSE, flush, compared)
    last = _again(calls, found, CLOSEST, flush, compared)
    if len(last) < 2:
        return found
    level = geometric_mean([found[index] / us for index, us in last.items()])
    return found | {index: us * level for index, us in last.items()}


def _again(
    calls: dict[int, Callable[[], object]],
    found: dict[int, float],
    close: float,
    flush: Flush,
    compared: int | None,
) -> dict[int, float]:
    """A longer look at those that took no more than ``close`` times the fastest, and at the one compared."""
    limit = close * min(found.values())
    seen = {index: call for index, call in calls.items() if found[index] <= limit or index == compared}
    turn = sum(found[index] + LAUNCH_US for index in seen)
    repeats = max(FEWEST, min(MOST, int(BUDGET_US / turn)))
    return dict(zip(seen, times(list(seen.values()), flush, repeats), strict=True))
