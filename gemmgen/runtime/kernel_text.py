"""What a target needs to know of a kernel to load it: its text and its fixed launch numbers.

Plain data; the layout of the argument block is the business of whoever fills it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class KernelText:
    """CUDA text with one `extern "C"` entry that takes one struct by value, and how it is launched."""

    source: str
    entry: str
    arch: str
    threads: int
    shared_bytes: int
    cluster: Grid = (1, 1, 1)
    labels: Any = field(default=None, compare=False)  # sim.Labels or None: names for the simulator's messages

    @property
    def file_name(self) -> str:
        return f"{self.entry}.cu"


class Handle(Protocol):
    """A loaded kernel; belongs to the target that loaded it."""

    text: KernelText


class Target(Protocol):
    """A place where kernels run. `address` and `encode_tensor_map` make what the argument block holds."""

    @property
    def family(self) -> str:
        """The architecture as specs name it: sm90, sm100 or sm120."""

    @property
    def sms(self) -> int:
        """Streaming multiprocessors, for persistent grids."""

    @property
    def card(self) -> str | None:
        """The GPU's name, by which measurements are kept; None of a simulated one."""

    def load(self, text: KernelText) -> Any:
        """A handle for `launch`; compiles through the cache when the text is new."""

    def address(self, tensor: Any, name: str = "") -> int:
        """Where the kernel finds the first element of `tensor`."""

    def encode_tensor_map(
        self,
        dtype: str,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        swizzle: str | int = "none",
        interleave: str = "none",
        oob_fill: str = "zero",
    ) -> bytes:
        """128 bytes of a tensor map for kernels on this target."""

    def current_stream(self) -> int:
        """The stream that torch would use now."""

    def launch(
        self, handle: Any, grid: Grid, params: bytes, stream: int = 0, programmatic_launch: bool = False
    ) -> None:
        """Run the kernel: `params` is the one struct it takes."""


def check_launch(text: KernelText, grid: Grid, params: bytes, param_bytes: int) -> None:
    """Refuse what the driver would refuse less clearly, or read past the end of `params`."""
    if len(params) != param_bytes:
        raise ValueError(f"params: {len(params)} bytes were passed, {text.entry} takes a struct of {param_bytes} bytes")
    if any(size < 1 for size in grid) or any(size % step for size, step in zip(grid, text.cluster, strict=True)):
        raise ValueError(
            f"grid: {grid} must be positive and a multiple of the cluster {text.cluster} of {text.entry} "
            f"({math.prod(text.cluster)} CTAs)"
        )
