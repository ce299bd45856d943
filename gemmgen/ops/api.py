"""The operators as users call them: names, argument order and meanings of the field, on top of ``library``.

Checks Python-level arguments (pairs, recipes, output types); everything about tensors is checked further in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmgen.ops import dense, library
from gemmgen.ops.launch import relaunch

Pair = Sequence[torch.Tensor]
Recipe = Sequence[int]
GRANULARITIES = {128: (1, 128, 128), 1: (1, 1, 128)}


def fp8_gemm_nt(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``d[m, n] = (a * sfa) . (b * sfb)^T (+ c)`` for e4m3 ``a`` [m, k] and ``b`` [n, k], summed in fp32.

    a: pair of data and fp32 scales [m, ceil(k/128)], read as they lie when row-major, or when contiguous along m with
        columns 16 bytes apart; scales that lie otherwise are copied first, by one small kernel more.
    b: pair of data and fp32 scales [ceil(n/128), ceil(k/128)] or, one per row, [n, ceil(k/128)]; likewise.
    d: bf16 or fp32 [m, n] to write to; allocated when left out. Returned either way.
    c: added, of d's type and shape; may be d itself.
    recipe: (1, 128, 128) or (1, 1, 128), or recipe_a (1, 128) with recipe_b (128, 128) or (1, 128); by default the
        shape of b's scales decides.
    compiled_dims, disable_ue8m0_cast: accepted for compatibility; extents are run-time values, scales are exact.
    out_dtype: type of an allocated d; c's or bf16 by default.
    """
    (a_data, sfa), (b_data, sfb) = _pair("a", a), _pair("b", b)
    if recipe is not None or recipe_a is not None or recipe_b is not None:
        _check_tensors(b=b_data, sfb=sfb)
        _check_recipe(b_data, sfb, recipe, recipe_a, recipe_b)
    _check_compiled_dims(compiled_dims)
    if d is not None and out_dtype is None:
        slots = (a_data, sfa, b_data, sfb, d) if c is None else (a_data, sfa, b_data, sfb, c, d)
        if library.is_plain(slots) and relaunch(dense.PREPARED, slots):
            library.written(d)
            return d
    _check_tensors(a=a_data, sfa=sfa, b=b_data, sfb=sfb, c=c, d=d)
    dtype = _output_dtype(d, c, out_dtype)
    if d is not None:
        library.fp8_gemm_nt_out(a_data, sfa, b_data, sfb, c, d)
        return d
    if library.is_direct((a_data, sfa, b_data, sfb)):
        return dense.fp8_gemm(a_data, sfa, b_data, sfb, c, dense.empty(a_data, b_data, dtype))
    return library.fp8_gemm_nt(a_data, sfa, b_data, sfb, c, dtype)


def bf16_gemm_nt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``d[m, n] = a . b^T (+ c)`` for bf16 ``a`` [m, k] and ``b`` [n, k], summed in fp32.

    Both may be transposed views.
    d: bf16 or fp32 [m, n] to write to; allocated when left out. Returned either way.
    c: added, of d's type and shape; may be d itself.
    compiled_dims: accepted for compatibility; extents are run-time values.
    out_dtype: type of an allocated d; c's or bf16 by default.
    """
    _check_compiled_dims(compiled_dims)
    if d is not None and out_dtype is None:
        slots = (a, b, d) if c is None else (a, b, c, d)
        if library.is_plain(slots) and relaunch(dense.PREPARED, slots):
            library.written(d)
            return d
    _check_tensors(a=a, b=b, c=c, d=d)
    dtype = _output_dtype(d, c, out_dtype)
    if d is not None:
        library.bf16_gemm_nt_out(a, b, c, d)
        return d
    if library.is_direct((a, b)):
        return dense.bf16_gemm(a, b, c, dense.empty(a, b, dtype))
    return library.bf16_gemm_nt(a, b, c, dtype)


def bf16_gemm_nn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "nk",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``b`` given as [k, n]."""
    return bf16_gemm_nt(a, _transposed("b", b), d, c, compiled_dims, out_dtype=out_dtype)


def bf16_gemm_tn(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``a`` given as [k, m] and ``b`` as [k, n]."""
    return bf16_gemm_nt(_transposed("a", a), _transposed("b", b), d, c, compiled_dims, out_dtype=out_dtype)


def bf16_gemm_tt(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    compiled_dims: str = "mn",
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """:func:`bf16_gemm_nt` for ``a`` given as [k, m]."""
    return bf16_gemm_nt(_transposed("a", a), b, d, c, compiled_dims, out_dtype=out_dtype)


def _transposed(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2:
        found = (
            f"has {tensor.dim()} dimensions" if isinstance(tensor, torch.Tensor) else f"is a {type(tensor).__name__}"
        )
        raise ValueError(f"{name}: {found}; must be a matrix, so pass a torch.Tensor with 2 dimensions")
    return tensor.mT


def _pair(name: str, value: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if type(value) is tuple and len(value) == 2:
        return value
    if not isinstance(value, tuple | list) or len(value) != 2:
        found = f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
        raise TypeError(f"{name}: is {found}; must be a pair (data, scales), such as {name}=(data, sf{name})")
    return value[0], value[1]


def _check_tensors(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor is None and name in ("c", "d"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: is a {type(tensor).__name__}; must be a torch.Tensor")


def _output_dtype(d: torch.Tensor | None, c: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    default = c.dtype if c is not None else torch.bfloat16
    dtype = d.dtype if d is not None else out_dtype if out_dtype is not None else default
    if out_dtype is not None and out_dtype != dtype:
        raise TypeError(f"out_dtype: is {out_dtype}, but d has dtype {dtype}; leave out_dtype out when passing d")
    dense.output_dtype(dtype)
    return dtype


def _check_compiled_dims(compiled_dims: str) -> None:
    if compiled_dims in ("nk", "mn"):
        return
    if not isinstance(compiled_dims, str) or not set(compiled_dims) <= set("mnk"):
        raise ValueError(f"compiled_dims: {compiled_dims!r} names more than m, n and k; pass some of the letters 'mnk'")


def _check_recipe(
    b: torch.Tensor, sfb: torch.Tensor, recipe: Recipe | None, recipe_a: Recipe | None, recipe_b: Recipe | None
) -> None:
    """A recipe may only confirm what the shape of the scales says."""
    if recipe is not None and (recipe_a is not None or recipe_b is not None):
        raise ValueError(f"recipe: {tuple(recipe)} comes with recipe_a or recipe_b; pass either recipe or both others")
    if recipe is None and (recipe_a is None or recipe_b is None):
        missing = "recipe_a" if recipe_a is None else "recipe_b"
        raise ValueError(f"{missing}: is missing; pass recipe_a and recipe_b together, or recipe alone")
    wanted = tuple(recipe) if recipe is not None else (*recipe_a, *recipe_b)  # type: ignore[misc]
    allowed = GRANULARITIES if recipe is not None else {columns: (1, 128, columns, 128) for columns in GRANULARITIES}
    columns = next((columns for columns, known in allowed.items() if known == wanted), None)
    if columns is None:
        name = "recipe" if recipe is not None else "recipe_a + recipe_b"
        raise ValueError(
            f"{name}: {wanted} is not supported on sm90; use one of {', '.join(map(str, allowed.values()))}"
        )
    if b.dim() == 2 and b.shape[0] > 1 and dense.scale_columns(b, sfb) != columns:
        raise ValueError(
            f"sfb: shape is {tuple(sfb.shape)} for b {tuple(b.shape)}, but the recipe {wanted} says one scale per "
            f"{columns} x 128 of b; pass scales of that granularity or leave the recipe out"
        )
