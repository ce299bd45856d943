"""Kernels on a real GPU: load once, then one driver call per launch.

Knows torch and the driver; it does not know what the argument block means.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from gemmgen.runtime import driver, driver_map
from gemmgen.runtime.architectures import Architecture, resolve
from gemmgen.runtime.compiler import cached_cubin
from gemmgen.runtime.errors import CaptureError, DeviceError, UnsupportedArchitecture
from gemmgen.runtime.kernel_text import Grid, KernelText, check_launch

_memmove = ctypes.memmove

# What the driver answers in a thread that has not touched CUDA yet, or whose current context is somebody else's.
_NO_CONTEXT = ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE")


class GpuKernel:
    """A kernel loaded on one device, with what a launch reuses."""

    def __init__(self, text: KernelText, function: Any, param_bytes: int) -> None:
        self.text = text
        self.function = function
        self.param_bytes = param_bytes
        self._per_thread = threading.local()

    def buffers(self) -> LaunchBuffers:
        """This thread's launch buffers: the driver call drops the interpreter lock, so threads cannot share them."""
        try:
            return self._per_thread.buffers  # type: ignore[no-any-return]
        except AttributeError:
            self._per_thread.buffers = LaunchBuffers(self.text, self.param_bytes)
            return self._per_thread.buffers  # type: ignore[no-any-return]


class LaunchBuffers:
    """The parameter block and the two launch configurations, built once and patched by each launch."""

    def __init__(self, text: KernelText, param_bytes: int) -> None:
        self._block = ctypes.create_string_buffer(max(param_bytes, 1) + 64)
        self.block_address = -(-ctypes.addressof(self._block) // 64) * 64
        self._pointers = (ctypes.c_void_p * 1)(self.block_address)
        self.pointers = ctypes.addressof(self._pointers)
        self.plain = _launch_config(text, programmatic=False)
        self.programmatic = _launch_config(text, programmatic=True)


def _launch_config(text: KernelText, programmatic: bool) -> Any:
    cuda = driver.bindings()
    config = cuda.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = text.threads, 1, 1
    config.sharedMemBytes = text.shared_bytes
    attributes = []
    if text.cluster != (1, 1, 1):
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = text.cluster
        attributes.append(cluster)
    if programmatic:
        overlap = cuda.CUlaunchAttribute()
        overlap.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlap)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


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
        self._streams: dict[int, Any] = {}
        self._launch_kernel = driver.bindings().cuLaunchKernelEx
        self._current_device = torch._C._cuda_getDevice
        self._raw_stream = torch._C._cuda_getCurrentRawStream

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
        return int(self._raw_stream(self.index))

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
        buffers = handle.buffers()
        config = buffers.programmatic if programmatic_launch else buffers.plain
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.hStream = self._streams.get(stream) or self._remember_stream(stream)
        _memmove(buffers.block_address, params, handle.param_bytes)
        if self._current_device() == self.index:
            (status,) = self._launch_kernel(config, handle.function, buffers.pointers, 0)
            if not status:
                return
            if status.name not in _NO_CONTEXT:
                self._explain(handle, grid, params, status)
        with driver.current_context(self._context):
            (status,) = self._launch_kernel(config, handle.function, buffers.pointers, 0)
        if status:
            self._explain(handle, grid, params, status)

    def _remember_stream(self, stream: int) -> Any:
        if len(self._streams) >= 256:  # streams come and go in long-lived servers
            self._streams.clear()
        return self._streams.setdefault(stream, driver.bindings().CUstream(stream))

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
