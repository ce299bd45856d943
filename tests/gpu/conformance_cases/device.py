"""Runs cases on a GPU through the driver; knows nothing of gemmgen's runtime, which is under test elsewhere."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .case import Array, Case, In, Out
from .compilation import compile_source, encoded

# numbers of the driver's enumeration of element types
ELEMENT_TYPES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16"),
    *("float32_ftz", "tfloat32", "tfloat32_ftz"),
)
SWIZZLES = ("none", "32b", "64b", "128b")


class Device:
    """Runs cases on the first GPU through the driver."""

    def __init__(self, arch: str) -> None:
        from cuda.bindings import driver

        self.driver, self.arch = driver, arch
        self._call(driver.cuInit(0))
        (self.device,) = self._call(driver.cuDeviceGet(0))
        (context,) = self._call(driver.cuDevicePrimaryCtxRetain(self.device))
        self._call(driver.cuCtxSetCurrent(context))

    def _call(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        status, *values = result
        if int(status):
            raise RuntimeError(f"the driver answered {status.name}")
        return tuple(values)

    def usable(self) -> bool:
        """False once a kernel has faulted: every later call would fail too."""
        (status,) = self.driver.cuCtxSynchronize()
        return int(status) == 0

    @cache  # noqa: B019 - one device lives as long as the process
    def module(self, source: str) -> Any:
        return self._call(self.driver.cuModuleLoadData(compile_source(source, self.arch, "cubin")))[0]

    def run(self, case: Case) -> list[Array]:
        arrays = [p.data.copy() if isinstance(p, In | Out) else None for p in case.parameters]
        addresses = [0 if a is None else self._upload(a) for a in arrays]
        params = [encoded(p, addresses, i, encode_tensor_map) for i, p in enumerate(case.parameters)]
        self._launch(case, params)
        self._call(self.driver.cuCtxSynchronize())
        for array, address in zip(arrays, addresses, strict=True):
            if array is not None:
                self._call(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
                self._call(self.driver.cuMemFree(address))
        return [
            a
            for a, p in zip(arrays, case.parameters, strict=True)
            if isinstance(p, Out) and p.compared and a is not None
        ]

    def _upload(self, array: Array) -> int:
        (address,) = self._call(self.driver.cuMemAlloc(max(array.nbytes, 16)))
        self._call(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return int(address)

    def _launch(self, case: Case, params: list[bytes]) -> None:
        driver = self.driver
        (function,) = self._call(driver.cuModuleGetFunction(self.module(case.source), case.kernel.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(driver.cuFuncSetAttribute(function, limit, case.shared_bytes))
        held = [ctypes.create_string_buffer(p, len(p)) for p in params]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(h) for h in held])
        self._call(driver.cuLaunchKernelEx(self._configuration(case), function, ctypes.addressof(pointers), 0))

    def _configuration(self, case: Case) -> Any:
        driver = self.driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = case.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = case.block
        config.sharedMemBytes = case.shared_bytes
        config.hStream = driver.CUstream(0)
        if case.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = attribute.value
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = case.cluster
            config.attrs, config.numAttrs = [attribute], 1
        return config


def versions() -> dict[str, str]:
    """The card and the software that compiled for it and ran on it, without a context on it."""
    from cuda.bindings import driver, nvrtc

    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, name = driver.cuDeviceGetName(64, device)
    _, cuda = driver.cuDriverGetVersion()
    _, major, minor = nvrtc.nvrtcVersion()
    return {
        "card": name.decode().rstrip("\0"),
        "driver": _driver_version(),
        "CUDA": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "torch": _package_version("torch"),
        "NVRTC": f"{major}.{minor}",
    }


def _driver_version() -> str:
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text()) if path.exists() else None
    return found.group(0) if found else "unknown"


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def encode_tensor_map(
    dtype: str,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None,
    swizzle: str,
    interleave: str,
    oob_fill: str,
) -> bytes:
    """128 bytes by the driver's encoder, which wants memory aligned to 64 bytes: hence ctypes."""
    rank = len(dims)
    buffer = ctypes.create_string_buffer(192)
    target = -(-ctypes.addressof(buffer) // 64) * 64
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(target),
        ctypes.c_int(ELEMENT_TYPES.index(dtype)),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * rank)(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*(element_strides or [1] * rank)),
        ctypes.c_int(("none", "16b", "32b").index(interleave)),
        ctypes.c_int(SWIZZLES.index(swizzle)),
        ctypes.c_int(0),
        ctypes.c_int(("zero", "nan").index(oob_fill)),
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled answered {status} for {dtype} {dims} {strides} {box} {swizzle}")
    return ctypes.string_at(target, 128)
