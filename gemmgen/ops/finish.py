"""``bias``, ``activation`` and ``gate`` of the plain products: the epilogue they ask for, behind their product.

Knows arguments and epilogues; the chain is one that anybody could pass to ``fuse``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import torch

from gemmgen.catalog import ACTIVATIONS, finished_output
from gemmgen.ir import Gate
from gemmgen.ops import scaled_call, tail
from gemmgen.ops.call_arguments import output_dtype
from gemmgen.ops.fused_op import MADE, fuse
from gemmgen.ops.grouped_op import MADE_GROUPED

Finish = tuple[torch.Tensor | None, str | None, str | None]
"""Bias, activation and gate."""
GATES: tuple[str, ...] = get_args(Gate.model_fields["layout"].annotation)


def finished(
    operator: str,
    a: Any,
    b: Any,
    d: torch.Tensor | None,
    c: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    finish: Finish,
    recipes: scaled_call.Recipes = (None, None, None),
    placed: tuple[Any, ...] = (),
) -> torch.Tensor:
    """``d = activation(a . b^T (+ bias) (+ c))``, or ``activation(gate) * up`` of its columns, in one launch.

    ``placed`` is what the operator takes behind b: the layout of groups, and what it holds.
    """
    bias, activation, gate = finish
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(
            f"activation: {activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}, or gemmgen.fuse with Apply"
        )
    if gate is not None and gate not in GATES:
        raise ValueError(f"gate: {gate!r} is no order of gate and up in b's rows; use one of {', '.join(GATES)}")
    if gate is not None and c is not None:
        raise ValueError(
            "c: comes with gate, where it could be added before or after; leave it out, or say where with gemmgen.fuse"
        )
    if bias is not None and not isinstance(bias, torch.Tensor):
        raise TypeError(f"bias: is a {type(bias).__name__}; must be a torch.Tensor")
    dtype = output_dtype(d, c, out_dtype)
    name = _name(operator, dtype, c is not None, None if bias is None else bias.dtype, activation, gate)
    given = {"c": c, "bias": bias, "d": d}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    recipe, recipe_a, recipe_b = recipes
    run: Callable[..., Any] = MADE_GROUPED[name].apply if placed else MADE[name].apply
    result = run(a, b, *placed, recipe=recipe, recipe_a=recipe_a, recipe_b=recipe_b, **tensors)
    assert isinstance(result, torch.Tensor)
    return result


def _name(*choices: Any) -> str:
    return _fused(*choices)


_name = torch.compiler.assume_constant_result(_name)  # compilers do not look into how specs are made


@cache
def _fused(
    operator: str, d: torch.dtype, residual: bool, bias: torch.dtype | None, activation: str | None, gate: str | None
) -> str:
    if bias is not None and bias not in tail.OUTPUTS:
        raise TypeError(f"bias: dtype is {bias}; must be one of {', '.join(map(str, tail.OUTPUTS))}")
    kind = None if bias is None else tail.OUTPUTS[bias]
    return fuse(operator, finished_output(tail.output_dtype(d), residual, kind, activation, gate)).name
