"""Which architecture a call runs on, for operators whose arguments mean different things on different ones.

Knows devices and the simulation that was asked for; it opens no target and refuses nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.errors import UnsupportedArchitecture
from gemmgen.runtime.preparation import current_preparation
from gemmgen.runtime.simulation import current_simulation

SCALING = ("sm100", "sm120")
"""Architectures whose tensor cores apply block scales themselves, and take 4-bit numbers."""


def scales_blocks(tensor: Any) -> bool:
    """Whether a tensor core that applies block scales serves this tensor: by its GPU, or by what is simulated."""
    return isinstance(tensor, torch.Tensor) and family_at(tensor.get_device()) in SCALING


def family_at(index: int) -> str | None:
    """The architecture of a CUDA device; for others (-1) the one that is simulated or, with meta tensors, prepared for.

    None without kernels.
    """
    if index >= 0:
        return _family(index)
    if (preparation := current_preparation()) is not None:
        return preparation.family
    simulation = current_simulation()
    return None if simulation is None else simulation.arch.family


family_at = torch.compiler.assume_constant_result(family_at)  # a compiled graph is for one device


@cache
def _family(index: int) -> str | None:
    try:
        return resolve(torch.cuda.get_device_capability(index)).family
    except (UnsupportedArchitecture, RuntimeError, AssertionError):  # no such kernels, or fake tensors without a GPU
        return None


def family_here() -> str | None:
    """The architecture that a call without tensors means: what is simulated or prepared for, else the current GPU's."""
    return family_at(-1) or (family_at(torch.cuda.current_device()) if torch.cuda.is_available() else None)
