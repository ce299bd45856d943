"""What operators that are a product and what follows it share: factors and scales, epilogues' operands, dispatchers.

Knows argument conventions of products; the operator's own rules choose the tile and read the factors.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from gemmgen.ir import Epilogue, Operand
from gemmgen.ops import scaled_call
from gemmgen.ops.architecture import scales_blocks
from gemmgen.ops.call_arguments import check_recipe, check_tensors, pair
from gemmgen.ops.hot_call import named_entry
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import TORCH_DTYPES, check_rank
from gemmgen.ops.tail import Tail
from gemmgen.ops.tensor_op import Given, TensorOp, host_number

DENSE_TYPES = {
    "bf16_gemm_nt": (torch.bfloat16,),
    "fp8_gemm_nt": (torch.float8_e4m3fn,),
    "fp8_fp4_gemm_nt": (torch.float8_e4m3fn, *scaled_call.FP4),
}
"""Dense products that take an epilogue, and the types of their factors."""


TAKEN = frozenset(("a", "b", "recipe", "recipe_a", "recipe_b"))
"""What products take themselves."""


def check_names(operator: str, epilogue: Epilogue, scaled: bool, also: Container[str] = ()) -> None:
    """Refuse an operand that could not be told from what the product takes: ``also`` are others than every one does."""
    scales = ("sfa", "sfb") if scaled else ()
    for each in epilogue.operands:
        if each.name in TAKEN or each.name in scales or each.name in also:
            raise ValueError(
                f"epilogue: {epilogue.name!r} has an operand {each.name!r}, which {operator} takes itself; give it "
                "another name"
            )


def digest(epilogue: Epilogue) -> str:
    """Tells epilogues of one name apart."""
    return hashlib.sha256(epilogue.to_json().encode()).hexdigest()[:8]


def followed(operator: str, epilogue: Epilogue) -> str:
    """What the operator of an epilogue does, in a line."""
    return f"{operator} followed by {', '.join(step.kind for step in epilogue.steps)}."


class ProductOp(TensorOp):
    """A product and a tail. Outputs are allocated unless they are passed by name, and returned either way.

    ``values`` are factors, other tensors that the product reads (``placed``), what scales stand for, other options of
    the product, then the tail's inputs and numbers.
    """

    __signature__: inspect.Signature
    placed: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """As the schema declares them."""

    def __init__(
        self,
        operator: str,
        dtypes: tuple[torch.dtype, ...],
        tail: Tail,
        operands: tuple[Operand, ...],
        name: str,
        registered: str,
    ) -> None:
        self.operator, self.dtypes, self.tail, self.operands = operator, dtypes, tail, operands
        self.name = registered
        self.__name__ = self.__qualname__ = name
        self.outputs = tail.outputs
        self.inputs = tuple(each.name for each in tail.operands if each.name not in self.outputs)
        self.scaled = torch.bfloat16 not in dtypes
        self.exact = torch.int8 not in dtypes
        """Whether there are no 4-bit numbers, so that scales may be fp32 ones that no tensor core applies."""
        self.factors = (*(("a", "sfa", "b", "sfb") if self.scaled else ("a", "b")), *self.placed)
        self._known = frozenset((*self.inputs, *tail.scalars, *self.outputs))
        options = [*(["int[] recipe", "bool[] blocked"] if self.scaled else []), *self.options]
        self._before = len(self.factors) + len(options)
        tensors = [f"Tensor {each}" for each in (*self.factors, *self.inputs)]
        parameters = [*tensors[: len(self.factors)], *options, *tensors[len(self.factors) :]]
        self.register(registered, [*parameters, *(f"float {each}" for each in tail.scalars)])

    def repeated(self, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        """The function behind one that looks for calls that were made before."""
        after = (*self.placed, *(each.name for each in self.tail.operands))
        pairs, single = (("a", "b"), after) if self.scaled else ((), ("a", "b", *after))
        return named_entry(function, signature, self.__name__, pairs, single, self.tail.scalars)

    def applied(
        self, factors: tuple[Any, ...], options: tuple[Any, ...], arguments: dict[str, Any]
    ) -> torch.Tensor | Slots:
        """A call with these factors and options, and the tail's operands by name."""
        if not arguments.keys() <= self._known:
            self._refuse_names(arguments)
        inputs = [arguments.get(name) for name in self.inputs]
        numbers = [arguments.get(name) for name in self.tail.scalars]
        if any(each is None for each in (*inputs, *numbers)):
            self._refuse_names(arguments)
        scalars = [host_number(name, number) for name, number in zip(self.tail.scalars, numbers, strict=True)]
        given = [arguments.get(name) for name in self.outputs]
        return self.call((*factors, *options, *inputs, *scalars), (*factors, *inputs), given)

    def check_ranks(self, values: Sequence[Any], given: Given) -> None:
        """Refuse what is no tensor of the right number of dimensions."""
        present = {name: tensor for name, tensor in zip(self.outputs, given, strict=True) if tensor is not None}
        present |= dict(zip(self.inputs, values[self._before :], strict=False))
        for operand in self.tail.operands:
            if operand.name in present:
                check_rank(operand, present[operand.name])

    def is_block_scaled(self, values: Sequence[Any]) -> bool:
        """Whether tensor cores apply the scales."""
        return self.scaled and (not self.exact or scales_blocks(values[0]))

    def after(self, values: Sequence[Any], outputs: Slots) -> Slots:
        """The tensors that follow the factors, in the order of the tail's operands."""
        inputs = iter(values[self._before :])
        written = dict(zip(self.outputs, outputs, strict=True))
        return tuple([written[each.name] if each.name in written else next(inputs) for each in self.tail.operands])

    def scalars(self, values: Sequence[Any]) -> tuple[float, ...]:
        """The tail's numbers."""
        return tuple(values[self._before + len(self.inputs) :])

    def read(self, a: Any, b: Any, recipes: scaled_call.Recipes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Factors and their scales, and what the scales stand for."""
        if not self.scaled:
            if any(each is not None for each in recipes):
                raise TypeError(f"recipe: {self.operator} has no scales; leave it out")
            check_tensors(a=a, b=b)
            return (a, b), ()
        (a_data, sfa), (b_data, sfb) = pair("a", a), pair("b", b)
        check_tensors(a=a_data, b=b_data)
        scaled_call.check_types(self.operator, a_data, b_data, self.dtypes)
        if not self.exact or scales_blocks(a_data):
            *factors, recipe, blocked = scaled_call.unpacked(a, b, recipes)
            return tuple(factors), (recipe, blocked)
        check_tensors(sfa=sfa, sfb=sfb)
        if any(each is not None for each in recipes):
            check_recipe(b_data, sfb, *recipes)
        return (a_data, sfa, b_data, sfb), ([], [])

    def _refuse_names(self, arguments: dict[str, Any]) -> None:
        for name in (*self.inputs, *self.tail.scalars):
            if arguments.get(name) is None:
                raise TypeError(f"{name}: missing; {self.__name__} takes {self.__signature__}")
        unknown = next(name for name in arguments if name not in self._known)
        raise TypeError(f"{unknown}: unknown argument; {self.__name__} takes {self.__signature__}")

    def keywords(self) -> list[inspect.Parameter]:
        """The tail's operands, and recipes of what is scaled, as a signature has them."""
        empty, only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
        parameters = []
        for each in self.operands:
            written = each.name in self.outputs
            kind = float if each.is_scalar else torch.Tensor | None if written else torch.Tensor
            parameters.append(inspect.Parameter(each.name, only, default=None if written else empty, annotation=kind))
        if self.scaled:
            for name in ("recipe", "recipe_a", "recipe_b"):
                parameters.append(inspect.Parameter(name, only, default=None, annotation=Sequence[int] | None))
        return parameters

    def signature(self, parameters: Sequence[inspect.Parameter]) -> inspect.Signature:
        """Of a call with these parameters."""
        returned = torch.Tensor if len(self.outputs) == 1 else tuple[torch.Tensor, ...]
        return inspect.Signature(parameters, return_annotation=returned)

    def document(self) -> str:
        """What the operands are, a line each."""
        lines = []
        for each in self.operands:
            number, shape = f"a number ({each.dtype})", f"{TORCH_DTYPES[each.dtype]} [{', '.join(each.box)}]"
            allocated = "; allocated when left out" if each.name in self.outputs else ""
            lines.append(f"{each.name}: {number if each.is_scalar else shape}{allocated}")
        return "\n".join(lines) + "\n"


def named(*names: str) -> list[inspect.Parameter]:
    """Parameters that are passed by position or by name."""
    return [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]


def optional(**defaults: Any) -> list[inspect.Parameter]:
    """Parameters that are passed by name, or left at a default."""
    return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each) for name, each in defaults.items()]
