"""The CUDA driver behind one door: opened at first use, with failed calls turned into sentences.

Knows the driver API and nothing of kernels; importing it loads no library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from gemmgen.runtime.errors import DriverError

_ADVICE = {
    "CUDA_ERROR_INVALID_IMAGE": "the binary does not suit this driver; upgrade the driver or install an older NVRTC",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the binary was compiled for another architecture than this device",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "NVRTC is newer than the driver; upgrade the driver",
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory and call again",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "the grid must be a multiple of the cluster and the cluster must fit the device",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers or shared memory than one SM has",
    "CUDA_ERROR_NOT_INITIALIZED": "after a fork CUDA cannot be used in the child; start worker processes with 'spawn'",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an earlier kernel accessed memory it does not own; this process must be restarted",
    "CUDA_ERROR_LAUNCH_FAILED": "an earlier kernel trapped; this process must be restarted",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "an earlier kernel used a misaligned address; this process must be restarted",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "the call is not allowed while a CUDA graph is being captured",
}


@cache
def bindings() -> Any:
    """`cuda.bindings.driver` with the driver initialised."""
    from cuda.bindings import driver
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        (status,) = driver.cuInit(0)
    except (DynamicLibNotFoundError, OSError) as error:
        raise DriverError(
            "no NVIDIA driver: libcuda was not found, so nothing can run on a GPU here. "
            'Fix: install the driver, or run on CPU tensors with gemmgen.simulate("sm90"). '
            f"The loader said: {error}"
        ) from error
    if status:
        raise DriverError(f"the NVIDIA driver did not start: {_describe(driver, status)}")
    return driver


def call(function_name: str, *arguments: Any, doing: str) -> Any:
    """Call one driver function; its value (or None, or a tuple of values), or a DriverError that says what failed."""
    driver = bindings()
    status, *values = getattr(driver, function_name)(*arguments)
    if status:
        raise failure(status, function_name, doing)
    return values[0] if len(values) == 1 else tuple(values) or None


def failure(status: Any, function_name: str, doing: str) -> DriverError:
    """The exception for a failed call, for those who call the bindings directly."""
    return DriverError(f"{doing}: {function_name} failed with {_describe(bindings(), status)}")


def _describe(driver: Any, status: Any) -> str:
    _, text = driver.cuGetErrorString(status)
    sentence = f"{status.name} ({text.decode() if text else 'no description'})"
    advice = _ADVICE.get(status.name)
    return f"{sentence}; {advice}" if advice else sentence


@contextlib.contextmanager
def current_context(context: Any) -> Iterator[None]:
    """Make `context` current in this thread, and afterwards the one that was."""
    call("cuCtxPushCurrent", context, doing="switching to the tensors' device")
    try:
        yield
    finally:
        call("cuCtxPopCurrent", doing="switching back to the caller's device")


@contextlib.contextmanager
def loading_allowed_during_capture() -> Iterator[None]:
    """Keep a load in this thread from breaking a graph that another thread captures meanwhile."""
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    former = call("cuThreadExchangeStreamCaptureMode", relaxed, doing="loading a kernel")
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", former, doing="loading a kernel")
