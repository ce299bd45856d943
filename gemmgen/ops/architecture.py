"""Which architecture a call runs on, for operators whose arguments mean different things on different ones.

Knows devices and the simulation that was asked for; it opens no target and refuses nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.simulation import current_simulation


def runs_on_sm100(tensor: Any) -> bool:
    """Whether kernels for datacenter Blackwell serve this tensor: by its GPU, or by what is simulated."""
    return isinstance(tensor, torch.Tensor) and bool(_is_sm100(tensor.get_device()))


def _is_sm100(index: int) -> bool:
    if index >= 0:
        return _family(index) == "sm100"
    simulation = current_simulation()
    return simulation is not None and simulation.arch.family == "sm100"


_is_sm100 = torch.compiler.assume_constant_result(_is_sm100)  # a compiled graph is for one device


@cache
def _family(index: int) -> str | None:
    try:
        return resolve(torch.cuda.get_device_capability(index)).family
    except (UnsupportedArchitecture, RuntimeError, AssertionError):  # no such kernels, or fake tensors without a GPU
        return None
