"""Python-level arguments of the operators: pairs, transposed views, output types; tensors are judged further in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmgen.ops import dense, tail
from gemmgen.ops.problem import check_strided, check_writable
from gemmgen.ops.scales import Blocked128x4, stated
from gemmgen.ops.whole_numbers import whole_numbers

Pair = Sequence[torch.Tensor | Blocked128x4]
Recipe = Sequence[int]
OUTPUTS = ("d", "sqr_sum")
"""Of the shipped operators that are no epilogue's."""
GRANULARITIES = (1, 128, 128, 128), (1, 128, 1, 128)
"""What scales of sm90 may stand for: rows and k of a, columns and k of b."""


def transposed(name: str, tensor: torch.Tensor, dimensions: int = 2) -> torch.Tensor:
    """A view with the last two dimensions exchanged, of a matrix or, with 3, of one for each group."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != dimensions:
        found = (
            f"has {tensor.dim()} dimensions" if isinstance(tensor, torch.Tensor) else f"is a {type(tensor).__name__}"
        )
        what = "a matrix" if dimensions == 2 else "a matrix for each group"
        raise ValueError(f"{name}: {found}; must be {what}, so pass a torch.Tensor with {dimensions} dimensions")
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
        check_strided(name, tensor)
        if name in OUTPUTS:
            check_writable(name, tensor)


def output_dtype(d: torch.Tensor | None, c: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    default = c.dtype if c is not None else torch.bfloat16
    dtype = d.dtype if d is not None else out_dtype if out_dtype is not None else default
    if out_dtype is not None and out_dtype != dtype:
        raise TypeError(f"out_dtype: is {out_dtype}, but d has dtype {dtype}; leave out_dtype out when passing d")
    if dtype not in tail.OUTPUTS:
        named = "d: dtype is" if d is not None else "out_dtype: is" if out_dtype is not None else "c: dtype is"
        raise TypeError(f"{named} {dtype}; must be one of {', '.join(map(str, tail.OUTPUTS))}")
    return dtype


def check_compiled_dims(compiled_dims: str) -> None:
    if compiled_dims in ("nk", "mn"):
        return
    if not isinstance(compiled_dims, str) or not set(compiled_dims) <= set("mnk"):
        raise ValueError(f"compiled_dims: {compiled_dims!r} names more than m, n and k; pass some of the letters 'mnk'")


def checked_head_splits(splits: Any) -> tuple[int, int, int]:
    """(left, mid, right) of a head; refuses what is none."""
    found = whole_numbers(splits)
    if found is None or len(found) != 3:
        raise TypeError(
            f"head_splits: is {splits!r}; must be three whole numbers: columns (left, mid, right) of a head"
        )
    left, mid, right = found
    if min(left, mid, right) < 0 or left % 2 or right % 2 or left + right == 0:
        raise ValueError(
            f"head_splits: is {(left, mid, right)}; left and right must be even, none negative and left + right not 0, "
            "because columns are written two at a time"
        )
    return left, mid, right


def transposed_pair(name: str, value: Any, dimensions: int = 2) -> tuple[Any, Any]:
    """Data and scales of a factor, both as transposed views; scales in 128x4 blocks are [rows, k] in any layout."""
    data, sf = pair(name, value)
    turned = sf if isinstance(sf, Blocked128x4) else transposed(f"sf{name}", sf, dimensions)
    return transposed(name, data, dimensions), turned


def check_recipe(
    b: torch.Tensor, sfb: torch.Tensor, recipe: Recipe | None, recipe_a: Recipe | None, recipe_b: Recipe | None
) -> None:
    """A recipe may only confirm what the shape of the scales says."""
    found = stated(recipe, recipe_a, recipe_b)
    if found is None:
        return
    name, parts = ("recipe_a + recipe_b", (0, 1, 2, 3)) if recipe is None else ("recipe", (0, 2, 1))
    wanted, *allowed = (tuple(each[part] for part in parts) for each in (found, *GRANULARITIES))
    if wanted not in allowed:
        raise ValueError(f"{name}: {wanted} is not supported on sm90; use one of {', '.join(map(str, allowed))}")
    columns = found[2]
    if b.dim() >= 2 and b.shape[-2] > 1 and dense.scale_columns(b, sfb) != columns:
        raise ValueError(
            f"sfb: shape is {tuple(sfb.shape)} for b {tuple(b.shape)}, but the recipe {wanted} says one scale per "
            f"{columns} x 128 of b; pass scales of that granularity or leave the recipe out"
        )
