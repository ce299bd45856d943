"""What a TMA reduction does to elements in global memory, and what a TMA load does to float32 elements on the way.

Knows element values only; it may not know of boxes, addresses or the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.sim import formats

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

_DTYPES = {
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "int32": "i4",
    "uint64": "u8",
    "int64": "i8",
    "float32": "f4",
    "float32_ftz": "f4",
    "float64": "f8",
}
_ADD = ("uint32", "int32", "uint64", "float16", "bfloat16", "float32", "float32_ftz")
_MIN_MAX = ("uint32", "int32", "uint64", "int64", "float16", "bfloat16")
_BITWISE = ("uint32", "int32", "uint64", "int64")
_OPERATIONS: dict[str, tuple[Callable[[Array, Array], Array], tuple[str, ...]]] = {
    "add": (np.add, _ADD),
    "min": (np.fmin, _MIN_MAX),
    "max": (np.fmax, _MIN_MAX),
    "inc": (lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype), ("uint32",)),
    "dec": (lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype), ("uint32",)),
    "and": (np.bitwise_and, _BITWISE),
    "or": (np.bitwise_or, _BITWISE),
    "xor": (np.bitwise_xor, _BITWISE),
}


def reduction(element: str, operation: str) -> Callable[[Bytes, Bytes], Bytes]:
    """The function (old bytes, incoming bytes) -> new bytes of one reduction; ValueError when PTX has no such one."""
    if operation not in _OPERATIONS:
        raise ValueError(f"reduction: unknown operation {operation!r}; one of {', '.join(_OPERATIONS)}")
    combine, elements = _OPERATIONS[operation]
    if element not in elements:
        raise ValueError(f"reduction .{operation}: not defined for {element}; it takes {', '.join(elements)}")
    if element in ("float16", "bfloat16"):
        return lambda old, new: _half_reduction(combine, element, old, new)
    dtype = _DTYPES[element]
    return lambda old, new: _quiet(combine, old.view(dtype), new.view(dtype)).view(np.uint8)


def _half_reduction(combine: Callable[[Array, Array], Array], element: str, old: Bytes, new: Bytes) -> Bytes:
    """16-bit floats: float32 holds every sum of two well enough that rounding twice equals rounding once."""
    name, encode = ("f16", formats.encode_f16) if element == "float16" else ("bf16", formats.encode_bf16)
    values = _quiet(combine, formats.decode(old.view(np.uint16), name), formats.decode(new.view(np.uint16), name))
    return encode(values).view(np.uint8)


def _quiet(combine: Callable[[Array, Array], Array], old: Array, new: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return combine(old, new)


def _to_tf32(box: Bytes) -> Bytes:
    return formats.encode_tf32(box.view(np.float32), "rn").view(np.uint8)


#: element types whose values a TMA load changes on the way to shared memory; an H100 flushes none of the _ftz types
LOAD_CONVERSIONS: dict[str, Callable[[Bytes], Bytes]] = {"tfloat32": _to_tf32, "tfloat32_ftz": _to_tf32}
