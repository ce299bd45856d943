"""A GPU that runs nothing: which kernels calls would load, told by calls with meta tensors.

Holds what the choice of a kernel asks of a device, and collects; torch is not needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from gemmgen.runtime.architectures import SMS, Architecture
from gemmgen.runtime.kernel_text import KernelText


@dataclass(frozen=True)
class Preparation:
    """The device that calls are prepared for, and the texts that they would load, each once, in order."""

    architecture: Architecture
    sms: int
    card: str | None = None
    texts: dict[KernelText, None] = field(default_factory=dict, compare=False)

    @property
    def family(self) -> str:
        """The architecture as specs name it."""
        return self.architecture.family

    def load(self, text: KernelText) -> None:
        """Note that a call loads this."""
        self.texts[text] = None


_preparing: ContextVar[Preparation | None] = ContextVar("gemmgen_preparation", default=None)


@contextlib.contextmanager
def preparing(architecture: Architecture, sms: int | None = None, card: str | None = None) -> Iterator[Preparation]:
    """Let operators on meta tensors say which kernels they need, in this thread."""
    preparation = Preparation(architecture, SMS[architecture.family] if sms is None else sms, card)
    token = _preparing.set(preparation)
    try:
        yield preparation
    finally:
        _preparing.reset(token)


def current_preparation() -> Preparation | None:
    """The innermost ``preparing`` block."""
    return _preparing.get()
