"""Runs a case on the simulator and on the GPU and compares the outputs, by bits or by units in the last place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .case import Array, Case, In
from .device import Device
from .simulator import Simulator


def examine(case: Case, simulator: Simulator | None, device: Device | None) -> dict[str, Any]:
    """The result row of one case."""
    row: dict[str, Any] = {"family": case.family, "name": case.name}
    outputs: dict[str, list[Array]] = {}
    failures: dict[str, str] = {}
    for name, machine in (("sim", simulator), ("device", device)):
        try:
            if machine is not None:
                outputs[name] = machine.run(case)
        except Exception as error:  # a fault on either side is this case's result
            failures[name] = f"{name}: {type(error).__name__}: {error}"
    if case.refused:
        return {**row, **refusal(case, failures, outputs)}
    if failures:
        if "device" in outputs:
            row["numpy"] = agreement_with_numpy(case, outputs["device"])["result"]
        return {**row, "result": f"{' and '.join(failures)} failed", "detail": "; ".join(failures.values())}
    if len(outputs) == 2:
        row = {**row, **agreement(case, outputs["sim"], outputs["device"], ("sim", "device"))}
        row["numpy"] = agreement_with_numpy(case, outputs["device"])["result"]
        return row
    (name, arrays), *_ = outputs.items()
    return {**row, **agreement_with_numpy(case, arrays, name)}


def refusal(case: Case, failures: dict[str, str], outputs: dict[str, list[Array]]) -> dict[str, Any]:
    """The result of a case that must not run: not on the simulator, and on no GPU either if it traps."""
    if "sim" in outputs or ("device" in outputs and case.traps):
        return {"result": "unequal", "detail": f"ran on {' and '.join(outputs)}; it must fail"}
    said = list(failures.values())
    if "device" in outputs:
        said.append(f"device: {agreement_with_numpy(case, outputs['device'])['result']} to numpy")
    return {"result": "trapped" if "device" in failures else "refused", "detail": "; ".join(said)}


def agreement_with_numpy(case: Case, arrays: list[Array], name: str = "device") -> dict[str, Any]:
    known = [i for i, e in enumerate(case.expected) if e is not None]
    if not known:
        return {"result": "ran"}  # numpy is no oracle for it
    expected = [case.expected[i] for i in known]
    return agreement(case, [arrays[i] for i in known], expected, (name, "numpy"), known)


def agreement(
    case: Case, left: Sequence[Any], right: Sequence[Any], names: tuple[str, str], which: Sequence[int] | None = None
) -> dict[str, Any]:
    """equal, close (within the output's ulp) or unequal, with the first differences."""
    result: dict[str, Any] = {"result": "equal"}
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        output = case.outputs[which[number] if which else number]
        x, y = _words(a), _words(b)
        different = np.flatnonzero(x != y)
        if output.ulp >= 0:
            result["ulp"] = max(result.get("ulp", 0), ulp_distance(x, y))
            if result["ulp"] <= output.ulp:
                result["result"] = "close"
                continue
        if different.size:
            shown = ", ".join(f"[{i}] {names[0]} {x[i]:#x} {names[1]} {y[i]:#x}" for i in different[:8])
            detail = f"output {number}: {different.size} of {x.size} differ: {shown}{_operands(case, different[:8])}"
            return {**result, "result": "unequal", "detail": detail}
    return result


def _words(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    size = array.itemsize if array.itemsize in (1, 2, 4, 8) else 4
    return array.reshape(-1).view(f"u{size}")


def _operands(case: Case, places: Array) -> str:
    """For lane-by-lane cases: the operands of the first differences."""
    if case.block[0] != 256 or case.grid[0] == 1:
        return ""
    inputs = [_words(p.data) for p in case.parameters if isinstance(p, In)]
    return "; operands " + ", ".join("(" + " ".join(f"{x[i]:#x}" for x in inputs) + ")" for i in places)


def ulp_distance(x: Array, y: Array) -> int:
    """Largest distance of float32 bits in units of the last place; NaN equals NaN, -0 is next to 0."""

    def ordered(bits: Array) -> Array:
        magnitude = (bits & 0x7FFFFFFF).astype(np.int64)
        return np.where(bits >> 31, ~magnitude, magnitude)

    both_nan = ((x & 0x7FFFFFFF) > 0x7F800000) & ((y & 0x7FFFFFFF) > 0x7F800000)
    return int(np.where(both_nan, 0, np.abs(ordered(x) - ordered(y))).max())
