"""``gemmgen run``: a kernel on random input, on a GPU or the simulator, against the float64 reference."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from gemmgen.commands import groups, k_groups
from gemmgen.commands.inputs import Operands, random_operands
from gemmgen.commands.reference import (
    Errors,
    compare,
    has_edges,
    judged,
    numbers_of,
    reduction_errors,
    reference,
    slack_of,
    tolerance,
)
from gemmgen.commands.relayout import expected_memory, memory_of, random_layout_operands
from gemmgen.commands.targets import Sizes
from gemmgen.ir import AnySpec, KernelSpec, KGroups, LayoutSpec, RowGroups
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.errors import UnsupportedArchitecture


@dataclass(frozen=True)
class Outcome:
    """One run: its outputs on the CPU, the errors of the stored one or of one that is wrong, seconds, warnings."""

    results: tuple[torch.Tensor, ...]
    errors: Errors
    seconds: float
    wrong: bool
    warnings: tuple[str, ...] = ()


def run(spec: AnySpec, sizes: Sizes, on: str, schedule: str, seed: int) -> None:
    """Run once and report; raises ``ValueError`` when the result is not the reference's up to rounding."""
    device = _device(on, spec)
    outcome = execute(spec, sizes, device, schedule, seed)
    errors = outcome.errors
    sys.stdout.write(
        f"kernel     {spec.name}\n"
        f"problem    {_problem(spec, sizes)}, seed {seed}\n"
        f"device     {_describe(device, spec, schedule)}\n"
        f"seconds    {outcome.seconds:.2f} with compiling and loading\n"
        f"{_judged(spec, errors)}"
        + "".join(f"warning    {warning}\n" for warning in outcome.warnings)
        + f"result     {'WRONG' if outcome.wrong else 'right'}\n"
    )
    if outcome.wrong:
        raise ValueError(
            f"{spec.name}: the result is not the reference's; worst tile error {errors.worst_tile:.2e}{errors.remark}"
        )


def _problem(spec: AnySpec, sizes: Sizes) -> str:
    if isinstance(spec, LayoutSpec):
        return f"m={sizes.m} k={sizes.k}, random bytes"
    shared = spec.groups if isinstance(spec, KernelSpec) else None
    of_rows, of_k = (f" in {len(groups.SHARES)} groups" * isinstance(shared, each) for each in (RowGroups, KGroups))
    return f"m={sizes.m}{of_rows} n={sizes.n} k={sizes.k}{of_k}, normal random input"


def _judged(spec: AnySpec, errors: Errors) -> str:
    if isinstance(spec, LayoutSpec):
        return (
            f"reference  every byte of the destination's memory\nerror      {errors.worst_tile:.2%} of bytes differ\n"
        )
    beyond = ", give or take what rounding of the sums may move it by" if has_edges(spec) else ""
    return (
        f"reference  float64 on the dequantised inputs{beyond}\n"
        f"error      {errors.worst_tile:.2e} in the worst 64x64 tile, at most {tolerance(spec):.0e} is rounding\n"
        f"calc_diff  {errors.calc_diff:.2e}\n"
    )


def execute(spec: AnySpec, sizes: Sizes, device: torch.device, schedule: str, seed: int) -> Outcome:
    """One call of the spec's op on random input."""
    if isinstance(spec, LayoutSpec):
        return _execute_layout(spec, sizes, device, schedule, seed)
    if spec.groups is not None:
        return _execute_groups(spec, sizes, device, schedule, seed)
    operands = random_operands(spec, {"m": sizes.m, "n": sizes.n, "k": sizes.k}, seed)
    expected = {name: (reference(spec, operands, name), slack_of(spec, operands, name)) for name in judged(spec)}
    started = time.perf_counter()
    outputs, warnings = _call(spec, operands, device, schedule, seed)
    seconds = time.perf_counter() - started
    operands = {**operands, **outputs}
    found = {name: numbers_of(spec, operands, name) for name in expected}
    reductions = reduction_errors(spec, operands)
    errors = {name: compare(found[name], *expected[name]) for name in expected} | reductions
    wrong = [name for name in errors if not errors[name].worst_tile <= tolerance(spec, name)]
    results = (*found.values(), *(outputs[name] for name in reductions))
    return Outcome(results, errors[(*wrong, spec.output.name)[0]], seconds, bool(wrong), warnings)


def _execute_groups(spec: KernelSpec, sizes: Sizes, device: torch.device, schedule: str, seed: int) -> Outcome:
    """Uneven groups, each judged by itself; what is of none must be left as it was."""
    if isinstance(spec.groups, KGroups):
        of_k, product = k_groups.drawn(spec, sizes.k), k_groups.dense(spec)
        own, layout = k_groups.parts(spec, product, of_k, sizes.m, sizes.n, seed), of_k.outputs(sizes.m)
        operands = k_groups.laid_out(spec, of_k, own, sizes.m, sizes.n)
    else:
        layout, product = groups.drawn(spec, sizes.m), groups.dense(spec)
        own = groups.parts(spec, product, layout, sizes.n, sizes.k, seed)
        operands = groups.laid_out(spec, layout, own, sizes.n, sizes.k)
    started = time.perf_counter()
    outputs, warnings = _call(spec, operands, device, schedule, seed)
    seconds = time.perf_counter() - started
    stray = sum(groups.stray_bytes(spec, each, outputs[each.name], layout) for each in spec.outputs)
    errors: list[tuple[bool, Errors]] = []
    for group, (_, count) in enumerate(layout.spans):
        rows = {each.name: groups.rows_of(each, outputs[each.name], layout, group) for each in spec.outputs}
        for name, found in _errors_of_group(product, own[group], rows).items() if count else ():
            errors.append((not found.worst_tile <= tolerance(product, name), found))
    wrong, worst = max(errors, key=lambda each: (each[0], each[1].worst_tile))
    complaint = (f"{stray} bytes of outputs are of no group and were written",) if stray else ()
    return Outcome(tuple(outputs.values()), worst, seconds, wrong or stray > 0, (*warnings, *complaint))


def _errors_of_group(product: KernelSpec, own: Operands, outputs: Operands) -> dict[str, Errors]:
    """Of every output, as a product's by itself."""
    found = {}
    for name in judged(product):
        expected = reference(product, own, name), slack_of(product, own, name)
        found[name] = compare(numbers_of(product, {**own, **outputs}, name), *expected)
    return found | reduction_errors(product, {**own, **outputs})


def _execute_layout(spec: LayoutSpec, sizes: Sizes, device: torch.device, schedule: str, seed: int) -> Outcome:
    operands = random_layout_operands(spec, {"m": sizes.m, "k": sizes.k}, seed)
    expected = expected_memory(spec, operands)
    started = time.perf_counter()
    outputs, warnings = _call(spec, dict(operands), device, schedule, seed)
    result = outputs[spec.output.name]
    seconds = time.perf_counter() - started
    differ = float((memory_of(result) != expected).double().mean())
    return Outcome((result,), Errors(differ, differ), seconds, differ > 0, warnings)


def _call(
    spec: AnySpec, operands: Operands, device: torch.device, schedule: str, seed: int
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The outputs on the CPU, and the simulator's warnings."""
    import gemmgen

    there = {name: _move(value, device) for name, value in operands.items()}
    simulated = gemmgen.simulate(spec.arch, schedule=schedule, seed=seed)
    with simulated if device.type == "cpu" else contextlib.nullcontext() as simulation:
        gemmgen.op(spec)(**there)
    outputs = {each.name: _move(there[each.name], torch.device("cpu")) for each in spec.outputs}
    reports = simulation.reports if simulation else []
    return outputs, tuple(warning for report in reports for warning in report.warnings)


def _move(value: Any, device: torch.device) -> Any:
    """The same view of the same storage on another device: pitches, and what lies around it, are part of the test."""
    if not isinstance(value, torch.Tensor) or value.device.type == device.type:
        return value
    memory = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage()).to(device)
    moved = torch.empty(0, dtype=value.dtype, device=device)
    return moved.set_(memory.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def _device(on: str, spec: AnySpec) -> torch.device:
    """The GPU when it was asked for, or by itself when it is one that the spec is written for."""
    if on == "gpu" and not torch.cuda.is_available():
        raise RuntimeError(
            "--on gpu: torch finds no CUDA device; use --on sim, or a CUDA build of torch on a GPU machine"
        )
    if on == "gpu" or (on == "auto" and _gpu_family() == spec.arch):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _gpu_family() -> str | None:
    """The architecture of the current GPU as specs name it, None without a GPU that we know."""
    if not torch.cuda.is_available():
        return None
    try:
        return resolve(torch.cuda.get_device_capability()).family
    except UnsupportedArchitecture:
        return None


def _describe(device: torch.device, spec: AnySpec, schedule: str) -> str:
    if device.type == "cuda":
        return f"GPU, {torch.cuda.get_device_name(device)}"
    return f"simulator of {spec.arch}, schedule {schedule} (it executes the PTX that NVRTC made)"
