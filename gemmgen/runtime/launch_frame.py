"""The memory that one driver launch reads: a kernel's parameter block and its launch configuration, patched in place.

Knows the driver's structures; what the words of the block mean is the business of whoever writes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from gemmgen.runtime import driver
from gemmgen.runtime.kernel_text import Grid, KernelText

_ALIGNMENT = 64
"""Bytes that tensor maps in a parameter block start at multiples of."""
_STREAM_OFFSET = 32
"""Of ``hStream`` in the driver's ``CUlaunchConfig``, behind seven 32-bit fields and their padding."""


class LaunchFrame:
    """A block of ``param_bytes`` bytes and a configuration; the driver copies both before ``launch`` returns.

    ``words`` are the block as 64-bit words, ``stream[0]`` is the stream's handle, and ``launch()`` is the driver call
    and returns what the bindings return: a tuple of the status. The call drops the interpreter lock, so a frame is used
    by one thread at a time.
    """

    __slots__ = ("_address", "_config", "_pointers", "launch", "stream", "words")

    def __init__(self, text: KernelText, function: Any, param_bytes: int, programmatic: bool) -> None:
        words = -(-max(param_bytes, 1) // 8)
        room = (ctypes.c_uint64 * (words + _ALIGNMENT // 8))()
        first = -ctypes.addressof(room) % _ALIGNMENT // 8
        self.words = memoryview(room).cast("B").cast("Q")[first : first + words]  # keeps the room alive
        self._address = ctypes.addressof(room) + 8 * first
        self._pointers = (ctypes.c_void_p * 1)(self._address)
        self._config = _config(text, programmatic)
        handle = ctypes.c_uint64.from_address(int(self._config.getPtr()) + _STREAM_OFFSET)
        self.stream = memoryview(handle).cast("B").cast("Q")
        self.launch: Callable[[], tuple[Any]] = partial(
            driver.bindings().cuLaunchKernelEx, self._config, function, ctypes.addressof(self._pointers), 0
        )

    def fill(self, grid: Grid, params: bytes) -> None:
        """The number of CTAs, and the block whole."""
        self._config.gridDimX, self._config.gridDimY, self._config.gridDimZ = grid
        ctypes.memmove(self._address, params, len(params))


def _config(text: KernelText, programmatic: bool) -> Any:
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
