"""Products of the tensor core: decode the operands' codes, multiply in float32, accumulate.

Knows numbers only, not the order or the width in which hardware accumulates; it may not know of registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.sim.formats import decode, encode_f16

Array = npt.NDArray[Any]

ELEMENT_BITS = {"bf16": 16, "f16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


def matrix_product(
    a: Array, b: Array, a_format: str, b_format: str, c: Array | None, a_sign: int = 1, b_sign: int = 1
) -> Array:
    """a_sign * A @ (b_sign * B).T + C for codes A [m, k] and B [n, k]; float32, or int32 when the formats are s8 or u8.

    C is None for a cleared accumulator. The signs are wgmma's imm-scale-a and imm-scale-b: 1 or -1. Products are summed
    in float64, exactly for 8-bit formats, and rounded once, so that a sum does not depend on how many columns a product
    has, as it does in float32 in libraries and does not on a tensor core (tests/gpu/test_settings.py).
    """
    if a_format in ("s8", "u8"):
        return _integer_product(a, b, a_format, b_format, c)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = decode(a, a_format).astype(np.float64) @ decode(b, b_format).T.astype(np.float64)
        product = wide.astype(np.float32)
        if a_sign * b_sign < 0:
            product = -product
        return product if c is None else product + c


def _integer_product(a: Array, b: Array, a_format: str, b_format: str, c: Array | None) -> npt.NDArray[np.int32]:
    """Exact in float64 (k is at most 32), then wrapped to 32 bits; saturation (.satfinite) is the caller's."""
    exact = (_integers(a, a_format) @ _integers(b, b_format).T).astype(np.int64)
    if c is not None:
        exact = exact + c.astype(np.int64)
    return exact.astype(np.int32)


def _integers(codes: Array, fmt: str) -> npt.NDArray[np.float64]:
    octets = np.ascontiguousarray(codes).view(np.int8 if fmt == "s8" else np.uint8)
    return octets.astype(np.float64)


def round_to_f16(accumulator: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Codes of an f16 accumulator."""
    return encode_f16(accumulator)
