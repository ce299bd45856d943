"""Device times of several callables: interleaved in random order, L2 flushed before each launch, clocks settled.

What ``gemmgen tune`` and the benchmarks have in common. Knows torch alone; it needs a GPU when it is used.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

FLUSH_BYTES = 256 << 20
"""More than five times the L2 of an H100."""
HIDING_CYCLES = 400_000
"""How long a sleeping kernel holds the queue, so that Python has queued the launch before the GPU gets to it."""
SETTLE_SECONDS = 0.02
"""Of work before the first timed launch: clocks follow power, which follows what ran just before."""

FLUSH_KINDS = ("write", "read")
"""How L2 is emptied before a launch."""
Call = Callable[[], object]


class Flush:
    """Fills L2 with something else: lines written and still dirty ("write"), or lines only read ("read")."""

    def __init__(self, kind: str = "write") -> None:
        if kind not in FLUSH_KINDS:
            raise ValueError(f"kind: {kind!r} is no way to flush L2; use {' or '.join(FLUSH_KINDS)}")
        self.kind = kind
        self.buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.sink = torch.zeros((), dtype=torch.int64, device="cuda")

    def __call__(self) -> None:
        if self.kind == "write":
            self.buffer.zero_()
        else:
            torch.sum(self.buffer, 0, dtype=torch.int64, out=self.sink)


def times(calls: Sequence[Call], flush: Flush, repeats: int) -> list[float]:
    """Median microseconds of each callable by CUDA events.

    Every round has an order of its own, the same in every run: at the card's power, what ran before a launch decides
    the clock that it finds, and in one order, rotated or not, that would be the same callable every time.
    """
    settle(calls)
    pairs: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
    order, shuffled = list(range(len(calls))), random.Random(0)
    for _ in range(repeats):
        shuffled.shuffle(order)
        for index in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush()
            torch.cuda._sleep(HIDING_CYCLES)
            start.record()
            calls[index]()
            end.record()
            pairs[index].append((start, end))
        torch.cuda.synchronize()
    return [median(start.elapsed_time(end) * 1e3 for start, end in some) for some in pairs]


def settle(calls: Sequence[Call]) -> None:
    """Run every callable twice, then all of them in turn for a while."""
    for call in calls:
        call()
        call()
    torch.cuda.synchronize()
    until = time.perf_counter() + SETTLE_SECONDS
    while time.perf_counter() < until:
        for call in calls:
            call()
        torch.cuda.synchronize()
