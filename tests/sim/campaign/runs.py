"""A kernel on its problems: exact inputs under every schedule, wide ones under one in turn, judged in float64.

Calls the operator of the spec as users do, on the simulator; what the result must be comes from ``reference``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import reference
import torch
from planted.inputs import SCALE_WORDS, laid_out

import gemmgen
from gemmgen.commands.reference import compare, tolerance
from gemmgen.ir import AnySpec, DType, KernelSpec
from gemmgen.ops.kernels import kernel_of
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.runtime.compiler import cached_ptx
from gemmgen.runtime.simulation import SCHEDULES

from .inputs import Draw
from .problems import AXES, Sizes

CLUSTERS = (1, 3, 2, 1)
"""How many clusters share the tiles, problem by problem: one walks all of them, or each has one or two."""
EXTREMES = {DType.UE8M0X4: (1, 254), DType.UE4M3X4: (0, 0x7E)}
"""The smallest and largest scale bytes that are numbers."""


@dataclass
class Found:
    """What a kernel's runs showed."""

    kernel: str
    exact: int = 0
    wide: int = 0
    worst_tile: float = 0.0
    worst_at: str = ""
    codes: dict[str, set[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def short_of(self, spec: KernelSpec) -> list[str]:
        """4-bit codes and extreme scale bytes that no operand of any problem held."""
        missing = []
        for operand in spec.operands:
            wanted = set(range(16)) if operand.dtype == DType.E2M1 else set(EXTREMES.get(operand.dtype, ()))
            if lacking := wanted - self.codes.get(operand.name, set()):
                missing.append(f"{operand.name} never held {sorted(lacking)}")
        return missing


def digest(spec: AnySpec) -> str:
    """Of the instructions that are executed, without where in the text they come from: a result speaks of no others."""
    text = kernel_of(spec).text
    ptx = cached_ptx(text.source, text.arch, text.file_name).text
    entry = ptx[ptx.index(".visible .entry") :]
    body = entry[: entry.index("\n}\n")].splitlines()
    executed = [line for line in map(str.strip, body) if line and not line.startswith((".loc", "//"))]
    return hashlib.sha256("\n".join(executed).encode()).hexdigest()[:16]


def run(spec: KernelSpec, problems: Sequence[Sizes], schedules: Sequence[str] = SCHEDULES, *, first: int = 0) -> Found:
    """Each problem with exact inputs under each schedule, and with wide ones under one of them, counted from first."""
    found = Found(spec.name)
    if len(spec.outputs) != 1:
        found.faults.append(f"writes {len(spec.outputs)} outputs; Case judges one, so teach it the others")
        return found
    for number, sizes in enumerate(problems, first):
        for exact in (True, False):
            case = Case(spec, sizes, number, exact)
            case.note_codes(found)
            for schedule in schedules if exact else schedules[number % len(schedules) :][:1]:
                case.run(schedule, found)
    return found


class Case:
    """One problem with its numbers, the SMs that share its tiles, and the only or nearest right output."""

    def __init__(self, spec: KernelSpec, sizes: Sizes, number: int, exact: bool) -> None:
        self.spec, self.sizes, self.number, self.exact = spec, dict(zip(AXES, sizes, strict=True)), number, exact
        self.tensors, self.scalars = Draw(number, exact).operands(spec, self.sizes)
        self.float64 = reference.evaluate(spec, self.tensors, self.scalars)

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes.values())) + (" exact" if self.exact else " wide")

    def run(self, schedule: str, found: Found) -> None:
        """Run once more, and note what it showed."""
        d = self._poisoned()
        sms = CLUSTERS[self.number % len(CLUSTERS)] * self.spec.cluster.size
        try:
            with gemmgen.simulate(self.spec.arch, schedule, self.number, sms) as simulation:
                gemmgen.op(self.spec)(**self.tensors, **self.scalars, **{self.spec.output.name: d})
        except Exception as error:  # whatever goes wrong is one kernel's, and the others are still to be run
            found.faults.append(f"{self} {schedule}: {type(error).__name__}: {str(error).splitlines()[0]}")
            return
        fault = self._fault(d) or "; ".join(warning for each in simulation.reports for warning in each.warnings)
        self._note(d, f"{self} {schedule}: {fault}" if fault else None, found)

    def note_codes(self, found: Found) -> None:
        """Which 4-bit codes and bytes of scales the operands hold, those beyond k left out."""
        for operand in self.spec.operands:
            if operand.dtype == DType.E2M1:
                codes = self.tensors[operand.name].view(torch.uint8)
                seen = {*(codes & 15).unique().tolist(), *(codes >> 4).unique().tolist()}
            elif operand.dtype in SCALE_WORDS:
                words = self.tensors[operand.name].long()
                seen = {code for byte in range(4) for code in (words >> 8 * byte & 255).unique().tolist()}
            else:
                continue
            found.codes.setdefault(operand.name, set()).update(seen)

    def _note(self, d: torch.Tensor, fault: str | None, found: Found) -> None:
        if fault is not None:
            found.faults.append(fault)
        elif self.exact:
            found.exact += 1
        else:
            found.wide += 1
            error = compare(d, self.float64).worst_tile
            if not error <= found.worst_tile:
                found.worst_tile, found.worst_at = error, "x".join(map(str, self.sizes.values()))

    def _fault(self, d: torch.Tensor) -> str | None:
        """Why an output is wrong, or None."""
        whole = torch.empty(0, dtype=d.dtype).set_(d.untyped_storage())
        beyond = int((~whole.isnan()).sum()) - int((~d.isnan()).sum())
        if beyond:
            return f"{beyond} elements outside the output are written"
        if self.exact:
            wrong = int((d != reference.exact_result(self.spec, self.tensors, self.scalars)).sum())
            return f"{wrong} of {d.numel()} elements differ from the exact result" if wrong else None
        try:
            reference.check(d, self.spec, self.tensors, self.scalars)
        except AssertionError as error:
            return str(error)
        error = compare(d, self.float64).worst_tile
        return None if error <= tolerance(self.spec) else f"a tile is off by {error:.1e}, rounding is not as much"

    def _poisoned(self) -> torch.Tensor:
        """An output of NaN with NaN around it: behind every row and below the last one."""
        m, n = self.sizes["m"], self.sizes["n"]
        values = torch.full((m + 1, n), float("nan"), dtype=TORCH_DTYPES[self.spec.output.dtype])
        return laid_out(values, self.spec.output, extra=16)[:m]
