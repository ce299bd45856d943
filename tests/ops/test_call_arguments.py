"""Arguments beside the tensors, which dense and grouped operators read alike: refused by the name they came by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import fp8_problem

import gemmgen
from gemmgen import ops

GOOD = fp8_problem(8, 16, 256)
GROUP_IDS = torch.zeros(8, dtype=torch.int32)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_an_output_type_is_refused_by_the_name_it_came_by(arch: str, dtype: torch.dtype) -> None:
    rule = f"{dtype}; must be one of torch.bfloat16, torch.float32$"
    group = (GOOD.b[None], GOOD.sfb[None])
    with gemmgen.simulate(arch):
        with pytest.raises(TypeError, match=rf"^out_dtype: is {rule}"):
            ops.fp8_gemm_nt(*GOOD.pairs, out_dtype=dtype)
        with pytest.raises(TypeError, match=rf"^out_dtype: is {rule}"):
            ops.m_grouped_fp8_gemm_nt_contiguous(GOOD.pairs[0], group, None, GROUP_IDS, out_dtype=dtype)
        with pytest.raises(TypeError, match=rf"^c: dtype is {rule}"):
            ops.fp8_gemm_nt(*GOOD.pairs, c=torch.zeros(8, 16).to(dtype))


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize(
    ("recipes", "text"),
    [
        ({"recipe": 128}, r"^recipe: is 128; must be a tuple of 3 whole numbers .*; pass recipe=\(1, 128, 128\), or "),
        ({"recipe": (1.0, 128, 128)}, r"^recipe: is \(1\.0, 128, 128\); must be a tuple of 3 whole numbers "),
        ({"recipe": "abc"}, r"^recipe: is 'abc'; must be a tuple"),
        (
            {"recipe_a": (1, 128), "recipe_b": 5},
            r"^recipe_b: is 5; must be a tuple of 2 whole numbers \(rows, elements ",
        ),
        (
            {"recipe_a": (1, None), "recipe_b": (1, 128)},
            r"^recipe_a: is \(1, None\); must be a tuple of 2 .*=\(1, 128\)",
        ),
    ],
)
def test_recipes_that_are_no_whole_numbers(arch: str, recipes: dict[str, Any], text: str) -> None:
    group = (GOOD.b[None], GOOD.sfb[None])
    with gemmgen.simulate(arch):
        with pytest.raises(TypeError, match=text):
            ops.fp8_gemm_nt(*GOOD.pairs, **recipes)
        with pytest.raises(TypeError, match=text):
            ops.m_grouped_fp8_gemm_nt_contiguous(GOOD.pairs[0], group, None, GROUP_IDS, **recipes)
