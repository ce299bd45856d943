"""``gemmgen.fuse``: a shipped product with an author's epilogue behind it, as a function of torch tensors.

The operator's own rules choose the tile and read the factors; only what follows the product is new.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from gemmgen.ir import Epilogue
from gemmgen.ops import dense, dense_block_scaled, scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import check_recipe, check_tensors, pair
from gemmgen.ops.dispatch import Dispatcher
from gemmgen.ops.hot_call import named_entry
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import TORCH_DTYPES, check_rank
from gemmgen.ops.tail import fused
from gemmgen.ops.tensor_op import Given, TensorOp, empty_output, host_number

FUSED_OPERATORS = {
    "bf16_gemm_nt": (torch.bfloat16,),
    "fp8_gemm_nt": (torch.float8_e4m3fn,),
    "fp8_fp4_gemm_nt": (torch.float8_e4m3fn, *scaled_call.FP4),
}
"""Products that take an epilogue, and the types of their factors."""


def fuse(operator: str, epilogue: Epilogue) -> FusedOp:
    """A function ``f(a, b, **operands)`` of a product and what follows it; the same arguments give the same function.

    operator: one of ``FUSED_OPERATORS``; ``a`` and ``b`` are what that operator takes, pairs with scales or bf16 views.
    epilogue: its operands are passed by name, tensors in box order, host scalars as numbers.
    """
    if operator not in FUSED_OPERATORS:
        raise ValueError(f"operator: {operator!r} takes no epilogue; use one of {', '.join(FUSED_OPERATORS)}")
    if not isinstance(epilogue, Epilogue):
        raise TypeError(f"epilogue: is a {type(epilogue).__name__}; pass a gemmgen.Epilogue")
    return _fuse(operator, epilogue)


@cache
def _fuse(operator: str, epilogue: Epilogue) -> FusedOp:
    made = FusedOp(operator, epilogue)
    MADE[made.name] = made
    return made


MADE: dict[str, FusedOp] = {}
"""Every one by its registered name: compilers do not look into how specs are made, but they follow a look-up."""


class FusedOp(TensorOp):
    """A product and an epilogue. Outputs are allocated unless they are passed by name, and returned either way."""

    def __init__(self, operator: str, epilogue: Epilogue) -> None:
        self.operator, self.epilogue, self.tail = operator, epilogue, fused(epilogue)
        self.__name__ = self.__qualname__ = f"{operator}_{epilogue.name}"
        self.__doc__ = _document(operator, epilogue)
        self.outputs = self.tail.outputs
        self.inputs = tuple(each.name for each in self.tail.operands if each.name not in self.outputs)
        self.scaled = operator != "bf16_gemm_nt"
        self.factors = ("a", "sfa", "b", "sfb") if self.scaled else ("a", "b")
        self._known = frozenset((*self.inputs, *self.tail.scalars, *self.outputs))
        self.__signature__ = self._signature()
        options = ["int[] recipe", "bool[] blocked"] if self.scaled else []
        self._before = len(self.factors) + len(options)
        tensors = [f"Tensor {each}" for each in (*self.factors, *self.inputs)]
        parameters = [*tensors[: len(self.factors)], *options, *tensors[len(self.factors) :]]
        digest = hashlib.sha256(epilogue.to_json().encode()).hexdigest()[:8]
        self.name = f"{self.__name__}_{digest}"
        self.register(self.name, [*parameters, *(f"float {each}" for each in self.tail.scalars)])
        self._dispatchers: dict[int, Dispatcher] = {}
        after, numbers = tuple(each.name for each in self.tail.operands), self.tail.scalars
        pairs, single = (("a", "b"), after) if self.scaled else ((), ("a", "b", *after))
        self._hot = named_entry(self.apply, self.__signature__, self.__name__, pairs, single, numbers)

    def __call__(self, *positional: Any, **named: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        result: torch.Tensor | tuple[torch.Tensor, ...] = self._hot(*positional, **named)
        return result

    def apply(
        self,
        a: Any,
        b: Any,
        *,
        recipe: Sequence[int] | None = None,
        recipe_a: Sequence[int] | None = None,
        recipe_b: Sequence[int] | None = None,
        **arguments: Any,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A call that is not looked for among those made before: from operators that do so themselves."""
        if not arguments.keys() <= self._known:
            self._refuse_names(arguments)
        values = self._factors(a, b, (recipe, recipe_a, recipe_b))
        inputs = [arguments.get(name) for name in self.inputs]
        numbers = [arguments.get(name) for name in self.tail.scalars]
        if any(each is None for each in (*inputs, *numbers)):
            self._refuse_names(arguments)
        scalars = [host_number(name, number) for name, number in zip(self.tail.scalars, numbers, strict=True)]
        given = [arguments.get(name) for name in self.outputs]
        return self.call((*values, *inputs, *scalars), (*values[: len(self.factors)], *inputs), given)

    def __repr__(self) -> str:
        return f"<gemmgen.fuse {self.__name__}{self.__signature__}>"

    def allocate(self, values: Sequence[Any]) -> Slots:
        """Every output in its shape, uninitialised."""
        a, b = values[0], values[self.factors.index("b")]
        if self.scaled:
            sizes = {"m": dense_block_scaled.rows("a", "m", a), "n": dense_block_scaled.rows("b", "n", b)}
        else:
            sizes = dict(zip("mn", dense.empty(a, b, torch.bfloat16).shape, strict=True))
        by_name = {each.name: each for each in self.tail.operands}
        return tuple([empty_output(by_name[name], sizes, a.device) for name in self.outputs])

    def check_ranks(self, values: Sequence[Any], given: Given) -> None:
        """Refuse what is no tensor of the right number of dimensions."""
        present = {name: tensor for name, tensor in zip(self.outputs, given, strict=True) if tensor is not None}
        present |= dict(zip(self.inputs, values[self._before :], strict=False))
        for operand in self.tail.operands:
            if operand.name in present:
                check_rank(operand, present[operand.name])

    def dispatch(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check everything and launch."""
        if self._is_block_scaled(values):
            self._block_scaled(values, outputs).run()
        else:
            self._dispatcher(values)(
                (*values[: len(self.factors)], *self._after(values, outputs)), self._scalars(values)
            )

    def check(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check what fake tensors have."""
        if self._is_block_scaled(values):
            self._block_scaled(values, outputs).check()
        else:
            self._dispatcher(values).check((*values[: len(self.factors)], *self._after(values, outputs)))

    def _is_block_scaled(self, values: Sequence[Any]) -> bool:
        return self.scaled and (self.operator != "fp8_gemm_nt" or scales_blocks(values[0]))

    def _block_scaled(self, values: Sequence[Any], outputs: Slots) -> dense_block_scaled.Call:
        a, sfa, b, sfb, recipe, blocked = values[: self._before]
        after = self._after(values, outputs)
        return dense_block_scaled.Call(a, sfa, b, sfb, after, recipe, blocked, None, self.tail, self._scalars(values))

    def _dispatcher(self, values: Sequence[Any]) -> Dispatcher:
        """The dispatcher of products that scale on the way, or not at all; one for each granularity of b's scales."""
        columns = dense.scale_columns(values[2], values[3]) if self.scaled else 0
        if columns not in self._dispatchers:
            tail = self.tail
            self._dispatchers[columns] = dense.fp8_dispatcher(columns, tail) if columns else dense.bf16_dispatcher(tail)
        return self._dispatchers[columns]

    def _after(self, values: Sequence[Any], outputs: Slots) -> Slots:
        """The tensors that follow the factors, in the order of the epilogue's operands."""
        inputs = iter(values[self._before :])
        written = dict(zip(self.outputs, outputs, strict=True))
        return tuple([written[each.name] if each.name in written else next(inputs) for each in self.tail.operands])

    def _scalars(self, values: Sequence[Any]) -> tuple[float, ...]:
        return tuple(values[self._before + len(self.inputs) :])

    def _factors(self, a: Any, b: Any, recipes: scaled_call.Recipes) -> tuple[Any, ...]:
        """Factors and their scales, with what the scales stand for."""
        if not self.scaled:
            if any(each is not None for each in recipes):
                raise TypeError(f"recipe: {self.operator} has no scales; leave it out")
            check_tensors(a=a, b=b)
            return a, b
        (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
        check_tensors(a=a_data, b=b_data)
        scaled_call.check_types(self.operator, a_data, b_data, FUSED_OPERATORS[self.operator])
        if self.operator != "fp8_gemm_nt" or scales_blocks(a_data):
            return scaled_call.unpacked(a, b, recipes)
        check_tensors(sfa=sfa, sfb=sfb)
        if any(each is not None for each in recipes):
            check_recipe(b_data, sfb, *recipes)
        return a_data, sfa, b_data, sfb, [], []

    def _refuse_names(self, arguments: dict[str, Any]) -> None:
        for name in (*self.inputs, *self.tail.scalars):
            if arguments.get(name) is None:
                raise TypeError(f"{name}: missing; {self.__name__} takes {self.__signature__}")
        unknown = next(name for name in arguments if name not in self._known)
        raise TypeError(f"{unknown}: unknown argument; {self.__name__} takes {self.__signature__}")

    def _signature(self) -> inspect.Signature:
        empty, only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("a", "b")]
        for each in self.epilogue.operands:
            written = each.name in self.outputs
            kind = float if each.is_scalar else torch.Tensor | None if written else torch.Tensor
            parameters.append(inspect.Parameter(each.name, only, default=None if written else empty, annotation=kind))
        if self.scaled:
            for name in ("recipe", "recipe_a", "recipe_b"):
                parameters.append(inspect.Parameter(name, only, default=None, annotation=Sequence[int] | None))
        returned = torch.Tensor if len(self.outputs) == 1 else tuple[torch.Tensor, ...]
        return inspect.Signature(parameters, return_annotation=returned)


def _document(operator: str, epilogue: Epilogue) -> str:
    lines = [f"{operator} followed by {', '.join(step.kind for step in epilogue.steps)}.", "", f"a, b: as {operator}."]
    for each in epilogue.operands:
        what = f"a number ({each.dtype})" if each.is_scalar else f"{TORCH_DTYPES[each.dtype]} [{', '.join(each.box)}]"
        lines.append(f"{each.name}: {what}{'; allocated when left out' if each.name in epilogue.outputs else ''}")
    return "\n".join(lines) + "\n"
