"""Builds small kernels from PTX bodies and runs them; shared by the tests of the simulator core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemmgen import sim

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<40>; .reg .b16 %h<80>; .reg .b32 %r<200>; .reg .b64 %d<80>; .reg .f32 %f<400>; .reg .f64 %g<40>;
"""


def kernel(body: str, params: str = ".param .u64 out", shared: str = "", name: str = "k", extra: str = "") -> str:
    """A PTX file with one entry."""
    return f"{HEAD}{extra}\n.visible .entry {name}({params})\n{{\n{REGISTERS}\n{shared}\n{body}\nret;\n}}\n"


def pointer(address: int) -> bytes:
    return int(address).to_bytes(8, "little")


@dataclass
class Bench:
    """A GPU with mapped arrays, and how a kernel is launched on it."""

    schedule: sim.Schedule = field(default_factory=lambda: sim.Schedule("early"))
    block: tuple[int, ...] = (32,)
    grid: tuple[int, ...] = (1,)
    cluster: tuple[int, ...] = (1,)
    shared_bytes: int = 0
    labels: sim.Labels | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, text: str, *arguments: np.ndarray | bytes, source: str | None = None) -> sim.Report:
        """Arrays are mapped and passed by address, bytes as they are."""
        gpu = sim.Gpu(self.schedule, **self.options)
        params = [
            argument if isinstance(argument, bytes) else pointer(gpu.map(argument, f"array{i}"))
            for i, argument in enumerate(arguments)
        ]
        return gpu.launch(
            sim.load(text, source),
            "k",
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            shared_bytes=self.shared_bytes,
            params=params,
            labels=self.labels,
        )


def lanes(body: str, inputs: list[np.ndarray], out_type: Any, load: str, store: str, lanes: int = 32) -> np.ndarray:
    """One warp: input i's lane value in register named in0, in1 ...; the body leaves its result in `res`."""
    size = inputs[0].dtype.itemsize if inputs else 4
    text = "ld.param.u64 %d1, [out];\nmov.u32 %r1, %tid.x;\n"
    for i, array in enumerate(inputs):
        text += f".reg .{load} in{i};\nld.param.u64 %d2, [a{i}];\nmul.wide.u32 %d3, %r1, {array.dtype.itemsize};\n"
        text += f"add.s64 %d2, %d2, %d3;\nld.global.{load} in{i}, [%d2];\n"
    out = np.zeros(lanes, out_type)
    text += f".reg .{store} res;\n{body}\nmul.wide.u32 %d3, %r1, {out.dtype.itemsize};\nadd.s64 %d1, %d1, %d3;\n"
    text += f"st.global.{store} [%d1], res;\n"
    params = ", ".join([".param .u64 out", *(f".param .u64 a{i}" for i in range(len(inputs)))])
    assert size
    Bench(block=(lanes,)).run(kernel(text, params), out, *inputs)
    return out
