"""Granules of a matrix: how [.., rows, columns] is cut into gran_mn x gran_k, and how one number is spread over each.

Knows shapes only; the last granule of a row or column may be short.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

Gran = tuple[int, int]
"""Rows and columns that share one scale."""


def ceil_div(x: int, y: int) -> int:
    """``x / y`` rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The next multiple of ``y``."""
    return ceil_div(x, y) * y


def granules(shape: torch.Size, gran: Gran) -> tuple[int, ...]:
    """Shape of the scales of a [.., rows, columns] tensor."""
    return (*shape[:-2], ceil_div(shape[-2], gran[0]), ceil_div(shape[-1], gran[1]))


def block_amax(x: torch.Tensor, gran: Gran) -> torch.Tensor:
    """Largest magnitude of each granule, fp32; NaN where a granule holds one."""
    *batch, rows, columns = granules(x.shape, gran)
    padded = F.pad(x.float(), (0, columns * gran[1] - x.shape[-1], 0, rows * gran[0] - x.shape[-2]))
    return padded.reshape(*batch, rows, gran[0], columns, gran[1]).abs().amax((-3, -1))


def spread(scales: torch.Tensor, gran: Gran, rows: int, columns: int) -> torch.Tensor:
    """One number per granule as one per element, cut to [.., rows, columns]."""
    for dim, times, size in ((-2, gran[0], rows), (-1, gran[1], columns)):
        if times != 1:
            scales = scales.repeat_interleave(times, dim).narrow(dim, 0, size)
    return scales


def check_scale_shape(sf: torch.Tensor, shape: tuple[int, ...], gran: Gran, name: str = "sf") -> None:
    """Refuse scales that are not one per granule."""
    if tuple(sf.shape) == tuple(shape):
        return
    taller = sf.dim() == len(shape) and all(have >= want for have, want in zip(sf.shape, shape, strict=True))
    cut = ", ".join(f":{size}" for size in shape)
    raise ValueError(
        f"{name}: shape is {tuple(sf.shape)} ({sf.dtype}); one scale per {gran[0]} x {gran[1]} elements makes "
        f"{tuple(shape)}; " + (f"pass {name}[{cut}]" if taller else "pass scales of that granularity")
    )
