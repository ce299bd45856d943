"""``gemmgen.op``: any spec as a function of torch tensors, registered with ``torch.library`` for compilers to see.

Knows specs and dispatchers; the shipped operators with their own argument conventions are in ``dense``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from gemmgen.ir import AnySpec, LayoutSpec, Operand
from gemmgen.ops import library
from gemmgen.ops.dispatch import Choice, Dispatcher
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.problem import TORCH_DTYPES, Tensors, check_rank
from gemmgen.ops.relayout import empty_destination
from gemmgen.runtime.kernel_text import Target


def op(spec: AnySpec) -> SpecOp:
    """A function of the spec's operands by name: ``d = op(spec)(a=a, b=b)``; the same spec gives the same function."""
    if not isinstance(spec, AnySpec):
        raise TypeError(f"spec: is a {type(spec).__name__}; pass a gemmgen.KernelSpec or a gemmgen.LayoutSpec")
    return _op(spec)


@cache
def _op(spec: AnySpec) -> SpecOp:
    return SpecOp(spec)


class SpecOp:
    """Calls one spec's kernel. Tensors are passed by name in box order, host scalars as numbers.

    The output is allocated unless it is passed by its name, and is returned either way.
    """

    def __init__(self, spec: AnySpec) -> None:
        kernel_of(spec)  # refuses now what can never be lowered
        self.spec = spec
        self.__name__ = self.__qualname__ = spec.name
        self.__doc__ = _document(spec)
        self.__signature__ = _signature(spec)
        self.output = spec.output.name
        self.tensors = tuple(each for each in spec.operands if not each.is_scalar)
        self.inputs = tuple(each.name for each in self.tensors if each.name != self.output)
        self.scalars = tuple(each.name for each in spec.operands if each.is_scalar)
        choice = Choice(spec)

        def choose(tensors: Tensors, sizes: Mapping[str, int], target: Target) -> Choice:
            return choice

        self.dispatcher = Dispatcher(self.tensors, self.output, self.scalars, choose)
        self._out, self._functional = library.register_spec(self)

    def __call__(self, **arguments: Any) -> torch.Tensor:
        self._check_names(arguments)
        inputs = tuple([arguments[name] for name in self.inputs])
        scalars = tuple([_number(name, arguments[name]) for name in self.scalars])
        d = arguments.get(self.output)
        if library.is_direct(inputs if d is None else (*inputs, d)):
            return self.run(inputs, scalars, d)
        for name, tensor in zip(self.inputs, inputs, strict=True):
            check_rank(self.spec.operand(name), tensor)
        if d is None:
            return self._functional(*inputs, *scalars)
        check_rank(self.spec.output, d)
        self._out(*inputs, *scalars, d)
        return d

    def __repr__(self) -> str:
        return f"<gemmgen.op {self.spec.name}{self.__signature__}>"

    def run(self, inputs: tuple[torch.Tensor, ...], scalars: tuple[float, ...], d: torch.Tensor | None) -> torch.Tensor:
        """Call the kernel on real tensors."""
        output = self.allocate(inputs) if d is None else d
        self.dispatcher(self.slots(inputs, output), scalars)
        if d is not None:
            library.written(d)
        return output

    def allocate(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """An output of the right shape, uninitialised."""
        for name, tensor in zip(self.inputs, inputs, strict=True):
            check_rank(self.spec.operand(name), tensor)
        if isinstance(self.spec, LayoutSpec):
            return empty_destination(self.spec, inputs[0])
        (row_of, row_dim), (column_of, column_dim) = (_where(self.tensors, axis, self.output) for axis in ("m", "n"))
        shape = (inputs[row_of].shape[row_dim], inputs[column_of].shape[column_dim])
        return torch.empty(shape, dtype=TORCH_DTYPES[self.spec.output.dtype], device=inputs[0].device)

    def slots(self, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Inputs and output in the order of the spec's operands."""
        tensors = iter(inputs)
        return tuple([output if each.name == self.output else next(tensors) for each in self.tensors])

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        for name in (*self.inputs, *self.scalars):
            if arguments.get(name) is None:
                raise TypeError(f"{name}: missing; {self.spec.name} takes {_signature(self.spec)}")
        for name in arguments:
            if name not in self.inputs and name not in self.scalars and name != self.output:
                raise TypeError(f"{name}: unknown argument; {self.spec.name} takes {_signature(self.spec)}")


def _where(operands: tuple[Operand, ...], axis: str, output: str) -> tuple[int, int]:
    """Which input, and which of its dimensions, has one element per element of an axis."""
    inputs = [each for each in operands if each.name != output]
    return next((at, each.box.index(axis)) for at, each in enumerate(inputs) if axis in each.box)


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor | bool) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{name}: is a {type(value).__name__}; a host scalar is passed as a number, so pass float({name}) "
            "(of a CUDA tensor that waits for the GPU) or make the operand a vector"
        )
    return float(value)


def _signature(spec: AnySpec) -> inspect.Signature:
    empty, only = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for each in spec.operands:
        written = each.name == spec.output.name
        kind = float if each.is_scalar else torch.Tensor | None if written else torch.Tensor
        parameters.append(inspect.Parameter(each.name, only, default=None if written else empty, annotation=kind))
    return inspect.Signature(parameters, return_annotation=torch.Tensor)


def _document(spec: AnySpec) -> str:
    lines = [f"{spec.name}: generated kernel for {spec.arch}.", ""]
    for each in spec.operands:
        what = f"a number ({each.dtype})" if each.is_scalar else f"{TORCH_DTYPES[each.dtype]} [{', '.join(each.box)}]"
        lines.append(f"{each.name}: {what}{'; allocated when left out' if each.name == spec.output.name else ''}")
    return "\n".join(lines) + "\n"
