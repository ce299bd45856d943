"""Memory that a launch needs beside its operands: partial sums of warps that meet, and counters of who has come.

Allocated anew for every launch, on the stream it runs on, so that calls on several streams, from several threads and
in captured graphs never share any: torch's allocator knows when it may be used again. The price is a memset a launch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmgen.ir import is_counter


def allocate(sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Bytes by name; keep them until the launch is on its stream."""
    counters = [size for name, size in sizes.items() if is_counter(name)]
    zeros = iter(torch.zeros(sum(counters), dtype=torch.uint8, device=device).split(counters))
    return {
        name: next(zeros) if is_counter(name) else torch.empty(size, dtype=torch.uint8, device=device)
        for name, size in sizes.items()
    }
