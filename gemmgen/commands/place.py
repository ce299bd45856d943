"""For which GPU ``explain`` and ``tune`` choose: the one that is there, or one of which only the kind is known."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.commands.targets import architecture
from gemmgen.ir import Arch
from gemmgen.ops.selection import SM90_OPERATORS
from gemmgen.runtime.architectures import SMS, resolve
from gemmgen.runtime.errors import UnsupportedArchitecture


@dataclass(frozen=True)
class Place:
    """An architecture with so many multiprocessors, and the card's name if one is meant."""

    arch: Arch
    sms: int
    card: str | None = None

    def __str__(self) -> str:
        return f"{self.card or self.arch} with {self.sms} SMs"


def gpu_here() -> Place | None:
    """The current GPU, if torch finds one that there are kernels for."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        family = resolve((properties.major, properties.minor)).family
    except UnsupportedArchitecture:
        return None
    return Place(Arch(family), properties.multi_processor_count, properties.name)


def place(operator: str, arch: str | None, card: str | None) -> Place:
    """The GPU here where nothing else is asked for, else the usual one of the architecture, by its name if given."""
    here = gpu_here()
    wanted = Arch(architecture(arch).family) if arch else None
    if here and card in (None, here.card) and wanted in (None, here.arch):
        return here
    wanted = wanted or (Arch.SM90 if operator in SM90_OPERATORS else Arch.SM100)
    return Place(wanted, SMS[wanted], card)


def stores_directly(n: int) -> bool:
    """Whether rows of n bf16 numbers are no whole chunks of 16 bytes, which TMA stores in."""
    return n % 8 != 0
