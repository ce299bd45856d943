"""Memory that a launch needs beside its operands: partial sums of warps that meet, and counters of who has come.

Allocated anew for every launch, on the stream it runs on, so that calls on several streams, from several threads and
in captured graphs never share any: torch's allocator knows when it may be used again. The price is a memset a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

import torch

from gemmgen.ir import is_counter

PART_ALIGNMENT = 256
"""Bytes that parts of one piece of memory start at multiples of."""


def allocate(sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Bytes by name; keep them until the launch is on its stream."""
    counters = [size for name, size in sizes.items() if is_counter(name)]
    zeros = iter(torch.zeros(sum(counters), dtype=torch.uint8, device=device).split(counters))
    return {
        name: next(zeros) if is_counter(name) else torch.empty(size, dtype=torch.uint8, device=device)
        for name, size in sizes.items()
    }


def allocator(
    sizes: Mapping[str, int], empty: Callable[..., torch.Tensor]
) -> Callable[[], tuple[list[torch.Tensor], list[int]]]:
    """The same for launches in a hurry: a function that returns memory to keep and the address of each part in it.

    Counters share one piece of memory and all else another. ``empty`` makes a tensor of a shape, strides and dtype.
    """
    shapes: list[tuple[tuple[int], bool]] = []
    place: dict[str, tuple[int, int]] = {}
    for counted in (True, False):
        names = [name for name in sizes if is_counter(name) == counted]
        starts = list(accumulate((-(-sizes[name] // PART_ALIGNMENT) * PART_ALIGNMENT for name in names), initial=0))
        place |= {name: (len(shapes), start) for name, start in zip(names, starts, strict=False)}
        shapes += [((starts[-1],), counted)] if names else []
    parts = [place[name] for name in sizes]

    def allocate() -> tuple[list[torch.Tensor], list[int]]:
        memory = [empty(shape, (1,), torch.uint8) for shape, _ in shapes]
        for piece, (_, counted) in zip(memory, shapes, strict=True):
            if counted:
                piece.zero_()
        first = [piece.data_ptr() for piece in memory]
        return memory, [first[piece] + start for piece, start in parts]

    return allocate
