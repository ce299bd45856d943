"""Memory that a launch needs beside its operands: partial sums of warps that meet, and counters of who has come.

Allocated anew for every launch, on the stream it runs on, so that calls on several streams, from several threads and
in captured graphs never share any: torch's allocator knows when it may be used again. Counters have to be 0, for which
a memset would take 1.5 to 2 us of every launch (H200). A kernel leaves them at 0, so where launches come one behind the
other they may stand on the same ones (``GpuTarget.standing_zeros``): dense kernels do, whose counts follow from extents
alone. Those of groups follow from numbers on the device; nonsense there must not outlast its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TypeAlias

import torch

from gemmgen.ir import is_counter

PART_ALIGNMENT = 256
"""Bytes that parts of one piece of memory start at multiples of."""
Room: TypeAlias = Callable[[], tuple[list[torch.Tensor], list[int]]]
"""Makes room for a launch: what to keep until the launch is on its stream, and the address of each part."""


def allocate(sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Bytes by name, counters of which are 0."""
    make = {True: torch.zeros, False: torch.empty}
    return {name: make[is_counter(name)](size, dtype=torch.uint8, device=device) for name, size in sizes.items()}


def empty_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """Makes a tensor of a shape, strides and dtype on the device, which need not be the current one."""
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def allocator(
    sizes: Mapping[str, int],
    empty: Callable[..., torch.Tensor],
    standing_zeros: Callable[[int], int] | None = None,
) -> Room:
    """Room for launches in a hurry: counters share one piece of memory and all else another.

    ``empty`` makes a tensor of a shape, strides and dtype; ``standing_zeros`` knows the address of so many bytes that
    are 0 before every launch on the current stream and after it, or says 0; without it none are shared.
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
        kept, first = [], []
        for shape, counted in shapes:
            if counted and standing_zeros is not None and (address := standing_zeros(shape[0])):
                first.append(address)
                continue
            kept.append(piece := empty(shape, (1,), torch.uint8))
            if counted:
                piece.zero_()
            first.append(piece.data_ptr())
        return kept, [first[piece] + start for piece, start in parts]

    return allocate
