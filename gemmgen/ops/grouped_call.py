"""Calls of row groups: what callers state about groups and scales becomes one operator's call, or one made before.

Knows argument conventions; what fits together is judged in ``grouped_op``.
"""

from __future__ import annotations

import torch

from gemmgen.ops import scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import Pair, Recipe, check_tensors, output_dtype, pair
from gemmgen.ops.finish import finished
from gemmgen.ops.grouped_op import MADE_GROUPED, plain_name
from gemmgen.ops.groups import Groups
from gemmgen.ops.hot_call import hot


@hot(pairs=("a", "b"), tensors=("d", "layout", "bias"))
def scaled(
    a: Pair,
    b: Pair,
    d: torch.Tensor | None,
    layout: torch.Tensor,
    operator: str,
    groups: Groups,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
    disable_ue8m0_cast: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """d of every group = (a * sfa) . (b * sfb)^T, and what it is finished with; factors decide which kernels serve."""
    (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
    if disable_ue8m0_cast and scales_blocks(a_data):
        scaled_call.refuse_fp32(sfa, sfb)
    check_tensors(a=a_data, b=b_data, d=d)
    if scaled_call.has_4_bits(a_data, b_data):
        operator = operator.replace("fp8_gemm", "fp8_fp4_gemm")
    elif a_data.dtype == b_data.dtype == torch.float8_e4m3fn:
        operator = operator.replace("fp8_fp4", "fp8")
    if bias is not None or activation is not None or gate is not None:
        recipes, placed = (recipe, recipe_a, recipe_b), (layout, groups)
        return finished(operator, a, b, d, None, out_dtype, (bias, activation, gate), recipes, placed)
    run = MADE_GROUPED[plain_name(operator, output_dtype(d, None, out_dtype))].apply
    result = run(a, b, layout, groups, d=d, recipe=recipe, recipe_a=recipe_a, recipe_b=recipe_b)
    assert isinstance(result, torch.Tensor)
    return result


@hot(tensors=("a", "b", "d", "layout", "bias"))
def bf16(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor | None,
    layout: torch.Tensor,
    operator: str,
    groups: Groups,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gate: str | None = None,
) -> torch.Tensor:
    """d of every group = a . b^T, and what it is finished with."""
    check_tensors(a=a, b=b, d=d)
    if bias is not None or activation is not None or gate is not None:
        finish = bias, activation, gate
        return finished(operator, a, b, d, None, out_dtype, finish, placed=(layout, groups))
    run = MADE_GROUPED[plain_name(operator, output_dtype(d, None, out_dtype))].apply
    result = run(a, b, layout, groups, d=d)
    assert isinstance(result, torch.Tensor)
    return result


@hot(pairs=("a", "b"), tensors=("d_fp8", "d_sf", "layout"))
def quantised(
    a: Pair,
    b: Pair,
    d_fp8: torch.Tensor | None,
    d_sf: torch.Tensor | None,
    layout: torch.Tensor,
    operator: str,
    groups: Groups,
    recipe: Recipe | None = None,
    recipe_a: Recipe | None = None,
    recipe_b: Recipe | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both outputs of an operator that quantises, by its registered name."""
    run = MADE_GROUPED[operator].apply
    outputs = run(a, b, layout, groups, d_fp8=d_fp8, d_sf=d_sf, recipe=recipe, recipe_a=recipe_a, recipe_b=recipe_b)
    assert isinstance(outputs, tuple)
    return outputs[0], outputs[1]
