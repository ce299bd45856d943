"""Where an op runs: the GPU of its CUDA tensors, or the simulator for CPU tensors when the user asked for it; nowhere
with meta tensors, whose calls only say which kernels they need.

The one place that decides; simulation is never a silent fallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gemmgen.runtime.errors import DeviceError
from gemmgen.runtime.kernel_text import Grid, Handle, KernelText, Target
from gemmgen.runtime.preparation import current_preparation
from gemmgen.runtime.simulation import SIMULATE_VARIABLE, current_simulation

if TYPE_CHECKING:
    from gemmgen.runtime.gpu_target import GpuTarget
    from gemmgen.runtime.sim_target import SimTarget

__all__ = ["Grid", "Handle", "KernelText", "Target", "current_target", "gpu", "simulator"]


def current_target(device: Any) -> Target:
    """The target for tensors on `device` (a torch.device)."""
    if device.type == "cuda":
        return gpu(device.index)
    if device.type == "cpu":
        return simulator()
    if device.type == "meta" and (preparation := current_preparation()) is not None:
        return cast(Target, preparation)  # asked for kernels only
    raise DeviceError(f"device: {device} cannot run gemmgen kernels; use cuda tensors, or cpu tensors with simulate")


def gpu(index: int | None = None) -> GpuTarget:
    """The target of a CUDA device, by default torch's current one; one per device and process."""
    import torch

    from gemmgen.runtime.gpu_target import gpu_target

    return gpu_target(torch.cuda.current_device() if index is None else index)


def simulator() -> SimTarget:
    """A fresh simulated GPU as the user asked for it; it lives for one call, its addresses die with it."""
    simulation = current_simulation()
    if simulation is None:
        raise DeviceError(
            "the tensors are on the CPU and no simulation was asked for; move them to a GPU with .cuda(), or run on "
            f'the simulator with `with gemmgen.simulate("sm90"):` or {SIMULATE_VARIABLE}=sm90'
        )
    from gemmgen.runtime.sim_target import SimTarget

    return SimTarget(simulation)
