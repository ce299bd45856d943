"""Tensor maps for the GPU by the driver's encoder, with the signature of the simulator's encoder.

Knows the driver's enumerations; whoever calls has checked shapes and alignment, so a refusal here prints all fields.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gemmgen.runtime import driver
from gemmgen.runtime.tensor_maps import INTERLEAVES, OOB_FILLS, SWIZZLES, element_name, swizzle_name

TENSOR_MAP_BYTES = 128
_ALIGNMENT = 64
_CUDA_VERSION = 12000  # the driver interface that introduced the encoder
_L2_PROMOTION_256B = 3

_Sizes = ctypes.POINTER(ctypes.c_uint64)
_Counts = ctypes.POINTER(ctypes.c_uint32)
_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int,  # CUresult
    ctypes.c_void_p,  # tensorMap
    ctypes.c_int,  # tensorDataType
    ctypes.c_uint32,  # tensorRank
    ctypes.c_void_p,  # globalAddress
    _Sizes,  # globalDim
    _Sizes,  # globalStrides
    _Counts,  # boxDim
    _Counts,  # elementStrides
    ctypes.c_int,  # interleave
    ctypes.c_int,  # swizzle
    ctypes.c_int,  # l2Promotion
    ctypes.c_int,  # oobFill
)


def encode_tensor_map(
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
    """128 bytes of a tensor map that the hardware reads; needs a driver but no context."""
    rank = len(dims)
    buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _ALIGNMENT)
    target = -(-ctypes.addressof(buffer) // _ALIGNMENT) * _ALIGNMENT
    status = _encoder()(
        target,
        element_types()[element_name(dtype)],
        rank,
        address,
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * rank)(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*element_strides or [1] * rank),
        _number("interleave", interleave, INTERLEAVES),
        _number("swizzle", swizzle_name(swizzle), SWIZZLES),
        _L2_PROMOTION_256B,
        _number("oob_fill", oob_fill, OOB_FILLS),
    )
    if status:
        fields = (
            f"dtype {dtype}, address {address:#x}, dims {tuple(dims)}, strides {tuple(strides)} bytes, "
            f"box {tuple(box)}, element strides {element_strides}, swizzle {swizzle}, interleave {interleave}"
        )
        result = driver.bindings().CUresult(status)
        raise driver.failure(result, "cuTensorMapEncodeTiled", f"encoding a tensor map ({fields})")
    return ctypes.string_at(target, TENSOR_MAP_BYTES)


@cache
def _encoder() -> Callable[..., int]:
    # Through its address, because the encoder wants its result 64-byte aligned and the bindings' own object is not.
    flags = driver.bindings().CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
    arguments = (b"cuTensorMapEncodeTiled", _CUDA_VERSION, flags)
    address, _ = driver.call("cuGetProcAddress", *arguments, doing="looking up the tensor map encoder")
    return _PROTOTYPE(address)


def _number(argument: str, value: str, names: Sequence[str]) -> int:
    if value not in names:
        raise ValueError(f"{argument}: {value!r} is unknown; use one of {', '.join(names)}")
    return names.index(value)


@cache
def element_types() -> dict[str, int]:
    """The driver's numbers of the element types, by long name."""
    from cuda.bindings import driver as enumerations

    types: Any = enumerations.CUtensorMapDataType
    return {member.name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_").lower(): int(member) for member in types}
