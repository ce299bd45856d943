"""CUDA text to PTX and cubin by NVRTC alone, and the bytes of kernel parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .case import Map, Parameter, Scalar


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


def encoded(parameter: Parameter, addresses: Sequence[int], number: int, encoder: Callable[..., bytes]) -> bytes:
    """The bytes of one kernel parameter."""
    if isinstance(parameter, Map):
        return parameter.encode(encoder, addresses)
    if isinstance(parameter, Scalar):
        return parameter.data
    return int(addresses[number]).to_bytes(8, "little")
