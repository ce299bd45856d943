"""Copies of operands for kernels that cannot read them as they lie, or read them slowly.

Knows memory rules and what a copy costs; what a kernel costs is handed in, and how turned scales lie is ``quantise``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gemmgen.ir import Operand
from gemmgen.ops.memory import pointer_fault, tma_fault
from gemmgen.ops.problem import Tensors
from gemmgen.ops.quantise.layout import turned

Copy = Callable[[torch.Tensor], torch.Tensor]
Copies = Mapping[str, Copy]
"""How operands are copied before a launch, by name."""

LAUNCH = 6800
"""Cycles that a copy takes beside those for its bytes, 3.5 us: kernels behind one took 2.0 to 3.8 us longer (45
problems, H200)."""
BYTES = 2560
"""Bytes a cycle of a copy, read and written."""
HOST, HOST_COPY = 4600, 22500
"""Cycles of the device in which the host makes a call again, beyond those of every launch, and a copy before it: 6.6 us
without and 18.2 with one (H200)."""


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """A row-major copy, also where only the address is odd."""
    return tensor.clone(memory_format=torch.contiguous_format)


def lying_like(copy: Copy, tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor that lies as a copy would, for whoever only judges that: a launch makes its copies itself."""
    given = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    lies = copy(given)
    return torch.empty_strided(lies.shape, lies.stride(), dtype=lies.dtype, device=tensor.device)


def order_of_scales(
    boxed: Sequence[Operand], plain: Sequence[Operand], tensors: Tensors, cost: Callable[[str], float]
) -> tuple[str, Copies]:
    """Which way a kernel of sm90 reads its fp32 scales, "m" or "k", and what is copied for it.

    Along m (and n) those that are ``boxed`` come by TMA, which wants pitches of 16 bytes; rows along k are gathered by
    lanes, which takes time in every K block. ``plain`` ones are rows either way. What lies otherwise is copied, and
    the order is the one in which copies and kernel take less; ``cost`` has the kernel's cycles. A copy also has to be
    asked for, so that calls of few microseconds do better without.
    """
    fits = {each.name: tma_fault(each.replace(major=each.box[-2]), tensors[each.name]) is None for each in boxed}
    faulty = {each.name: row_major for each in (*boxed, *plain) if pointer_fault(each, tensors[each.name])}
    along_m: dict[str, Copy] = {name: turned for name in fits if not fits[name]}
    along_m |= {each.name: row_major for each in plain if each.name in faulty}
    if all(fits.values()) or _cycles(cost("m"), along_m, tensors) <= _cycles(cost("k"), faulty, tensors):
        return "m", along_m
    return "k", faulty


def _cycles(kernel: float, copies: Copies, tensors: Tensors) -> float:
    """About what a kernel takes behind its copies, or the host to ask for them."""
    size: int = sum(tensors[name].numel() * tensors[name].element_size() for name in copies)
    device = kernel + LAUNCH * len(copies) + 2 * size / BYTES
    return max(device, HOST + HOST_COPY * len(copies)) if copies else device
