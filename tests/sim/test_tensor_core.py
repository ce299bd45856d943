"""Tensor-core products against float64 and integer arithmetic on independently decoded operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmgen.sim.tensor_core import matrix_product, round_to_f16

RNG = np.random.default_rng(3)
NUMPY = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def small_integers(rows: int, cols: int) -> np.ndarray:
    return RNG.integers(-8, 9, (rows, cols)).astype(np.float32)


def codes(values: np.ndarray, fmt: str) -> np.ndarray:
    if fmt == "tf32":
        return values.view(np.uint32)
    encoded = values.astype(NUMPY[fmt])
    return encoded.view(f"u{encoded.itemsize}")


@pytest.mark.parametrize("fmt", ["bf16", "f16", "e4m3", "e5m2", "tf32"])
def test_exact_products(fmt: str) -> None:
    limit = 4 if fmt == "e5m2" else 8  # integers above 8 do not all exist in e5m2
    a, b = np.clip(small_integers(64, 32), -limit, limit), np.clip(small_integers(24, 32), -limit, limit)
    c = small_integers(64, 24)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(matrix_product(codes(a, fmt), codes(b, fmt), fmt, fmt, None), expected)
    np.testing.assert_array_equal(matrix_product(codes(a, fmt), codes(b, fmt), fmt, fmt, c), expected + c)
    np.testing.assert_array_equal(matrix_product(codes(a, fmt), codes(b, fmt), fmt, fmt, c, -1, 1), c - expected)


def test_mixed_formats() -> None:
    a, b = small_integers(16, 32), np.clip(small_integers(8, 32), -4, 4)
    product = matrix_product(codes(a, "e4m3"), codes(b, "e5m2"), "e4m3", "e5m2", None)
    np.testing.assert_array_equal(product, a @ b.T)


def test_tf32_cuts_its_inputs() -> None:
    a = np.array([[1.0]], dtype=np.float32)
    b = np.array([[0x3F801FFF]], dtype=np.uint32)
    assert matrix_product(a.view(np.uint32), b, "tf32", "tf32", None).tolist() == [[1.0]]


def test_integers_wrap() -> None:
    a, b = RNG.integers(-128, 128, (16, 32)).astype(np.int8), RNG.integers(0, 256, (8, 32)).astype(np.uint8)
    expected = a.astype(np.int64) @ b.astype(np.int64).T
    product = matrix_product(a.view(np.uint8), b, "s8", "u8", None)
    np.testing.assert_array_equal(product, expected)
    full = np.full((16, 8), 2**31 - 1, dtype=np.int32)
    wrapped = (expected + 2**31 - 1 + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(matrix_product(a.view(np.uint8), b, "s8", "u8", full), wrapped)


def test_not_a_number_and_infinity_pass_without_a_warning() -> None:
    a = np.array([[np.inf, np.nan]], dtype=np.float32).view(np.uint32)
    b = np.array([[0.0, 1.0]], dtype=np.float32).view(np.uint32)
    assert np.isnan(matrix_product(a, b, "tf32", "tf32", None)).all()


def test_half_accumulator() -> None:
    assert round_to_f16(np.array([1.0, 70000.0], dtype=np.float32)).tolist() == [0x3C00, 0x7C00]
