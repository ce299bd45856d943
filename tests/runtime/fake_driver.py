"""A CUDA driver that records calls, so that launches can be tested where there is none.

Structures and enumerations are the real bindings'; functions are replaced by ones that note what they were given.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver as real

OK = real.CUresult.CUDA_SUCCESS


@dataclass(frozen=True)
class Launch:
    """What one cuLaunchKernelEx was given, read at the time of the call."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    attributes: dict[str, tuple[int, ...]]
    params: bytes
    context: str


@dataclass
class FakeDriver:
    """One device; `contexts` is the stack of this thread, `calls` the names of the functions that were called."""

    capability: tuple[int, int] = (9, 0)
    param_bytes: int = 32
    contexts: list[str] = field(default_factory=lambda: ["caller's"])
    calls: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    function_attributes: dict[str, int] = field(default_factory=dict)
    capture_modes: list[str] = field(default_factory=list)
    launch_status: list[Any] = field(default_factory=list)
    zeroed: list[tuple[int, int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name[2].isupper():
            object.__getattribute__(self, "calls").append(name)
        return object.__getattribute__(self, name)

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return OK, index

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, f"primary of {device}"

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        values = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MULTIPROCESSOR_COUNT": 132,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        }
        return OK, values[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuCtxPushCurrent(self, context: str) -> tuple[Any, ...]:
        self.contexts.append(context)
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return OK, self.contexts.pop()

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[Any, ...]:
        self.capture_modes.append(mode.name)
        return OK, real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        assert self.contexts[-1].startswith("primary")
        return OK, real.CUdeviceptr(0x10000000 * (len(self.zeroed) + 1))

    def cuMemsetD8Async(self, address: Any, value: int, size: int, stream: int) -> tuple[Any, ...]:
        assert value == 0
        self.zeroed.append((int(address), size, int(stream)))
        return (OK,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        return (OK,)

    def cuLibraryLoadData(self, code: bytes, *_: Any) -> tuple[Any, ...]:
        assert code[:4] == b"\x7fELF"
        return OK, "library"

    def cuLibraryGetKernel(self, library: str, name: bytes) -> tuple[Any, ...]:
        return OK, name.decode()

    def cuKernelGetFunction(self, kernel: str) -> tuple[Any, ...]:
        assert self.contexts[-1].startswith("primary")
        return OK, kernel

    def cuFuncLoad(self, function: str) -> tuple[Any, ...]:
        return (OK,)

    def cuFuncGetParamInfo(self, function: str, index: int) -> tuple[Any, ...]:
        return OK, 0, self.param_bytes

    def cuFuncSetAttribute(self, function: str, attribute: Any, value: int) -> tuple[Any, ...]:
        self.function_attributes[attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")] = value
        return (OK,)

    def cuLaunchKernelEx(self, config: Any, function: str, pointers: int, extra: int) -> tuple[Any, ...]:
        block = ctypes.c_void_p.from_address(pointers).value
        self.launches.append(
            Launch(
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                shared_bytes=config.sharedMemBytes,
                stream=int(config.hStream),
                attributes={_short(attribute): _value(attribute) for attribute in config.attrs[: config.numAttrs]},
                params=ctypes.string_at(block or 0, self.param_bytes),
                context=self.contexts[-1],
            )
        )
        return (self.launch_status.pop(0) if self.launch_status else OK,)

    def cuGetErrorString(self, status: Any) -> tuple[Any, ...]:
        return OK, b"as the driver says it"


def _short(attribute: Any) -> str:
    return str(attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"))


def _value(attribute: Any) -> tuple[int, ...]:
    if _short(attribute) == "CLUSTER_DIMENSION":
        dimensions = attribute.value.clusterDim
        return (dimensions.x, dimensions.y, dimensions.z)
    return (attribute.value.programmaticStreamSerializationAllowed,)
