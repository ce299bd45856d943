"""The exceptions of the runtime: each message names what was asked, what was found and what to do about it.

Nothing here may import torch, CUDA or another room of gemmgen, so any module can raise these without cost.
"""

from __future__ import annotations


class RuntimeFailure(RuntimeError):
    """Base of the errors raised between CUDA text and a finished launch."""


class UnsupportedArchitecture(ValueError):
    """An architecture name that gemmgen does not know, or that this NVRTC cannot compile for."""


class NvrtcNotFound(RuntimeFailure):
    """The NVRTC library is not installed where the loader looks."""


class CompileError(RuntimeFailure):
    """NVRTC refused the text; carries the compiler log."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        return (CompileError, (str(self), self.log))


class DriverError(RuntimeFailure):
    """A CUDA driver call failed, or there is no driver."""


class CaptureError(RuntimeFailure):
    """A kernel would have to be compiled or loaded while a CUDA graph is being captured."""


class DeviceError(RuntimeFailure):
    """No target can run on the device that was asked for."""


class CacheDamaged(RuntimeFailure):
    """A cache entry does not match its manifest; the cache removes and rebuilds it."""
