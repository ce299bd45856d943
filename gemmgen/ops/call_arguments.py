"""Python-level arguments of the operators: pairs, transposed views, output types; tensors are judged further in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmgen.ops import dense
from gemmgen.ops.scales import Blocked128x4

Pair = Sequence[torch.Tensor | Blocked128x4]
Recipe = Sequence[int]


def transposed(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2:
        found = (
            f"has {tensor.dim()} dimensions" if isinstance(tensor, torch.Tensor) else f"is a {type(tensor).__name__}"
        )
        raise ValueError(f"{name}: {found}; must be a matrix, so pass a torch.Tensor with 2 dimensions")
    return tensor.mT


def pair(name: str, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if type(value) is tuple and len(value) == 2:
        return value
    if not isinstance(value, tuple | list) or len(value) != 2:
        found = f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
        raise TypeError(f"{name}: is {found}; must be a pair (data, scales), such as {name}=(data, sf{name})")
    return value[0], value[1]


def check_tensors(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor is None and name in ("c", "d"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: is a {type(tensor).__name__}; must be a torch.Tensor")


def output_dtype(d: torch.Tensor | None, c: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    default = c.dtype if c is not None else torch.bfloat16
    dtype = d.dtype if d is not None else out_dtype if out_dtype is not None else default
    if out_dtype is not None and out_dtype != dtype:
        raise TypeError(f"out_dtype: is {out_dtype}, but d has dtype {dtype}; leave out_dtype out when passing d")
    dense.output_dtype(dtype)
    return dtype


def check_compiled_dims(compiled_dims: str) -> None:
    if compiled_dims in ("nk", "mn"):
        return
    if not isinstance(compiled_dims, str) or not set(compiled_dims) <= set("mnk"):
        raise ValueError(f"compiled_dims: {compiled_dims!r} names more than m, n and k; pass some of the letters 'mnk'")


def transposed_pair(name: str, value: Any) -> tuple[Any, Any]:
    """Data and scales of a factor, both as transposed views; scales in 128x4 blocks are [rows, k] in any layout."""
    data, sf = pair(name, value)
    return transposed(name, data), sf if isinstance(sf, Blocked128x4) else transposed(f"sf{name}", sf)
