"""Device times of several callables, interleaved in rotating order with L2 flushed before each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

FLUSH_BYTES = 256 << 20


class Flush:
    """Fills L2 with something else: lines written and still dirty, or lines only read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.sink = torch.zeros((), dtype=torch.int64, device="cuda")

    def __call__(self) -> None:
        if self.kind == "write":
            self.buffer.zero_()
        else:
            torch.sum(self.buffer, 0, dtype=torch.int64, out=self.sink)


def times(calls: Sequence[Callable[[], object]], flush: Flush, repeats: int) -> list[float]:
    """Median microseconds of each callable by CUDA events; the flush before it hides the launch."""
    for call in calls:
        for _ in range(3):
            call()
    pairs: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
    for turn in range(repeats):
        for offset in range(len(calls)):
            index = (turn + offset) % len(calls)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush()
            torch.cuda._sleep(400_000)
            start.record()
            calls[index]()
            end.record()
            pairs[index].append((start, end))
        torch.cuda.synchronize()
    return [median(start.elapsed_time(end) * 1e3 for start, end in some) for some in pairs]
