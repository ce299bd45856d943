"""``gemmgen sim``: any PTX file on the simulator, with buffers from .npy files. Knows the simulator's API alone."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemmgen import sim
from gemmgen.commands.output import print_table

SCALARS = {"u8": "B", "s8": "b", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q"}
FLOATS = {"f16": "e", "f32": "f", "f64": "d"}
FORMATS = {**SCALARS, **FLOATS}


@dataclass(frozen=True)
class Launch:
    """A launch as it is written on the command line."""

    entry: str
    grid: str
    block: str
    cluster: str
    shared: int
    params: tuple[str, ...]
    saves: tuple[str, ...]
    schedule: str
    seed: int


def list_entries(file: Path) -> None:
    """A line a kernel: its parameters in bytes and its static shared memory."""
    module = sim.load(file.read_text(encoding="utf-8"))
    if not module.entries:
        raise ValueError(f"{file}: has no .entry, so there is nothing to run; give PTX text with a kernel")
    rows = [
        [name, len(entry.instrs), ", ".join(str(param.nbytes) for param in entry.params) or "-", entry.shared_bytes]
        for name, entry in module.entries.items()
    ]
    print_table(["entry", "instructions", "parameter bytes", "shared bytes"], rows)


def run_entry(file: Path, launch: Launch) -> None:
    """Run one kernel to its end, report, and save the buffers that were asked for."""
    module = sim.load(file.read_text(encoding="utf-8"))
    gpu = sim.Gpu(schedule=sim.Schedule(str(launch.schedule), seed=launch.seed))
    buffers: dict[int, npt.NDArray[np.generic]] = {}
    params = [_param(gpu, index, text, buffers) for index, text in enumerate(launch.params)]
    saves = [_save(text, buffers) for text in launch.saves]
    report = gpu.launch(
        module,
        launch.entry,
        grid=extents(launch.grid, "--grid"),
        block=extents(launch.block, "--block"),
        params=params,
        cluster=extents(launch.cluster, "--cluster"),
        shared_bytes=launch.shared,
    )
    for line in [*report.output, *report.warnings]:
        sys.stdout.write(line.rstrip("\n") + "\n")
    for path, buffer in saves:
        np.save(path, buffer)
    rate = report.warp_instructions / max(report.seconds, 1e-9)
    done = f"{report.warp_instructions} warp instructions in {report.seconds:.2f} s, {rate:,.0f} a second"
    sys.stdout.write(f"{launch.entry}: {done}\n")


def extents(text: str, option: str) -> tuple[int, ...]:
    """``"4,2"`` as (4, 2)."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{option} {text!r}: write one to three whole numbers, such as 4 or 4,2,1")
    return tuple(int(part) for part in parts)


def _param(gpu: sim.Gpu, index: int, text: str, buffers: dict[int, npt.NDArray[np.generic]]) -> bytes:
    """One kernel parameter as bytes; a buffer is mapped into the simulated memory and passed as its address."""
    kind, separator, value = text.partition(":")
    if text.endswith(".npy"):
        array = np.ascontiguousarray(np.load(text))
    elif kind == "zeros" and separator and value.isdecimal():
        array = np.zeros(int(value), np.uint8)
    elif kind in FORMATS and separator:
        return struct.pack(f"<{FORMATS[kind]}", _number(index, kind, value))
    else:
        scalars = ", ".join(FORMATS)
        raise ValueError(f"--param {index} {text!r}: write FILE.npy, zeros:BYTES, or u32:7 (likewise {scalars})")
    buffers[index] = array
    return struct.pack("<Q", gpu.map(array, name=f"param{index}"))


def _number(index: int, kind: str, value: str) -> int | float:
    try:
        number = float(value) if kind in FLOATS else int(value, 0)
        struct.pack(f"<{FORMATS[kind]}", number)
    except (ValueError, OverflowError, struct.error):
        raise ValueError(f"--param {index}: {value!r} is no {kind}") from None
    return number


def _save(text: str, buffers: dict[int, npt.NDArray[np.generic]]) -> tuple[Path, npt.NDArray[np.generic]]:
    index, _, path = text.partition("=")
    if not path or not index.isdecimal() or int(index) not in buffers:
        known = ", ".join(map(str, buffers)) or "none"
        raise ValueError(f"--save {text!r}: write INDEX=FILE.npy with the index of a buffer parameter ({known})")
    return Path(path), buffers[int(index)]
