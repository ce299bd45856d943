"""Memory that a launch needs beside its operands: sums of CTAs that share a tile, and counters of who has come.

Allocated anew for every launch, on the stream it runs on, so that calls on several streams, from several threads and
in captured graphs never share any: torch's allocator knows when it may be used again. The price is a memset a launch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

COUNTERS = ("arrivals",)
"""What a kernel must find at 0."""


def allocate(sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Bytes by name; keep them until the launch is on its stream."""
    return {name: _room(name, size, device) for name, size in sizes.items()}


def _room(name: str, size: int, device: torch.device) -> torch.Tensor:
    make = torch.zeros if name in COUNTERS else torch.empty
    return make(size, dtype=torch.uint8, device=device)
