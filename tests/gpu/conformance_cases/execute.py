"""Compiles a case, runs it on the simulator and on the GPU, compares the outputs.

The device half speaks to the driver through cuda-bindings alone; it knows nothing of gemmgen's runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from .case import Array, Case, In, Map, Out, Scalar


def examine(case: Case, simulator: Simulator | None, device: Device | None) -> dict[str, Any]:
    """The result row of one case."""
    row: dict[str, Any] = {"family": case.family, "name": case.name}
    outputs: dict[str, list[Array]] = {}
    for name, machine in (("sim", simulator), ("device", device)):
        if machine is None:
            continue
        try:
            outputs[name] = machine.run(case)
        except Exception as error:  # a fault on either side is this case's result
            return {**row, "result": f"{name} failed", "detail": f"{type(error).__name__}: {error}"}
    if len(outputs) == 2:
        row = {**row, **agreement(case, outputs["sim"], outputs["device"], ("sim", "device"))}
        row["numpy"] = agreement_with_numpy(case, outputs["device"])["result"]
        return row
    (name, arrays), *_ = outputs.items()
    return {**row, **agreement_with_numpy(case, arrays, name)}


def agreement_with_numpy(case: Case, arrays: list[Array], name: str = "device") -> dict[str, Any]:
    known = [i for i, e in enumerate(case.expected) if e is not None]
    if not known:
        return {"result": "ran"}  # numpy is no oracle for it
    expected = [case.expected[i] for i in known]
    return agreement(case, [arrays[i] for i in known], expected, (name, "numpy"), known)


def agreement(
    case: Case, left: Sequence[Any], right: Sequence[Any], names: tuple[str, str], which: Sequence[int] | None = None
) -> dict[str, Any]:
    """equal, close (within the output's ulp) or unequal, with the first differences."""
    result: dict[str, Any] = {"result": "equal"}
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        output = case.outputs[which[number] if which else number]
        x, y = _words(a), _words(b)
        different = np.flatnonzero(x != y)
        if output.ulp >= 0:
            result["ulp"] = max(result.get("ulp", 0), ulp_distance(x, y))
            if result["ulp"] <= output.ulp:
                result["result"] = "close"
                continue
        if different.size:
            shown = ", ".join(f"[{i}] {names[0]} {x[i]:#x} {names[1]} {y[i]:#x}" for i in different[:8])
            detail = f"output {number}: {different.size} of {x.size} differ: {shown}{_operands(case, different[:8])}"
            return {**result, "result": "unequal", "detail": detail}
    return result


def _words(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    size = array.itemsize if array.itemsize in (1, 2, 4, 8) else 4
    return array.reshape(-1).view(f"u{size}")


def _operands(case: Case, places: Array) -> str:
    """For lane-by-lane cases: the operands of the first differences."""
    if case.block[0] != 256 or case.grid[0] == 1:
        return ""
    inputs = [_words(p.data) for p in case.parameters if isinstance(p, In)]
    return "; operands " + ", ".join("(" + " ".join(f"{x[i]:#x}" for x in inputs) + ")" for i in places)


def ulp_distance(x: Array, y: Array) -> int:
    """Largest distance of float32 bits in units of the last place; NaN equals NaN."""

    def ordered(bits: Array) -> Array:
        magnitude = (bits & 0x7FFFFFFF).astype(np.int64)
        return np.where(bits >> 31, -magnitude, magnitude)

    both_nan = ((x & 0x7FFFFFFF) > 0x7F800000) & ((y & 0x7FFFFFFF) > 0x7F800000)
    return int(np.where(both_nan, 0, np.abs(ordered(x) - ordered(y))).max())


# compilation


@cache
def compile_source(source: str, arch: str, kind: str) -> bytes:
    """PTX or cubin of CUDA text by NVRTC."""
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"conformance.cu", 0, [], [])
    _nvrtc(status)
    target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
    options = [f"--gpu-architecture={target}".encode(), b"-std=c++17", b"-default-device", b"-lineinfo"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytearray(size)  # mutable: NVRTC writes into it
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC: {log.decode(errors='replace')[:3000]}")
    size_of, read = (
        (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        if kind == "cubin"
        else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    )
    status, size = size_of(program)
    _nvrtc(status)
    code = bytearray(size)
    _nvrtc(*read(program, code))
    return bytes(code)


def _nvrtc(status: Any) -> None:
    if int(status):
        raise RuntimeError(f"NVRTC failed with {status.name}")


# simulator


class Simulator:
    """Runs cases on the interpreter."""

    def __init__(self, arch: str, schedule: str = "random", seed: int = 0) -> None:
        from gemmgen import sim

        self.sim, self.arch, self.schedule, self.seed = sim, arch, schedule, seed

    @cache  # noqa: B019 - one simulator lives as long as the process
    def module(self, source: str) -> Any:
        return self.sim.load(compile_source(source, self.arch, "ptx").decode().rstrip("\0"))

    def run(self, case: Case) -> list[Array]:
        gpu = self.sim.Gpu(schedule=self.sim.Schedule(self.schedule, seed=self.seed), sms=4)
        arrays = [p.data.copy() if isinstance(p, In | Out) else None for p in case.parameters]
        addresses = [0 if a is None else gpu.map(a, name=f"parameter {i}") for i, a in enumerate(arrays)]
        params = [_encoded(p, addresses, i, self.sim.encode_tensor_map) for i, p in enumerate(case.parameters)]
        gpu.launch(
            self.module(case.source),
            case.kernel,
            grid=case.grid,
            block=case.block,
            cluster=case.cluster,
            shared_bytes=case.shared_bytes,
            params=params,
        )
        return [
            a
            for a, p in zip(arrays, case.parameters, strict=True)
            if isinstance(p, Out) and p.compared and a is not None
        ]


def _encoded(parameter: Any, addresses: Sequence[int], number: int, encoder: Any) -> bytes:
    if isinstance(parameter, Map):
        return parameter.encode(encoder, addresses)
    if isinstance(parameter, Scalar):
        return parameter.data
    return int(addresses[number]).to_bytes(8, "little")


# device


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

    @cache  # noqa: B019 - one device lives as long as the process
    def module(self, source: str) -> Any:
        return self._call(self.driver.cuModuleLoadData(compile_source(source, self.arch, "cubin")))[0]

    def run(self, case: Case) -> list[Array]:
        arrays = [p.data.copy() if isinstance(p, In | Out) else None for p in case.parameters]
        addresses = [0 if a is None else self._upload(a) for a in arrays]
        params = [_encoded(p, addresses, i, self._tensor_map) for i, p in enumerate(case.parameters)]
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
            dims = attribute.value.clusterDim
            dims.x, dims.y, dims.z = case.cluster
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def _tensor_map(
        self,
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
        driver = self.driver
        kinds = driver.CUtensorMapFloatOOBfill
        fill = (
            kinds.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
            if oob_fill == "nan"
            else kinds.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        )
        (tensor_map,) = self._call(
            driver.cuTensorMapEncodeTiled(
                getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}"),
                len(dims),
                address,
                [driver.cuuint64_t(d) for d in dims],
                [driver.cuuint64_t(s) for s in strides],
                [driver.cuuint32_t(b) for b in box],
                [driver.cuuint32_t(s) for s in element_strides or [1] * len(dims)],
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle(("none", "32b", "64b", "128b").index(swizzle)),
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
                fill,
            )
        )
        return ctypes.string_at(tensor_map.getPtr(), 128)
