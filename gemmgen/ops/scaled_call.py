"""Calls of block-scaled products: unpacks arguments and takes the way around torch's dispatcher if it may.

Knows argument conventions; what fits together is judged in ``dense_block_scaled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmgen.ops import dense_block_scaled, library
from gemmgen.ops.call_arguments import Recipe, check_tensors, output_dtype, pair
from gemmgen.ops.scales import Blocked128x4, default_granularity, granularity

FP4 = (torch.int8, torch.float4_e2m1fn_x2)
"""Types of 4-bit numbers, two a byte, the one of even index in the low half."""
FP8_OR_FP4 = (torch.float8_e4m3fn, *FP4)
Recipes = tuple[Recipe | None, Recipe | None, Recipe | None]


def check_types(operator: str, a: torch.Tensor, b: torch.Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """Refuse data of a type that the operator does not take."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in allowed:
            kinds = " or ".join(map(str, allowed))
            mixed = operator.replace("fp8_gemm", "fp8_fp4_gemm")
            others = f"; {mixed} takes 4-bit numbers" if tensor.dtype in FP4 else f"; quantise {name} first"
            raise TypeError(f"{name}: dtype is {tensor.dtype}; {operator} takes {kinds}{others}")


def has_4_bits(*factors: Any) -> bool:
    """Whether any of these is data of 4-bit numbers."""
    return any(isinstance(each, torch.Tensor) and each.dtype in FP4 for each in factors)


def ue8m0(
    a: Any,
    b: Any,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    recipes: Recipes,
    out_dtype: torch.dtype | None,
    keeps_fp32: bool = False,
) -> torch.Tensor:
    """A product whose scales are powers of two, in any of the forms they come in."""
    a, sfa, b, sfb, recipe, blocked = unpacked(a, b, recipes)
    if keeps_fp32:
        refuse_fp32(sfa, sfb)
    return call(a, sfa, b, sfb, d, c, recipe, blocked, None, out_dtype)


def refuse_fp32(*scales: Any) -> None:
    """Refuse scales of a and b that would have to be used exactly as they are."""
    for name, sf in zip(("sfa", "sfb"), scales, strict=True):
        if isinstance(sf, torch.Tensor) and sf.dtype == torch.float32:
            raise ValueError(
                f"disable_ue8m0_cast: is True and {name} is torch.float32, but these tensor cores multiply by "
                "powers of two only; leave it out and pass powers of two; requantise_to_ue8m0 makes them"
            )


def unpacked(
    a: Any, b: Any, recipes: Recipes
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int], Sequence[bool]]:
    """Both factors with their scales, what a scale stands for, and whether scales lie in 128x4 blocks."""
    (a, sfa, blocked_a), (b, sfb, blocked_b) = _unpacked("a", a), _unpacked("b", b)
    recipe = granularity(*recipes) or default_granularity(sfa, sfb, blocked_a or blocked_b)
    return a, sfa, b, sfb, recipe, (blocked_a, blocked_b)


def ue4m3(
    a: Any,
    b: Any,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    alpha: float,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """NVFP4: UE4M3 scales of 16, and one number for the whole tensor."""
    (a, sfa, blocked_a), (b, sfb, blocked_b) = _unpacked("a", a), _unpacked("b", b)
    return call(a, sfa, b, sfb, d, c, (1, 16, 1, 16), (blocked_a, blocked_b), alpha, out_dtype)


def call(
    a: torch.Tensor,
    sfa: torch.Tensor,
    b: torch.Tensor,
    sfb: torch.Tensor,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    recipe: Sequence[int],
    blocked: Sequence[bool],
    alpha: float | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """The registered operator, or its implementation when torch's dispatcher has nothing to add."""
    check_tensors(c=c, d=d)
    dtype = output_dtype(d, c, out_dtype)
    tensors = [each for each in (a, sfa, b, sfb, c, d) if each is not None]
    direct = library.is_direct(tensors)
    if d is None and not direct:
        return library.block_scaled_gemm(a, sfa, b, sfb, c, recipe, blocked, alpha, dtype)
    if d is None:
        d = dense_block_scaled.empty(a, b, dtype)
        dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).run()
        return d
    if direct:
        dense_block_scaled.call(a, sfa, b, sfb, c, d, recipe, blocked, alpha).run()
        library.written(d)
    else:
        library.block_scaled_gemm_out(a, sfa, b, sfb, c, recipe, blocked, alpha, d)
    return d


def _unpacked(name: str, value: Any) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Data as the kernels name its type, scales, and whether they lie in 128x4 blocks."""
    data, sf = pair(name, value)
    blocked = isinstance(sf, Blocked128x4)
    sf = sf.scales if isinstance(sf, Blocked128x4) else sf
    check_tensors(**{name: data, f"sf{name}": sf})
    return data.view(torch.int8) if data.dtype == torch.float4_e2m1fn_x2 else data, sf, blocked
