"""Layout kernels on real tensors: a factor or its scales in another memory order, in one launch on the current stream.

Knows layout specs and dispatchers; which operand needs which of them is the operators' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from gemmgen import catalog
from gemmgen.ir import Arch, DType, LayoutSpec
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.problem import TORCH_DTYPES, check_rank, packed_extents
from gemmgen.runtime.arguments import expected_shape

PITCH = 64
"""Bytes that lines start at multiples of: what the pickiest copies of TMA read at a time."""


def to_k_major(x: torch.Tensor, dtype: DType, arch: Arch) -> torch.Tensor:
    """A factor [m, k] contiguous along m as one contiguous along k; 4-bit numbers are paired along k, too."""
    return moved(catalog.to_k_major(arch, dtype), x)


def to_m_major(words: torch.Tensor, arch: Arch) -> torch.Tensor:
    """Words of scales [m, k] contiguous along k as words contiguous along m, in columns of whole chunks of 16 bytes."""
    return moved(catalog.to_m_major(arch, DType.UE8M0X4), words)


def pack_ue8m0(sf: torch.Tensor, m: int, rows: int, arch: Arch) -> torch.Tensor:
    """fp32 scales, one for ``rows`` of m rows, as words of four UE8M0 bytes contiguous along m.

    What pads is 0; what no power of two is becomes NaN.
    """
    return moved(catalog.pack_ue8m0(arch, rows), sf, m)


def moved(spec: LayoutSpec, source: torch.Tensor, m: int | None = None) -> torch.Tensor:
    """The destination of a layout kernel, allocated and written."""
    move = Move(spec, source, empty_destination(spec, source, m))
    move.launch()
    return move.destination


@dataclass(frozen=True)
class Move:
    """A layout kernel that has not run yet: its destination is allocated and holds nothing."""

    spec: LayoutSpec
    source: torch.Tensor
    destination: torch.Tensor

    def check(self) -> None:
        """Refuse what the kernel cannot do, and load it."""
        _mover(self.spec).ready((self.source, self.destination))

    def launch(self) -> None:
        """Run it on the current stream."""
        _mover(self.spec)((self.source, self.destination))


def put_off(later: list[Move], spec: LayoutSpec, source: torch.Tensor, m: int | None = None) -> torch.Tensor:
    """The destination of a layout kernel that is added to those to be launched once all else has been checked."""
    later.append(Move(spec, source, empty_destination(spec, source, m)))
    return later[-1].destination


def empty_destination(spec: LayoutSpec, source: torch.Tensor, m: int | None = None) -> torch.Tensor:
    """An uninitialised destination for a source; ``m`` is needed where a row of the source stands for many."""
    check_rank(spec.source, source)
    sizes = packed_extents(spec.source, source) | ({} if m is None else {"m": m})
    if "m" not in sizes:
        raise TypeError(
            f"{spec.output.name}: is missing; a row of {spec.source.name} stands for several of {spec.output.name}, "
            "which only its own shape tells"
        )
    operand = spec.destination
    dtype = TORCH_DTYPES[operand.dtype]
    shape = expected_shape(operand, sizes)
    inner = operand.box.index(operand.inner)
    step = (16 if spec.fill_pads else PITCH) // dtype.itemsize
    pitch = -(-shape[inner] // step) * step
    room = torch.empty((shape[1 - inner], pitch), dtype=dtype, device=source.device)[:, : shape[inner]]
    return room if inner == 1 else room.T


@cache
def _mover(spec: LayoutSpec) -> Dispatcher:
    choice = Choice(spec)
    return Dispatcher(spec.operands, (spec.output.name,), (), lambda tensors, sizes, target: choice)
