"""Kernels on a real GPU: load once, then one driver call per launch.

Knows torch and the driver; it does not know what the argument block means.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from gemmgen.runtime import driver, driver_map
from gemmgen.runtime.architectures import Architecture, resolve
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.errors import CaptureError, DeviceError, UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Grid, KernelText, check_launch
from gemmgen.runtime.launch_frame import LaunchFrame

PER_THREAD_STREAM = 2
"""The handle that is another stream in every thread."""
STANDING_ZEROS = 1 << 16
"""Bytes of a stream; a launch that needs more zeros has its own."""
ZEROS_ALIGNMENT = 256
GRAPH_ZEROS = 16 << 20
"""Bytes of a device that captured launches are given, once each; without any left a graph has memsets."""
# What the driver answers in a thread that has not touched CUDA yet, or whose current context is somebody else's.
_NO_CONTEXT = ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE")


class GpuKernel:
    """A kernel loaded on one device, with the frames that launches take turns with."""

    def __init__(self, text: KernelText, function: Any, param_bytes: int) -> None:
        self.text = text
        self.function = function
        self.param_bytes = param_bytes
        self._free: dict[bool, list[LaunchFrame]] = {False: [], True: []}

    def frame(self, programmatic: bool) -> LaunchFrame:
        """A new launch frame."""
        return LaunchFrame(self.text, self.function, self.param_bytes, programmatic)

    def take(self, programmatic: bool) -> LaunchFrame:
        """A frame that no other thread has until it is given back."""
        try:
            return self._free[programmatic].pop()  # one step for other threads, as is append
        except IndexError:
            return self.frame(programmatic)

    def give_back(self, programmatic: bool, frame: LaunchFrame) -> None:
        """Free for the next launch; a frame that an exception lost is made anew."""
        self._free[programmatic].append(frame)


class GpuTarget:
    """One device of this process."""

    def __init__(self, index: int) -> None:
        torch.cuda.init()  # in a forked child this raises torch's own message
        self.index = index
        self._device = driver.call("cuDeviceGet", index, doing=f"opening cuda:{index}")
        self._context = driver.call("cuDevicePrimaryCtxRetain", self._device, doing=f"opening cuda:{index}")
        self.architecture = self._find_architecture()
        self._kernels: dict[KernelText, GpuKernel] = {}
        self._loading = threading.Lock()
        self._zeros: dict[int, int] = {}
        self._graph_zeros, self._graph_end = 0, 0
        self.only_device = torch.cuda.device_count() == 1
        self.current_device: Callable[[], int] = torch._C._cuda_getDevice
        self.raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def _find_architecture(self) -> Architecture:
        capability = (self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR"))
        try:
            return resolve(capability)
        except UnsupportedArchitecture as error:
            raise DeviceError(
                f"cuda:{self.index} has compute capability {capability[0]}.{capability[1]}; {error}"
            ) from error

    def _attribute(self, name: str) -> int:
        attribute = getattr(driver.bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.call("cuDeviceGetAttribute", attribute, self._device, doing=f"asking cuda:{self.index}"))

    @property
    def family(self) -> str:
        return self.architecture.family

    @cached_property
    def sms(self) -> int:
        return self._attribute("MULTIPROCESSOR_COUNT")

    @cached_property
    def card(self) -> str:
        return str(torch.cuda.get_device_name(self.index))

    def current_stream(self) -> int:
        return int(self.raw_stream(self.index))

    @cached_property
    def empty_strided(self) -> Callable[..., torch.Tensor]:
        """Memory on the device while it is the current one, from shape, strides and dtype: past torch's dispatcher."""
        from torch._C._dynamo import guards

        return getattr(guards, "_empty_strided_cuda", None) or self._empty_strided

    def _empty_strided(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=f"cuda:{self.index}")

    def standing_zeros(self, size: int) -> int:
        """The address of zeros for a launch on the current stream that leaves them at 0, or 0 if none stand there.

        Launches on a stream come one behind the other and share them. As with torch's allocator, a stream is known by
        its handle. A launch in a graph that is being captured gets its own, as its replays come one behind the other.
        """
        if size > STANDING_ZEROS or self.current_device() != self.index:
            return 0
        if torch.cuda.is_current_stream_capturing():
            return self._of_a_graph(size)
        stream = self.raw_stream(self.index)
        return self._zeros.get(stream) or self._stand(stream)

    def _stand(self, stream: int) -> int:
        if stream == PER_THREAD_STREAM:
            return 0
        with self._loading, driver.current_context(self._context), driver.loading_allowed_during_capture():
            if not self._graph_zeros:
                self._graph_zeros = self._new_zeros(GRAPH_ZEROS, stream)
                self._graph_end = self._graph_zeros + GRAPH_ZEROS
                driver.call("cuStreamSynchronize", stream, doing=f"preparing cuda:{self.index}")
            if stream not in self._zeros:
                self._zeros[stream] = self._new_zeros(STANDING_ZEROS, stream)
        return self._zeros[stream]

    def _new_zeros(self, size: int, stream: int) -> int:
        doing = f"preparing a stream of cuda:{self.index}"
        address = driver.call("cuMemAlloc", size, doing=doing)
        driver.call("cuMemsetD8Async", address, 0, size, stream, doing=doing)
        return int(address)

    def _of_a_graph(self, size: int) -> int:
        with self._loading:
            if size > self._graph_end - self._graph_zeros:
                return 0
            address = self._graph_zeros
            self._graph_zeros += -(-size // ZEROS_ALIGNMENT) * ZEROS_ALIGNMENT
        return address

    def address(self, tensor: torch.Tensor, name: str = "") -> int:
        return int(tensor.data_ptr())

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
        return driver_map.encode_tensor_map(
            dtype, address, dims, strides, box, element_strides, swizzle, interleave, oob_fill
        )

    def load(self, text: KernelText) -> GpuKernel:
        """The kernel on this device; compiled and loaded at first use, never while a graph is being captured."""
        if (kernel := self._kernels.get(text)) is not None:
            return kernel
        self._refuse_while_capturing(text)
        with self._loading:
            if (kernel := self._kernels.get(text)) is None:
                kernel = self._kernels[text] = self._load(text)
        return kernel

    def _refuse_while_capturing(self, text: KernelText) -> None:
        with torch.cuda.device(self.index):
            if torch.cuda.is_current_stream_capturing():
                raise CaptureError(
                    f"{text.entry} is not loaded on cuda:{self.index} yet and a CUDA graph is being captured: "
                    "warm this shape up first (call the op once with the same shapes and options before the capture)"
                )

    def _load(self, text: KernelText) -> GpuKernel:
        self._check_fits(text)
        compiled = cached_cubin(text.source, self.architecture, text.file_name)
        with driver.current_context(self._context), driver.loading_allowed_during_capture():
            function = self._load_function(text, compiled.code)
            _, param_bytes = driver.call("cuFuncGetParamInfo", function, 0, doing=f"loading {text.entry}")
        return GpuKernel(text, function, int(param_bytes))

    def _check_fits(self, text: KernelText) -> None:
        wanted = resolve(text.arch)
        if wanted.family != self.family:
            raise DeviceError(
                f"{text.entry} is written for {wanted.family}, cuda:{self.index} is {self.architecture.code}; "
                f"use the {self.family} op or tensors on another device"
            )
        limit = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if text.shared_bytes > limit:
            raise DeviceError(
                f"{text.entry} needs {text.shared_bytes} B of shared memory, cuda:{self.index} has {limit}; "
                "lower the ring's slots"
            )

    def _load_function(self, text: KernelText, cubin: bytes) -> Any:
        cuda = driver.bindings()
        doing = f"loading {text.entry} on cuda:{self.index}"
        library = driver.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0, doing=doing)
        kernel = driver.call("cuLibraryGetKernel", library, text.entry.encode(), doing=doing)
        function = driver.call("cuKernelGetFunction", kernel, doing=doing)
        driver.call("cuFuncLoad", function, doing=doing)  # lazy loading would otherwise happen inside the first launch
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.call("cuFuncSetAttribute", function, attribute, text.shared_bytes, doing=doing)
        if text.cluster[0] * text.cluster[1] * text.cluster[2] > 8:
            attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            driver.call("cuFuncSetAttribute", function, attribute, 1, doing=doing)
        return function

    def launch(
        self, handle: GpuKernel, grid: Grid, params: bytes, stream: int = 0, programmatic_launch: bool = False
    ) -> None:
        """One driver call; the parameter block is copied by the driver before it returns."""
        if len(params) != handle.param_bytes:
            check_launch(handle.text, grid, params, handle.param_bytes)
        frame = handle.take(programmatic_launch)
        frame.fill(grid, params)
        frame.stream[0] = stream
        status = self._launch(frame)
        if status:
            self._explain(handle, grid, params, status)
        handle.give_back(programmatic_launch, frame)

    def _launch(self, frame: LaunchFrame) -> Any:
        """The driver's status; a thread without this device's context gets it for the call."""
        if self.current_device() == self.index:
            (status,) = frame.launch()
            if not status or status.name not in _NO_CONTEXT:
                return status
        with driver.current_context(self._context):
            (status,) = frame.launch()
        return status

    def _explain(self, handle: GpuKernel, grid: Grid, params: bytes, status: Any) -> None:
        check_launch(handle.text, grid, params, handle.param_bytes)
        text = handle.text
        doing = (
            f"launching {text.entry} on cuda:{self.index} with grid {grid}, {text.threads} threads, "
            f"{text.shared_bytes} B of shared memory, cluster {text.cluster}"
        )
        raise driver.failure(status, "cuLaunchKernelEx", doing)


_targets: dict[int, GpuTarget] = {}
_opening = threading.Lock()


def gpu_target(index: int) -> GpuTarget:
    """The target of device `index`, opened at first use."""
    if (target := _targets.get(index)) is None:
        with _opening:
            target = _targets.get(index) or _targets.setdefault(index, GpuTarget(index))
    return target


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()
    _targets.clear()  # a driver context does not survive a fork


os.register_at_fork(after_in_child=_after_fork_in_child)
