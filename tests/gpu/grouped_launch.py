"""A launch of a grouped kernel on a GPU, on operands of any strides and storages that were made on the host."""

from __future__ import annotations

from functools import partial

import grouped
import torch

import gemmgen
from gemmgen.commands.groups import dense
from gemmgen.commands.inputs import Operands
from gemmgen.ir import KernelSpec, RowGroups

ALIGNMENT, CUDA = 128, "cuda"


def on_gpu(spec: KernelSpec, operands: Operands) -> None:
    """A launch on copies that lie as the operands do, whose outputs come back into them, memory of nobody and all."""
    copies = {name: _copy(each, CUDA) for name, each in operands.items()}
    gemmgen.op(spec)(**copies)
    for output in spec.outputs:
        found, given = copies[output.name], operands[output.name]
        assert isinstance(found, torch.Tensor) and isinstance(given, torch.Tensor)
        given.untyped_storage().copy_(found.untyped_storage())


def _copy(value: torch.Tensor | float, device: str) -> torch.Tensor | float:
    if not isinstance(value, torch.Tensor):
        return value
    memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).to(device)
    there = torch.empty(0, dtype=value.dtype, device=device)
    return there.set_(memory.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def ragged(spec: KernelSpec) -> grouped.Problem:
    """Groups of rows with none, one, a tile and more, NaN in what nobody owns; it checks what it runs."""
    assert isinstance(spec.groups, RowGroups)
    counts = [37, 0, spec.tile.m + 5, 1, 64]
    layout = grouped.layout_by(spec.groups.by, counts, ALIGNMENT, spec.groups.alignment, spare=3)
    return grouped.Problem(dense(spec), spec, layout, n=336, k=400, launch=partial(on_gpu, spec))
