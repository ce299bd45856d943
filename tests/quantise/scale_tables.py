"""Oracles of the quantisers: the tables of the formats, and ml_dtypes; they share no code with what they judge."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

FOLDER = Path(__file__).parents[1] / "fixtures" / "layouts"
NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn, "ue8m0": ml_dtypes.float8_e8m0fnu}
LARGEST = {"e4m3": 448.0, "e2m1": 6.0}


@cache
def table(name: str) -> dict[str, Any]:
    """One of the fixtures, read."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def floats_of_bits(bits: list[str]) -> torch.Tensor:
    """fp32 numbers by their bits; NaN payloads survive."""
    words = np.array([int(each, 16) for each in bits], dtype=np.uint32)
    return torch.from_numpy(words.view(np.float32))


def rounded(values: np.ndarray, form: str) -> np.ndarray:
    """Numbers of a format, as fp64, nearest even and saturating, by ml_dtypes."""
    largest = LARGEST[form]
    return np.clip(values, -largest, largest).astype(np.float32).astype(NUMPY[form]).astype(np.float64)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit, their strides aside."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return torch.equal(x.view(kind), y.view(kind))
