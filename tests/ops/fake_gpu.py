"""A GPU that remembers launches, for CPU tensors: the whole way of a call but for the driver."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from gemmgen.ops import copies, dispatch, hot_call, library
from gemmgen.runtime.kernel_text import Grid, KernelText
from gemmgen.runtime.tensor_maps import element_name

ADDRESS_AT = 24
STREAM = 77


@dataclass(frozen=True)
class Launch:
    """One launch, by whichever way it came."""

    entry: str
    grid: Grid
    params: bytes
    stream: int
    programmatic: bool
    hot: bool = field(compare=False)


class FakeFrame:
    """Stands for ``LaunchFrame``."""

    def __init__(self, gpu: FakeGpu, text: KernelText, programmatic: bool) -> None:
        self.words, self.stream = memoryview(bytearray()).cast("B"), memoryview(bytearray(8)).cast("Q")
        self._gpu, self._text, self._programmatic = gpu, text, programmatic
        gpu.frames += 1

    def fill(self, grid: Grid, params: bytes) -> None:
        self._grid, self.words = grid, memoryview(bytearray(params)).cast("Q")

    def launch(self) -> tuple[int]:
        self._gpu.before_launch()
        status = self._gpu.statuses.pop() if self._gpu.statuses else 0
        if not status:
            launch = Launch(
                self._text.entry, self._grid, bytes(self.words), self.stream[0], self._programmatic, hot=True
            )
            self._gpu.launches.append(launch)
        return (status,)


@dataclass(frozen=True)
class FakeHandle:
    gpu: FakeGpu
    text: KernelText

    def frame(self, programmatic: bool) -> FakeFrame:
        return FakeFrame(self.gpu, self.text, programmatic)


class FakeGpu:
    """Its tensor maps hold the address at a place of its own and everything else in a digest."""

    family, sms, card, only_device = "sm90", 132, None, False

    def __init__(self) -> None:
        self.asked: list[torch.device] = []  # for which tensors' device
        self.launches: list[Launch] = []
        self.statuses: list[int] = []
        self.frames = 0
        self.current: int | None = None
        self.zeros: int = 0
        self.before_launch: Callable[[], None] = lambda: None
        self.lock = threading.Lock()

    def load(self, text: KernelText) -> FakeHandle:
        return FakeHandle(self, text)

    def address(self, tensor: torch.Tensor, name: str = "") -> int:
        return tensor.data_ptr()

    def current_stream(self) -> int:
        return STREAM

    def raw_stream(self, index: int | None) -> int:
        return STREAM

    def current_device(self) -> int | None:
        return self.current

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)

    def standing_zeros(self, size: int) -> int:
        return self.zeros

    def encode_tensor_map(
        self,
        dtype: str,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        swizzle: str = "none",
        *_: str,
    ) -> bytes:
        assert address % 16 == 0 and all(stride % 16 == 0 for stride in strides)
        fields = f"{element_name(dtype)} {tuple(dims)} {tuple(strides)} {tuple(box)} {swizzle}".encode()
        image = bytearray(fields.ljust(128, b".")[:128])
        image[ADDRESS_AT : ADDRESS_AT + 8] = struct.pack("<Q", address)
        return bytes(image)

    def launch(self, handle: FakeHandle, grid: Grid, params: bytes, stream: int, programmatic: bool) -> None:
        self.launches.append(Launch(handle.text.entry, grid, params, stream, programmatic, hot=False))


def install(patch: pytest.MonkeyPatch) -> FakeGpu:
    """Calls on CPU tensors run on a fake GPU until ``patch`` is undone; then ``forget`` what they left behind."""
    gpu = FakeGpu()
    prepare = dispatch.Dispatcher.prepare

    def run(self: dispatch.Dispatcher, slots: Any, sizes: Any, scalars: tuple[float, ...]) -> None:
        prepare(self, slots, sizes)(slots, scalars)
        self.prepared.clear()  # this is no GPU for others

    def target(device: torch.device) -> FakeGpu:
        gpu.asked.append(device)
        return gpu

    patch.setattr(dispatch, "current_target", target)
    patch.setattr(dispatch.Dispatcher, "_simulate", run)
    patch.setattr(library, "is_direct", library.is_plain)
    for copy in (copies.row_major, copies.turned):
        patch.setattr(copies, copy.__name__, _at_one_place(copy))
    hot_call.forget()
    return gpu


def _at_one_place(copy: copies.Copy) -> copies.Copy:
    """The same copy for tensors that lie alike, so that whoever launches with it does with the same addresses."""
    made: dict[Any, torch.Tensor] = {}

    def found(tensor: torch.Tensor) -> torch.Tensor:
        key = tensor.data_ptr(), tensor.shape, tensor.stride()
        return made[key] if key in made else made.setdefault(key, copy(tensor))

    return found
