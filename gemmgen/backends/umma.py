"""The 32-bit instruction descriptors of tcgen05.mma, field by field as the PTX ISA lays them out."""

from __future__ import annotations

from typing import Literal

from gemmgen.ir import DType

F32_ACCUMULATE = 1
FORMATS: dict[str, dict[DType, int]] = {
    "f16": {DType.BF16: 1},
    "tf32": {DType.F32: 2},
    "mxf8f6f4": {DType.E4M3: 0, DType.E5M2: 1, DType.E2M1: 5},
    "mxf4": {DType.E2M1: 1},
    "mxf4nvf4": {DType.E2M1: 1},
}
"""Codes of the operand formats by kind of product."""
SCALE_FORMATS = {"mxf8f6f4": 1, "mxf4": 1, "mxf4nvf4": 0}
"""1 for UE8M0 scales, 0 for UE4M3."""


def instruction_descriptor(
    kind: str, a: DType, b: DType, m: int, n: int, a_major: Literal["k", "mn"], b_major: Literal["k", "mn"]
) -> int:
    """The descriptor of an m x n product into fp32; the ids of scale bytes are left 0, for the kernel to add."""
    fields = FORMATS[kind][a] << 7 | FORMATS[kind][b] << 10 | n >> 3 << 17
    fields |= (a_major == "mn") << 15 | (b_major == "mn") << 16
    if kind in SCALE_FORMATS:
        return fields | SCALE_FORMATS[kind] << 23 | m >> 4 << 24
    return fields | F32_ACCUMULATE << 4 | m >> 4 << 24
