"""Tensor maps for the GPU by the driver's encoder, with the signature of the simulator's encoder.

Knows the driver's enumerations; whoever calls has checked shapes and alignment, so a refusal here prints all fields.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from gemmgen.runtime.driver import bindings, failure
from gemmgen.runtime.tensor_maps import INTERLEAVES, OOB_FILLS, SWIZZLES, element_name

TENSOR_MAP_BYTES = 128


def encode_tensor_map(
    dtype: str,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    swizzle: str = "none",
    interleave: str = "none",
    oob_fill: str = "zero",
) -> bytes:
    """128 bytes of a tensor map that the hardware reads; needs a driver but no context."""
    driver = bindings()
    status, tensor_map = driver.cuTensorMapEncodeTiled(
        _enumerator("CUtensorMapDataType", element_name(dtype), "dtype"),
        len(dims),
        address,
        [driver.cuuint64_t(size) for size in dims],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(step) for step in element_strides or [1] * len(dims)],
        _enumerator("CUtensorMapInterleave", interleave, "interleave"),
        _enumerator("CUtensorMapSwizzle", swizzle, "swizzle"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        _enumerator("CUtensorMapFloatOOBfill", oob_fill, "oob_fill"),
    )
    if status:
        fields = (
            f"dtype {dtype}, address {address:#x}, dims {tuple(dims)}, strides {tuple(strides)} bytes, "
            f"box {tuple(box)}, element strides {element_strides}, swizzle {swizzle}, interleave {interleave}"
        )
        raise failure(status, "cuTensorMapEncodeTiled", f"encoding a tensor map ({fields})")
    return ctypes.string_at(tensor_map.getPtr(), TENSOR_MAP_BYTES)


def _enumerator(enumeration: str, value: str, argument: str) -> Any:
    table = _tables()[enumeration]
    if value not in table:
        raise ValueError(f"{argument}: {value!r} is unknown; use one of {', '.join(table)}")
    return table[value]


@cache
def _tables() -> dict[str, dict[str, Any]]:
    from cuda.bindings import driver

    types = driver.CUtensorMapDataType
    return {
        "CUtensorMapDataType": {
            member.name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_").lower(): member for member in types
        },
        "CUtensorMapInterleave": _numbered(driver.CUtensorMapInterleave, INTERLEAVES),
        "CUtensorMapSwizzle": _numbered(driver.CUtensorMapSwizzle, SWIZZLES),
        "CUtensorMapFloatOOBfill": _numbered(driver.CUtensorMapFloatOOBfill, OOB_FILLS),
    }


def _numbered(enumeration: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: enumeration(number) for number, name in enumerate(names)}
