"""``gemmgen.op``: any spec as a function of torch tensors, registered with ``torch.library`` for compilers to see.

Knows specs and dispatchers; the shipped operators with their own argument conventions are in ``dense``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from gemmgen.ir import AnySpec, KernelSpec, LayoutSpec, Operand
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.hot_call import named_entry
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import TORCH_DTYPES, Tensors, check_rank
from gemmgen.ops.relayout import empty_destination
from gemmgen.ops.tensor_op import Given, TensorOp, empty_output, host_number
from gemmgen.runtime.kernel_text import Target


def op(spec: AnySpec) -> SpecOp:
    """A function of the spec's operands by name: ``d = op(spec)(a=a, b=b)``; the same spec gives the same function."""
    if not isinstance(spec, AnySpec):
        raise TypeError(f"spec: is a {type(spec).__name__}; pass a gemmgen.KernelSpec or a gemmgen.LayoutSpec")
    return _op(spec)


@cache
def _op(spec: AnySpec) -> SpecOp:
    return SpecOp(spec)


class SpecOp(TensorOp):
    """Calls one spec's kernel. Tensors are passed by name in box order, host scalars as numbers.

    Outputs are allocated unless they are passed by name, and returned either way: one as a tensor, several as a tuple.
    """

    def __init__(self, spec: AnySpec) -> None:
        kernel_of(spec)  # refuses now what can never be lowered
        self.spec = spec
        self.__name__ = self.__qualname__ = spec.name
        self.__doc__ = _document(spec)
        self.__signature__ = _signature(spec)
        self.outputs = tuple(each.name for each in spec.outputs)
        self._adds = isinstance(spec, KernelSpec) and spec.accumulates
        self.tensors = tuple(each for each in spec.operands if not each.is_scalar)
        self.inputs = tuple(each.name for each in self.tensors if each.name not in self.outputs)
        self.scalars = tuple(each.name for each in spec.operands if each.is_scalar)
        choice = Choice(spec)

        def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
            return choice

        gated = isinstance(spec, KernelSpec) and spec.gate is not None
        self.dispatcher = Dispatcher(self.tensors, self.outputs, self.scalars, choose, gated=gated)
        digest = hashlib.sha256(spec.to_json().encode()).hexdigest()[:8]
        parameters = [f"Tensor {each}" for each in self.inputs] + [f"float {each}" for each in self.scalars]
        self.register(f"{spec.name}_{digest}", parameters)
        tensors = tuple(each.name for each in self.tensors)
        self._hot = named_entry(self.apply, self.__signature__, spec.name, (), tensors, self.scalars)

    def __call__(self, **arguments: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        result: torch.Tensor | tuple[torch.Tensor, ...] = self._hot(**arguments)
        return result

    def apply(self, **arguments: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A call that is not looked for among those made before."""
        self._check_names(arguments)
        if self._adds and arguments.get(self.outputs[0]) is None:
            raise TypeError(
                f"{self.outputs[0]}: missing; {self.__name__} adds to what it holds, so pass the tensor to add to"
            )
        inputs = tuple([arguments[name] for name in self.inputs])
        scalars = tuple([host_number(name, arguments[name]) for name in self.scalars])
        given = tuple([arguments.get(name) for name in self.outputs])
        return self.call((*inputs, *scalars), inputs, given)

    def __repr__(self) -> str:
        return f"<gemmgen.op {self.spec.name}{self.__signature__}>"

    def check_ranks(self, values: Sequence[Any], given: Given) -> None:
        """Refuse what is no tensor of the right number of dimensions."""
        tensors = (*values[: len(self.inputs)], *given)
        for name, tensor in zip((*self.inputs, *self.outputs), tensors, strict=True):
            if tensor is not None:
                check_rank(self.spec.operand(name), tensor)

    def dispatch(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check everything and launch."""
        count = len(self.inputs)
        self.dispatcher(self.slots(tuple(values[:count]), outputs), tuple(values[count:]))

    def check(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check what fake tensors have."""
        self.dispatcher.check(self.slots(tuple(values[: len(self.inputs)]), outputs))

    def allocate(self, values: Sequence[Any]) -> Slots:
        """Every output in its shape, uninitialised."""
        inputs = tuple(values[: len(self.inputs)])
        for name, tensor in zip(self.inputs, inputs, strict=True):
            check_rank(self.spec.operand(name), tensor)
        if isinstance(self.spec, LayoutSpec):
            return (empty_destination(self.spec, inputs[0]),)
        operands = [self.spec.operand(name) for name in self.inputs]
        axes = {axis for operand in self.spec.outputs for axis in operand.axes}
        sizes = dict([_size(operands, inputs, axis) for axis in sorted(axes | {"m", "n"})])
        return tuple([empty_output(operand, sizes, inputs[0].device) for operand in self.spec.outputs])

    def slots(self, inputs: Slots, outputs: Slots) -> Slots:
        """Inputs and outputs in the order of the spec's operands."""
        tensors = iter(inputs)
        written = dict(zip(self.outputs, outputs, strict=True))
        return tuple([written[each.name] if each.name in written else next(tensors) for each in self.tensors])

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        for name in (*self.inputs, *self.scalars):
            if arguments.get(name) is None:
                raise TypeError(f"{name}: missing; {self.spec.name} takes {_signature(self.spec)}")
        for name in arguments:
            if name not in (*self.inputs, *self.scalars, *self.outputs):
                raise TypeError(f"{name}: unknown argument; {self.spec.name} takes {_signature(self.spec)}")


def _size(operands: Sequence[Operand], inputs: Slots, axis: str) -> tuple[str, int]:
    """The extent of an axis, from an input that has one element per element of it."""
    found = next((pair for pair in zip(operands, inputs, strict=True) if axis in pair[0].box), None)
    if found is None:
        raise TypeError(f"outputs: no input says how many {axis!r} there are; pass the outputs, too")
    operand, tensor = found
    size = tensor.shape[operand.box.index(axis)]
    return axis, size * (operand.dtype.packed if axis == operand.inner else 1)


def _signature(spec: AnySpec) -> inspect.Signature:
    empty, only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for each in spec.operands:
        written = each in spec.outputs
        kind = float if each.is_scalar else torch.Tensor | None if written else torch.Tensor
        parameters.append(inspect.Parameter(each.name, only, default=None if written else empty, annotation=kind))
    returned = torch.Tensor if len(spec.outputs) == 1 else tuple[torch.Tensor, ...]
    return inspect.Signature(parameters, return_annotation=returned)


def _document(spec: AnySpec) -> str:
    lines = [f"{spec.name}: generated kernel for {spec.arch}.", ""]
    for each in spec.operands:
        what = f"a number ({each.dtype})" if each.is_scalar else f"{TORCH_DTYPES[each.dtype]} [{', '.join(each.box)}]"
        lines.append(f"{each.name}: {what}{'; allocated when left out' if each in spec.outputs else ''}")
    return "\n".join(lines) + "\n"
