"""Kernels on a simulated GPU: the PTX of the same text, with CPU tensors mapped in place.

One object serves one call of an op and then goes away with its address space; parsed modules are kept for the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gemmgen import sim
from gemmgen.runtime.architectures import Architecture, resolve
from gemmgen.runtime.compiler import cached_ptx
from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.kernel_text import Grid, KernelText
from gemmgen.runtime.simulation import Simulation
from gemmgen.runtime.tensor_maps import element_name, swizzle_name


@dataclass(frozen=True)
class SimKernel:
    """A parsed module and the text it came from."""

    text: KernelText
    module: Any


_kernels: dict[tuple[KernelText, Architecture], SimKernel] = {}
_loading = threading.Lock()


class SimTarget:
    """A simulated GPU of one architecture, schedule and seed, with its own address space."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._gpu = sim.Gpu(schedule=sim.Schedule(simulation.schedule, seed=simulation.seed), sms=simulation.sms)
        self._windows: dict[tuple[int, int], int] = {}

    @property
    def family(self) -> str:
        return self.simulation.arch.family

    @property
    def reports(self) -> list[Any]:
        """One per launch of this simulation: warp instructions, seconds, warnings."""
        return self.simulation.reports

    @property
    def sms(self) -> int:
        return self.simulation.sms

    @property
    def card(self) -> None:
        return None

    def current_stream(self) -> int:
        return 0

    def address(self, tensor: torch.Tensor, name: str = "") -> int:
        """The simulated address of the first element; accesses outside the tensor's storage fault with `name`."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return 0
        key = (storage.data_ptr(), storage.nbytes())
        if key not in self._windows:
            self._windows[key] = self._gpu.map(storage_bytes(tensor), name=name or "tensor")
        return int(self._windows[key]) + int(tensor.storage_offset()) * int(tensor.element_size())

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
        return sim.encode_tensor_map(
            element_name(dtype),
            address,
            dims,
            strides,
            box,
            element_strides,
            swizzle_name(swizzle),
            interleave,
            oob_fill,
        )

    def load(self, text: KernelText) -> SimKernel:
        """The parsed kernel; compiled through the cache when the text is new."""
        key = (text, self.simulation.arch)
        if (kernel := _kernels.get(key)) is not None:
            return kernel
        self._check_fits(text)
        with _loading:
            if (kernel := _kernels.get(key)) is None:
                compiled = cached_ptx(text.source, self.simulation.arch, text.file_name)
                kernel = _kernels[key] = SimKernel(text, sim.load(compiled.text, source=text.source))
        return kernel

    def _check_fits(self, text: KernelText) -> None:
        wanted = resolve(text.arch)
        if wanted.family != self.family:
            raise DeviceError(
                f"{text.entry} is written for {wanted.family}, the simulated GPU is {self.simulation.arch.code}; "
                f'use gemmgen.simulate("{wanted.family}")'
            )

    def launch(
        self,
        handle: SimKernel,
        grid: Grid,
        params: bytes,
        stream: int = 0,
        programmatic_launch: bool = False,
        in_use: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Run to the end; a broken rule is a `sim.SimulationError`. There are no streams: launches run in order.

        An early launch does not overlap the one ahead either; it faults where it touches what is ``in_use`` by that.
        """
        text = handle.text
        report = self._gpu.launch(
            handle.module,
            text.entry,
            grid=grid,
            block=(text.threads, 1, 1),
            cluster=text.cluster,
            shared_bytes=text.shared_bytes,
            params=[bytes(params)],
            labels=text.labels,
            in_use=in_use if programmatic_launch else (),
        )
        self.reports.append(report)


def storage_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The whole storage of a CPU tensor as bytes, in place and kept alive by the array."""
    view = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    array: npt.NDArray[np.uint8] = view.numpy()
    return array


def _after_fork_in_child() -> None:
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
