"""One operator's calls: the first with new metadata is checked and prepared, the next ones are a look-up and a launch.

Knows operands, targets and memory rules; which spec serves a call is the operator's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmgen.ir import KernelSpec, Operand
from gemmgen.ops.block import Block, block_builder, whole_block
from gemmgen.ops.kernels import Kernel, kernel_of
from gemmgen.ops.memory import check_layouts, check_no_gradient, check_overlap, disjoint
from gemmgen.ops.problem import Tensors, check_problem
from gemmgen.runtime.arguments import Encoder, Problem, TensorView, grid_size
from gemmgen.runtime.kernel_text import Grid, Target
from gemmgen.runtime.targets import current_target

PREPARED_LIMIT = 16384
"""Metadata remembered per operator; a server that sees more sizes starts over."""

Slots = tuple[torch.Tensor, ...]
"""The tensors of a call in the order of the dispatcher's operands."""


@dataclass(frozen=True)
class Choice:
    """The spec that serves a call, and the operands it can only read from a row-major copy."""

    spec: KernelSpec
    copied: frozenset[str] = frozenset()


Chooser = Callable[[Tensors, Mapping[str, int], Target], Choice]


@dataclass(frozen=True)
class Prepared:
    """Everything a launch needs but addresses and scalars. ``kernel`` is None for an output without elements."""

    kernel: Kernel | None = None
    target: Any = None
    handle: Any = None
    grid: Grid = (0, 1, 1)
    build: Block | None = None
    operands: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()


class Dispatcher:
    """Runs calls of one operator. ``operands`` are its tensors in call order; ``output`` is one of them."""

    def __init__(self, operands: Sequence[Operand], output: str, scalars: Sequence[str], choose: Chooser) -> None:
        self.operands = tuple(operands)
        self.names = tuple(operand.name for operand in operands)
        self.output = output
        self.scalars = tuple(scalars)
        self._choose = choose
        self._at = self.names.index(output)
        self._inputs = tuple(index for index, name in enumerate(self.names) if name != output)
        self._prepared: dict[Any, Prepared] = {}

    def check(self, slots: Slots) -> dict[str, int]:
        """The problem's extents from shapes and dtypes alone; for fake and meta tensors, or before allocating."""
        return check_problem(self.operands, self._named(slots))

    def __call__(self, slots: Slots, scalars: tuple[float, ...] = ()) -> None:
        """Check, launch, write the output."""
        output = slots[self._at]
        if torch.is_grad_enabled():
            check_no_gradient(self._named(slots))
        if not output.is_cuda:
            return self._simulate(slots, scalars)
        key = metadata(slots)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(slots)
            if len(self._prepared) >= PREPARED_LIMIT:
                self._prepared.clear()
            self._prepared[key] = prepared
        if prepared.kernel is None:
            return None
        self._check_overlap(slots)
        return _launch(prepared, slots, scalars)

    def _named(self, slots: Slots) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, slots, strict=True))

    def _check_overlap(self, slots: Slots) -> None:
        output = slots[self._at]
        for index in self._inputs:
            if not disjoint(output, slots[index]):
                return check_overlap(self.output, self._named(slots), self._read_first())
        return None

    def _read_first(self) -> list[str]:
        """Operands that may be the output itself: matrices of its shape and type, read before it is written."""
        output = self.operands[self._at]
        return [each.name for each in self.operands if each.box == output.box and each.dtype == output.dtype]

    def _prepare(self, slots: Slots) -> Prepared:
        tensors = self._named(slots)
        sizes = check_problem(self.operands, tensors)
        if sizes["m"] == 0 or sizes["n"] == 0:
            return Prepared()
        self._check_overlap(slots)
        target: Target = current_target(tensors[self.output].device)
        kernel, tensors, choice = self._ready(tensors, sizes, target)
        handle = target.load(kernel.text)
        return Prepared(
            kernel=kernel,
            target=target,
            handle=handle,
            grid=(grid_size(kernel.plan, sizes, target.sms), 1, 1),
            build=block_builder(kernel.plan, self._problem(kernel, sizes, tensors, target), encoder(target)),
            operands=tuple(self.names.index(each.name) for each in kernel.plan.operands if not each.is_scalar),
            copied=tuple(self.names.index(name) for name in sorted(choice.copied)),
        )

    def _ready(
        self, tensors: dict[str, torch.Tensor], sizes: Mapping[str, int], target: Target
    ) -> tuple[Kernel, dict[str, torch.Tensor], Choice]:
        choice = self._choose(tensors, sizes, target)
        kernel = kernel_of(choice.spec)
        tensors = {name: row_major(t) if name in choice.copied else t for name, t in tensors.items()}
        check_layouts(kernel.plan, tensors)
        return kernel, tensors, choice

    def _problem(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        tensors: Tensors,
        target: Target,
        scalars: tuple[float, ...] | None = None,
    ) -> Problem:
        views = {
            each.name: TensorView(
                target.address(tensors[each.name], each.name),
                tuple(tensors[each.name].shape),
                tensors[each.name].stride(),
            )
            for each in kernel.plan.operands
            if not each.is_scalar
        }
        values = scalars if scalars is not None else (0.0,) * len(self.scalars)
        return Problem(sizes, views, dict(zip(self.scalars, values, strict=True)))

    def _simulate(self, slots: Slots, scalars: tuple[float, ...]) -> None:
        tensors = self._named(slots)
        sizes = check_problem(self.operands, tensors)
        if sizes["m"] == 0 or sizes["n"] == 0:
            return
        self._check_overlap(slots)
        target: Target = current_target(tensors[self.output].device)
        kernel, tensors, _ = self._ready(tensors, sizes, target)
        problem = self._problem(kernel, sizes, tensors, target, scalars)
        params = whole_block(kernel.plan, problem, encoder(target))
        grid = (grid_size(kernel.plan, sizes, target.sms), 1, 1)
        target.launch(target.load(kernel.text), grid, params, 0, kernel.plan.programmatic_launch)


def _launch(prepared: Prepared, slots: Slots, scalars: tuple[float, ...]) -> None:
    assert prepared.build is not None and prepared.kernel is not None
    if prepared.copied:
        slots = tuple(row_major(tensor) if index in prepared.copied else tensor for index, tensor in enumerate(slots))
    addresses = [slots[index].data_ptr() for index in prepared.operands]
    target = prepared.target
    params = prepared.build(addresses, scalars)
    target.launch(
        prepared.handle, prepared.grid, params, target.current_stream(), prepared.kernel.plan.programmatic_launch
    )


def metadata(slots: Slots) -> tuple[Any, ...]:
    """All that a prepared launch depends on: types, shapes, strides, devices and the low bits of addresses."""
    return tuple([(t.dtype, t.shape, t.stride(), t.get_device(), t.data_ptr() & 15) for t in slots])


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """A row-major copy, also where only the address is odd."""
    return tensor.clone(memory_format=torch.contiguous_format)


def encoder(target: Target) -> Encoder:
    """The target's tensor map encoder with the smem_swizzle as plans write it, in bytes."""

    def encode(
        dtype: str,
        address: int,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        element_strides: tuple[int, ...],
        swizzle: int,
    ) -> bytes:
        name = f"{swizzle}b" if swizzle else "none"
        return target.encode_tensor_map(dtype, address, dims, strides, box, element_strides, name)

    return encode
