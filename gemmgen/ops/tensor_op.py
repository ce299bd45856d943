"""What operators that are made at run time share: outputs that may be left out, and both of their registered forms.

Knows tensors and ``torch.library``; what is computed is the business of the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gemmgen.ir import Operand
from gemmgen.ops import library
from gemmgen.ops.launch import Slots
from gemmgen.ops.problem import TORCH_DTYPES, check_writable
from gemmgen.runtime.arguments import expected_shape

Given = Sequence[torch.Tensor | None]
"""Outputs that were passed, and None for those to allocate."""


class TensorOp:
    """``values`` are what the registered operator takes, in the order of its schema, without outputs."""

    outputs: tuple[str, ...]
    """Names of what is written, the stored output first."""

    def allocate(self, values: Sequence[Any]) -> Slots:
        """Every output in its shape, uninitialised."""
        raise NotImplementedError

    def dispatch(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check everything and launch."""
        raise NotImplementedError

    def check(self, values: Sequence[Any], outputs: Slots) -> None:
        """Check what fake tensors have."""
        raise NotImplementedError

    def check_ranks(self, values: Sequence[Any], given: Given) -> None:
        """Refuse what is no tensor of the right number of dimensions, before torch's dispatcher sees it."""
        raise NotImplementedError

    def register(self, name: str, parameters: Sequence[str]) -> None:
        """Define the form that returns new tensors and the one that writes to given ones.

        Where a call may give some outputs and not others, a third one makes the others.
        """
        none = (None,) * len(self.outputs)
        split = len(parameters)

        def functional(*values: Any) -> Any:
            return self.returned(self.run(values, none))

        def out(*values: Any) -> None:
            self.run(values[:split], values[split:])

        def missing(*values: Any) -> list[torch.Tensor]:
            *inputs, given = values
            return [each for each, there in zip(self.allocate(inputs), given, strict=True) if not there]

        def fake(*values: Any) -> Any:
            outputs = self.allocate(values)
            self.check(values, outputs)
            return self.returned(outputs)

        def out_fake(*values: Any) -> None:
            self.check(values[:split], values[split:])

        result = "Tensor" if len(self.outputs) == 1 else f"({', '.join(['Tensor'] * len(self.outputs))})"
        written = [f"Tensor({each}!) {each}" for each in self.outputs]
        self._returning = library.define(name, f"({', '.join(parameters)}) -> {result}", functional, fake)
        self._writing = library.define(f"{name}_out", f"({', '.join([*parameters, *written])}) -> ()", out, out_fake)
        if len(self.outputs) > 1:
            schema = f"({', '.join([*parameters, 'bool[] given'])}) -> Tensor[]"
            self._allocating = library.define(f"{name}_empty", schema, missing, missing)

    def call(self, values: Sequence[Any], tensors: Sequence[Any], given: Given) -> torch.Tensor | Slots:
        """The registered operator, or its implementation when torch's dispatcher has nothing to add.

        ``tensors`` are those of the values that should be tensors.
        """
        present = [each for each in given if each is not None]
        if library.is_direct([*tensors, *present]):
            return self.returned(self.run(values, given))
        self.check_ranks(values, given)
        for name, tensor in zip(self.outputs, given, strict=True):
            if tensor is not None:
                check_writable(name, tensor)
        if not present:
            result: torch.Tensor | Slots = self._returning(*values)
            return result
        compiling = torch.compiler.is_compiling() and len(present) < len(given)
        outputs = self._completed_in_graph(values, given) if compiling else self.completed(values, given)
        self._writing(*values, *outputs)
        return self.returned(outputs)

    def run(self, values: Sequence[Any], given: Given) -> Slots:
        """Call the kernel on real tensors; outputs that are None are allocated."""
        outputs = self.completed(values, given)
        self.dispatch(values, outputs)
        for tensor in given:
            if tensor is not None:
                library.written(tensor)
        return outputs

    def completed(self, values: Sequence[Any], given: Given) -> Slots:
        """The outputs, those that are None allocated."""
        if all(each is not None for each in given):  # not `in`, which compares tensors element by element
            return tuple(given)
        return tuple([old if new is None else new for new, old in zip(given, self.allocate(values), strict=True)])

    def _completed_in_graph(self, values: Sequence[Any], given: Given) -> Slots:
        """Likewise by an operator, as compilers do not follow how operands are described."""
        new = iter(self._allocating(*values, [each is not None for each in given]))
        return tuple([next(new) if each is None else each for each in given])

    def returned(self, outputs: Slots) -> torch.Tensor | Slots:
        """What a call gives back: one output as a tensor, several as a tuple."""
        return outputs[0] if len(outputs) == 1 else outputs


def empty_output(operand: Operand, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """Memory for an output; columns that are contiguous along m start 16 bytes apart, as a product reads scales."""
    shape, dtype = expected_shape(operand, sizes), TORCH_DTYPES[operand.dtype]
    if not operand.box or operand.inner == operand.box[-1]:
        return torch.empty(shape, dtype=dtype, device=device)
    *groups, rows, columns = shape
    step = 16 // torch.empty(0, dtype=dtype).element_size()
    pitch = -(-rows // step) * step
    strides = (*(pitch * columns for _ in groups), 1, pitch)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def host_number(name: str, value: Any) -> float:
    """A host scalar; refuses tensors, which would wait for the GPU."""
    if isinstance(value, float):  # asked first: compilers know of their numbers' types, not of their methods
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name}: is passed in fp32, which cannot hold it; pass at most 3.4e38") from None
    if isinstance(value, torch.Tensor | bool) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{name}: is a {type(value).__name__}; a host scalar is passed as a number, so pass float({name}) "
            "(of a CUDA tensor that waits for the GPU) or make the operand a vector"
        )
    return float(value)
