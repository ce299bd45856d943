"""Prepared launches: a call whose metadata was seen before is a look-up, a patched parameter block and one launch.

Knows addresses and sizes only; everything about the call was checked when it was prepared. What a whole call of an
operator launched can be recorded, so that ``hot_call`` repeats it without the way there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gemmgen.ir import Plan
from gemmgen.ops.block import Block
from gemmgen.ops.copies import Copy
from gemmgen.ops.kernels import Kernel
from gemmgen.ops.workspace import Room, allocator
from gemmgen.runtime.kernel_text import Grid

Slots = tuple[torch.Tensor, ...]
"""The tensors of a call in the order of the operator's operands."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A loaded kernel and how it is launched."""

    kernel: Kernel
    target: Any
    handle: Any
    grid: Grid
    programmatic: bool

    def __call__(self, params: bytes) -> None:
        target = self.target
        target.launch(self.handle, self.grid, params, target.current_stream(), self.programmatic)

    def room(self, workspace: Mapping[str, int], empty: Callable[..., torch.Tensor]) -> Room:
        """What makes room for the workspace of a launch; see ``allocator``."""
        fixed = isinstance(self.kernel.plan, Plan) and self.kernel.plan.groups is None
        return allocator(workspace, empty, self.target.standing_zeros if fixed else None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch with everything decided but addresses and scalars.

    ``names`` are the operands in call order; ``outputs`` are the index and the span of all that is written, the main
    output first, ``other_bytes`` those of everything else and of further outputs; ``copied`` are inputs that the kernel
    reads from a copy, and what makes it; ``check_overlap`` judges exactly once spans meet; ``room`` makes that for the
    ``workspace`` of a launch.
    """

    launch: Launch
    build: Block
    names: tuple[str, ...]
    outputs: tuple[tuple[int, int], ...]
    other_bytes: tuple[tuple[int, int], ...]
    copied: tuple[tuple[int, Copy], ...]
    check_overlap: Callable[[Slots], None]
    workspace: Mapping[str, int] = field(default_factory=dict)
    room: Room | None = None

    def __call__(self, slots: Slots, scalars: tuple[float, ...] = ()) -> None:
        self.at(slots, [tensor.data_ptr() for tensor in slots], scalars)

    def at(self, slots: Slots, addresses: list[int], scalars: tuple[float, ...]) -> None:
        """Launch with tensors whose addresses are known."""
        for output, span in self.outputs:
            start = addresses[output]
            end = start + span
            for at, size in self.other_bytes:
                if at != output and addresses[at] < end and start < addresses[at] + size:
                    self.check_overlap(slots)
                    break
        if self.copied:
            copies = [(at, copy(slots[at])) for at, copy in self.copied]  # alive until the launch
            for at, copied in copies:
                addresses[at] = copied.data_ptr()
        if self.room is not None:
            _kept, parts = self.room()  # likewise
            addresses = [*addresses, *parts]
        self.launch(self.build(addresses, scalars))
        if _RECORDING.launched is not None:
            _RECORDING.launched.append(Launched(self, slots, scalars))

    def span(self, at: int) -> int:
        """Bytes from the first to behind the last of a tensor."""
        return dict((*self.outputs, *self.other_bytes))[at]


class Launched(NamedTuple):
    """One launch that was made, with its tensors and numbers."""

    prepared: Prepared
    slots: Slots
    scalars: tuple[float, ...]


class _Recording(threading.local):
    launched: list[Launched | None] | None = None


_RECORDING = _Recording()


@contextmanager
def recorded() -> Iterator[list[Launched | None]]:
    """Collects the launches that this thread makes inside the block, and None for what only the long way does."""
    former, _RECORDING.launched = _RECORDING.launched, []
    try:
        yield _RECORDING.launched
    finally:
        _RECORDING.launched = former


def not_repeated() -> None:
    """Say that the call being made does what a launch alone would not."""
    if _RECORDING.launched is not None:
        _RECORDING.launched.append(None)


def metadata(slots: Slots) -> tuple[Any, ...]:
    """All that a prepared launch depends on: types, shapes, strides, devices and the low bits of addresses."""
    return _metadata(slots, [tensor.data_ptr() for tensor in slots])


def _metadata(slots: Slots, addresses: list[int]) -> tuple[Any, ...]:
    return tuple(
        [
            (tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device(), address & 31)
            for tensor, address in zip(slots, addresses, strict=True)
        ]
    )


def relaunch(prepared: Mapping[Any, Prepared], slots: Slots, scalars: tuple[float, ...] = ()) -> bool:
    """The whole of a hot call; False when the metadata is new or a gradient is asked for."""
    addresses = [tensor.data_ptr() for tensor in slots]
    found = prepared.get(_metadata(slots, addresses))
    if found is None:
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in slots):
        return False
    found.at(slots, addresses, scalars)
    return True
