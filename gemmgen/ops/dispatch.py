"""One operator's calls from first sight to launch: checks, the operator's choice of a spec, loading, preparation.

Knows operands, targets and memory rules; which spec serves a call is the operator's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gemmgen.ir import AnyPlan, AnySpec, Operand
from gemmgen.ops.block import block_builder, whole_block
from gemmgen.ops.copies import Copies, lying_like
from gemmgen.ops.kernels import Kernel, kernel_of
from gemmgen.ops.launch import Launch, Prepared, Slots, metadata, not_repeated, relaunch
from gemmgen.ops.memory import check_layouts, check_no_gradient, check_overlap, reads_past_rows, span
from gemmgen.ops.problem import Tensors, check_problem
from gemmgen.ops.settings import CHANGING, SETTINGS_LIMIT, Settings, changes, now
from gemmgen.ops.workspace import allocate, empty_on
from gemmgen.runtime.arguments import Encoder, Problem, TensorView, grid_size, in_use, with_splits, workspace_bytes
from gemmgen.runtime.kernel_text import Target
from gemmgen.runtime.targets import current_target, simulator

PREPARED_LIMIT = 16384
"""Metadata remembered per operator; a server that sees more sizes starts over."""


@dataclass(frozen=True)
class Choice:
    """The spec that serves a call, and the operands that it reads from a copy."""

    spec: AnySpec
    copied: Copies = field(default_factory=dict)


Chooser = Callable[[Tensors, Mapping[str, int], Target], Choice]


class Dispatcher:
    """Runs calls of one operator. ``operands`` are its tensors in call order; ``outputs`` are some of them.

    The first output may be one of the inputs, where the kernel reads before it writes.

    ``gated`` says that the epilogue joins pairs of columns; ``known_as`` what callers call operands, where that is not
    their name.
    """

    def __init__(
        self,
        operands: Sequence[Operand],
        outputs: Sequence[str],
        scalars: Sequence[str],
        choose: Chooser,
        gated: bool = False,
        known_as: Mapping[str, str] | None = None,
    ) -> None:
        self.operands = tuple(operands)
        self.names = tuple(operand.name for operand in operands)
        self.outputs = tuple(outputs)
        self.scalars = tuple(scalars)
        self._by_settings: dict[Settings, dict[Any, Prepared]] = {}
        self._latest: Settings | None = None
        self._choose = choose
        self._gated, self._known_as = gated, known_as
        self._at = self.names.index(self.outputs[0])

    @property
    def prepared(self) -> dict[Any, Prepared]:
        """Launches by the metadata of their calls, of the process's present settings."""
        settings = now()
        found = self._by_settings.get(settings)
        return self._taken_up(settings) if found is None or settings is not self._latest else found

    def _taken_up(self, settings: Settings) -> dict[Any, Prepared]:
        """Launches of settings that were not the latest; those which were so longest ago give way."""
        with CHANGING:
            found = self._by_settings.pop(settings, {})
            if len(self._by_settings) >= SETTINGS_LIMIT:
                del self._by_settings[next(iter(self._by_settings))]
            self._by_settings[settings], self._latest = found, settings
        return found

    def check(self, slots: Slots) -> dict[str, int]:
        """The problem's extents, from what fake and meta tensors have too: shapes, types, devices, gradients."""
        tensors = self._named(slots)
        check_no_gradient(tensors)
        return check_problem(self.operands, tensors, self._gated, self.outputs)

    def __call__(self, slots: Slots, scalars: tuple[float, ...] = ()) -> None:
        """Check, launch, write the output."""
        if relaunch(self.prepared, slots, scalars):
            return
        sizes = self.check(slots)
        tensors = self._named(slots)
        if slots[self._at].numel() == 0:
            self._reduce_nothing(tensors)
            return
        if sizes.get("g") == 0:  # rows, but no group that has any
            return
        self._check_overlap(tensors)
        if slots[self._at].is_cuda:
            self.prepare(slots, sizes)(slots, scalars)
        elif slots[self._at].is_meta:
            self._load(tensors, sizes)
        else:
            self._simulate(slots, sizes, scalars)

    def ready(self, slots: Slots) -> None:
        """All that a call does before its launch: refusals, the choice of a kernel, compiling and loading it."""
        if slots[self._at].is_cuda and metadata(slots) in self.prepared:
            return
        sizes, tensors = self.check(slots), self._named(slots)
        if slots[self._at].numel() == 0 or sizes.get("g") == 0:
            return
        self._check_overlap(tensors)
        if slots[self._at].is_cuda:
            self.prepare(slots, sizes)
        elif slots[self._at].is_meta:
            self._load(tensors, sizes)
        else:
            self._ready(tensors, sizes, current_target(slots[self._at].device))

    def prepare(self, slots: Slots, sizes: Mapping[str, int]) -> Prepared:
        """The launch for calls with this metadata, loaded and remembered; ``slots`` have been checked."""
        with CHANGING:
            before, settings, known = changes(), now(), self.prepared
        tensors = self._named(slots)
        target: Target = current_target(slots[self._at].device)
        kernel, used, choice = self._ready(tensors, sizes, target)
        sizes, sms = _launched(kernel.plan, sizes, target, settings)
        workspace = workspace_bytes(kernel.plan, sizes, sms)
        scalars = (0.0,) * len(self.scalars)
        problem = self._problem(sizes, used, target, scalars, dict.fromkeys(workspace, 0))
        launch = Launch(
            kernel=kernel,
            target=target,
            handle=target.load(kernel.text),
            grid=(grid_size(kernel.plan, sizes, sms), 1, 1),
            programmatic=kernel.plan.programmatic_launch,
        )
        prepared = Prepared(
            launch=launch,
            build=block_builder(kernel.plan, (*self.names, *workspace), self.scalars, problem, encoder(target)),
            names=self.names,
            outputs=tuple((at, span(slots[at])) for at in map(self.names.index, self.outputs)),
            other_bytes=tuple((at, span(each)) for at, each in enumerate(slots) if at != self._at),
            copied=tuple((self.names.index(name), copy) for name, copy in sorted(choice.copied.items())),
            check_overlap=lambda slots: self._check_overlap(self._named(slots)),
            workspace=workspace,
            room=launch.room(workspace, empty_on(slots[self._at].device)) if workspace else None,
        )
        if reads_past_rows(kernel.plan, used):  # and what is behind a row is no part of metadata
            not_repeated()
            return prepared
        if len(known) >= PREPARED_LIMIT:
            known.clear()
        with CHANGING:
            if changes() == before:  # else another thread changed them meanwhile, and this is of neither
                known[metadata(slots)] = prepared
        return prepared

    def _named(self, slots: Slots) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, slots, strict=True))

    def _reduce_nothing(self, tensors: Tensors) -> None:
        """What a matrix without elements leaves of its other outputs: sums and largest magnitudes of nothing."""
        for name in self.outputs[1:]:
            tensors[name].zero_()

    def _check_overlap(self, tensors: Tensors) -> None:
        """Outputs that share memory with inputs or with each other are refused."""
        for name in self.outputs:
            in_place = self._read_first() if name == self.outputs[0] else ()
            check_overlap(name, tensors, in_place, self.outputs, self._known_as)

    def _read_first(self) -> list[str]:
        """Operands that may be the output itself: matrices of its shape and type, read before it is written."""
        output = self.operands[self._at]
        inputs = (each for each in self.operands if each.name not in self.outputs)
        return [each.name for each in inputs if each.box == output.box and each.dtype == output.dtype]

    def _ready(
        self, tensors: dict[str, torch.Tensor], sizes: Mapping[str, int], target: Target
    ) -> tuple[Kernel, dict[str, torch.Tensor], Choice]:
        """The kernel, tensors that lie as it reads them, and the choice; what it reads from copies is empty yet."""
        choice = self._choose(tensors, sizes, target)
        kernel = kernel_of(choice.spec)
        tensors = {**tensors, **{name: lying_like(copy, tensors[name]) for name, copy in choice.copied.items()}}
        check_layouts(kernel.plan, tensors)
        return kernel, tensors, choice

    def _load(self, tensors: dict[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """All of a call but its launch, on a device that is being prepared for."""
        target: Target = current_target(tensors[self.outputs[0]].device)
        kernel, *_ = self._ready(tensors, sizes, target)
        target.load(kernel.text)

    def _problem(
        self,
        sizes: Mapping[str, int],
        tensors: Tensors,
        target: Target,
        scalars: tuple[float, ...],
        workspace: Mapping[str, int],
    ) -> Problem:
        views = {
            name: TensorView(target.address(tensor, name), tuple(tensor.shape), tensor.stride())
            for name, tensor in tensors.items()
        }
        return Problem(sizes, views, dict(zip(self.scalars, scalars, strict=True)), workspace)

    def _simulate(self, slots: Slots, sizes: Mapping[str, int], scalars: tuple[float, ...]) -> None:
        target = simulator()
        given = self._named(slots)
        kernel, tensors, choice = self._ready(given, sizes, target)
        tensors |= {name: copy(given[name]) for name, copy in choice.copied.items()}
        sizes, sms = _launched(kernel.plan, sizes, target, now())
        needed = workspace_bytes(kernel.plan, sizes, sms)
        room = allocate(needed, slots[self._at].device)
        workspace = {name: target.address(each, name) for name, each in room.items()}
        problem = self._problem(sizes, tensors, target, scalars, workspace)
        params = whole_block(kernel.plan, problem, encoder(target))
        grid = (grid_size(kernel.plan, sizes, sms), 1, 1)
        early = kernel.plan.programmatic_launch
        target.launch(target.load(kernel.text), grid, params, 0, early, in_use(kernel.plan, problem, needed))


def _launched(
    plan: AnyPlan, sizes: Mapping[str, int], target: Target, settings: Settings
) -> tuple[Mapping[str, int], int]:
    """Extents and multiprocessors that a launch is made for; where sums are fixed, no CTAs share a tile."""
    sms = settings.grid_sms(plan, target)
    shared = with_splits(plan, sizes, sms)
    return ({**shared, "s": 1} if settings.deterministic and "s" not in sizes and "s" in shared else shared), sms


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
