"""A simulated GPU that executes PTX text with numpy, without a GPU, under hostile timing.

    from gemmgen import sim
    module = sim.load(ptx_text, source=cuda_text)
    gpu = sim.Gpu(schedule=sim.Schedule("random", seed=0), sms=4)
    report = gpu.launch(module, "kernel", grid=(1,), block=(128,), params=[...])

It checks: bounds and alignment of every access; order of shared-memory accesses between warps, between lanes of a
warp, and between the generic and the async proxy (vector clocks over barriers); mbarrier initialisation, arrivals,
phases and bytes; values of wgmma in flight (tokens that only the wait resolves); accumulators changed after
wgmma.fence; bulk stores held until they are waited for; stale tensor maps; access to an exited CTA; tensor memory:
allocation, order of tcgen05 work against commits, waits and fences, values of tcgen05.ld in flight, both CTAs of a
pair; accesses before griddepcontrol.wait to what a launch calls in use; order of ordinary accesses to global memory,
in kernels with atomics there; deadlock, with what each warp waits for.

It cannot see: register allocation, spills and setmaxnreg limits; time; rounding inside the tensor core; bank
conflicts; other races in global memory; launch limits that are not coded as checks; two consistent errors in the
writer and the reader of a layout.
"""

from __future__ import annotations

from .errors import Deadlock, Fault, OutOfBounds, ParseError, Race, SimulationError, UnknownInstruction
from .gpu import Gpu, Report
from .labels import Labels
from .module import Module
from .schedule import Schedule, all_schedules
from .tensor_map import encode_tensor_map


def load(ptx: str, source: str | None = None) -> Module:
    """Parse PTX text; source is the CUDA text it came from, for messages that lead back to `// spec:` comments."""
    return Module(ptx, source)


__all__ = [
    "Deadlock",
    "Fault",
    "Gpu",
    "Labels",
    "Module",
    "OutOfBounds",
    "ParseError",
    "Race",
    "Report",
    "Schedule",
    "SimulationError",
    "UnknownInstruction",
    "all_schedules",
    "encode_tensor_map",
    "load",
]
