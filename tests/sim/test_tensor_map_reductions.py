"""Reductions by tensor maps: every operation and element type that PTX has, against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tensor_map import BASE, RNG, encode

from gemmgen.sim import tensor_map as tm

ARRAYS = {
    "uint32": np.uint32,
    "int32": np.int32,
    "uint64": np.uint64,
    "int64": np.int64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
}
REDUCTIONS = [
    *[("add", d) for d in ("uint32", "int32", "uint64", "float16", "bfloat16", "float32")],
    *[(op, d) for op in ("min", "max") for d in ("uint32", "int32", "uint64", "int64", "float16", "bfloat16")],
    *[(op, d) for op in ("and", "or", "xor") for d in ("uint32", "int32", "uint64", "int64")],
    *[(op, "uint32") for op in ("inc", "dec")],
]


def reduced(operation: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """One reduction in Python numbers, element by element."""
    rules = {
        "add": lambda a, b: a + b,
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }
    if old.dtype.kind in "ui":
        pairs = zip(old.tolist(), new.tolist(), strict=True)
        return np.array([rules[operation](a, b) for a, b in pairs], dtype=object)
    pairs = zip(old.astype(np.float64).tolist(), new.astype(np.float64).tolist(), strict=True)
    return np.array([rules[operation](a, b) for a, b in pairs]).astype(old.dtype)


@pytest.mark.parametrize(("operation", "dtype"), REDUCTIONS)
def test_reductions(operation: str, dtype: str) -> None:
    array = ARRAYS[dtype]
    old, new = (RNG.integers(0, 100, 64).astype(array) for _ in range(2))
    old[:4] = np.array([0, 1, 2, 3]).astype(array)
    memory = old.copy().view(np.uint8)
    inner = 16 // old.itemsize
    tensor_map = tm.decode_tensor_map(
        tm.encode_tensor_map(dtype, BASE, dims=(inner, 4), strides=(16,), box=(inner, 8), swizzle="none")
    )
    box = np.concatenate([new.view(np.uint8)[: 16 * 4], np.full(64, 0x55, np.uint8)]).reshape(8, 16)
    tm.reduce_box(tensor_map, (0, 0), memory, BASE, box, operation)
    count = 4 * inner
    expected = reduced(operation, old[:count], new[:count])
    assert memory.view(array)[:count].tolist() == expected.tolist()
    assert memory[64:].tobytes() == old.view(np.uint8)[64:].tobytes()


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [("add", "int64"), ("add", "uint8"), ("min", "float32"), ("inc", "int32"), ("or", "float16")],
)
def test_reductions_ptx_lacks(operation: str, dtype: str) -> None:
    tensor_map = tm.decode_tensor_map(tm.encode_tensor_map(dtype, BASE, (16, 4), (128,), (16, 4), None, "none"))
    with pytest.raises(ValueError, match=f"reduction .{operation}: not defined for {dtype}"):
        tm.reduce_box(tensor_map, (0, 0), np.zeros(512, np.uint8), BASE, np.zeros((4, 16), np.uint8), operation)


def test_unknown_reduction() -> None:
    tensor_map = tm.decode_tensor_map(encode())
    with pytest.raises(ValueError, match="unknown operation 'mul'"):
        tm.reduce_box(tensor_map, (0, 0), np.zeros(4096, np.uint8), BASE, np.zeros((8, 128), np.uint8), "mul")


@given(a=st.integers(0, 0xFFFF), b=st.integers(0, 0xFFFF), dtype=st.sampled_from(["float16", "bfloat16"]))
def test_half_sums_are_rounded_once(a: int, b: int, dtype: str) -> None:
    array = ARRAYS[dtype]
    memory = np.array([a] * 8, dtype=np.uint16).view(np.uint8)
    box = np.array([b] * 8, dtype=np.uint16).view(np.uint8).reshape(1, 16)
    tensor_map = tm.decode_tensor_map(tm.encode_tensor_map(dtype, BASE, (8,), (), (8,), None, "none"))
    x, y = (np.array([v], dtype=np.uint16).view(array).astype(np.float64) for v in (a, b))
    with np.errstate(all="ignore"):
        expected = (x + y).astype(array)
    tm.reduce_box(tensor_map, (0,), memory, BASE, box, "add")
    if np.isnan(expected[0].astype(np.float32)):
        assert memory.view(np.uint16)[0] == 0x7FFF
    else:
        assert memory.view(np.uint16)[0] == expected.view(np.uint16)[0]
