"""Calls of dense products: checks Python-level arguments and takes the way around torch's dispatcher if it may.

Knows argument conventions; what fits together is judged in ``dense``.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmgen.ops import dense, library, scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import check_compiled_dims, check_recipe, check_tensors, output_dtype, pair
from gemmgen.ops.finish import Finish, finished


def fp8(
    a: Any,
    b: Any,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    recipes: scaled_call.Recipes,
    compiled_dims: str,
    disable_ue8m0_cast: bool,
    out_dtype: torch.dtype | None,
    finish: Finish = (None, None, None),
) -> torch.Tensor:
    """d = (a * sfa) . (b * sfb)^T (+ c), and what it is finished with; 4-bit factors, too, where tensor cores scale."""
    (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
    check_compiled_dims(compiled_dims)
    scaling, four = scales_blocks(a_data), scaled_call.has_4_bits(a_data, b_data)
    if any(each is not None for each in finish):
        if disable_ue8m0_cast and scaling:
            scaled_call.refuse_fp32(sfa, sfb)
        return finished("fp8_fp4_gemm_nt" if four else "fp8_gemm_nt", a, b, d, c, out_dtype, finish, recipes)
    if scaling or four:  # which no other architecture multiplies, as is said there
        check_tensors(a=a_data, b=b_data)
        scaled_call.check_types("fp8_gemm_nt", a_data, b_data, scaled_call.FP8_OR_FP4)
        return scaled_call.ue8m0(a, b, d, c, recipes, out_dtype, keeps_fp32=disable_ue8m0_cast and scaling)
    if any(each is not None for each in recipes):
        check_tensors(b=b_data, sfb=sfb)
        check_recipe(b_data, sfb, *recipes)
    check_tensors(a=a_data, sfa=sfa, b=b_data, sfb=sfb, c=c, d=d)
    dtype = output_dtype(d, c, out_dtype)
    direct = library.is_direct([each for each in (a_data, sfa, b_data, sfb, c, d) if each is not None])
    if d is None:
        if direct:
            return dense.fp8_gemm(a_data, sfa, b_data, sfb, c, dense.empty(a_data, b_data, dtype))
        return library.fp8_gemm_nt(a_data, sfa, b_data, sfb, c, dtype)
    if direct:
        dense.fp8_gemm(a_data, sfa, b_data, sfb, c, d)
        library.written(d)
    else:
        library.fp8_gemm_nt_out(a_data, sfa, b_data, sfb, c, d)
    return d


def bf16(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    compiled_dims: str,
    out_dtype: torch.dtype | None,
    finish: Finish = (None, None, None),
) -> torch.Tensor:
    """d = a . b^T (+ c), and what it is finished with."""
    check_compiled_dims(compiled_dims)
    if any(each is not None for each in finish):
        return finished("bf16_gemm_nt", a, b, d, c, out_dtype, finish)
    check_tensors(a=a, b=b, c=c, d=d)
    dtype = output_dtype(d, c, out_dtype)
    direct = library.is_direct([each for each in (a, b, c, d) if each is not None])
    if d is None:
        if direct:
            return dense.bf16_gemm(a, b, c, dense.empty(a, b, dtype))
        return library.bf16_gemm_nt(a, b, c, dtype)
    if direct:
        dense.bf16_gemm(a, b, c, d)
        library.written(d)
    else:
        library.bf16_gemm_nt_out(a, b, c, d)
    return d
