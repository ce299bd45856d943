"""The element types of tensor maps by their short names, shared by the driver's encoder and the simulator's.

Only a table; whoever encodes checks the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

ELEMENT_NAMES = {
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "tf32": "tfloat32",
    "u4": "16u4_align8b",
    "u4_padded": "16u4_align16b",
    "u6_padded": "16u6_align16b",
}
SWIZZLES = ("none", "32b", "64b", "128b")
INTERLEAVES = ("none", "16b", "32b")
OOB_FILLS = ("zero", "nan")


class TensorMapEncoder(Protocol):
    """128 bytes of a tensor map: dims and box in elements, innermost first; strides in bytes, without the innermost."""

    def __call__(
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
    ) -> bytes: ...


def swizzle_name(swizzle: str | int) -> str:
    """The name of a shared-memory swizzle, from its name or from its span in bytes (0 for none)."""
    name = {0: "none", 32: "32b", 64: "64b", 128: "128b"}.get(swizzle) if isinstance(swizzle, int) else swizzle
    if name not in SWIZZLES:
        raise ValueError(f"swizzle: {swizzle!r} is unknown; use one of {', '.join(SWIZZLES)} or 0, 32, 64, 128")
    return name


def element_name(dtype: str) -> str:
    """The long name of an element type, from the short or the long one."""
    name = ELEMENT_NAMES.get(dtype, dtype)
    if name not in ELEMENT_NAMES.values():
        raise ValueError(f"dtype: {dtype!r} is no tensor map element type; use one of {', '.join(ELEMENT_NAMES)}")
    return name
