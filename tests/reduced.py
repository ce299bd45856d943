"""What reductions of an epilogue mean, in float64, and how far fp32 may be from it in whatever order it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from reference import FP32_EPSILON, Tensors, decode, evaluate, moved

from gemmgen.ir import DType, KernelSpec, Operand, Reduce

DIMENSIONS = {"n": (1,), "m": (0,), "mn": (0, 1)}


def reducing(spec: KernelSpec, name: str, steps: Sequence[Reduce], first: int = 0, columns: str = "n") -> KernelSpec:
    """The spec with reductions behind the chain's first steps, where it has ``columns``, and operands for them."""
    boxes = {each.to: each.box(columns) for each in steps}
    results = (Operand(name=to, dtype=DType.F32, box=box, on_device=not box) for to, box in boxes.items())
    chain = (*spec.epilogue[:first], *steps, *spec.epilogue[first:])
    return spec.replace(name=f"{spec.arch}_{name}", operands=(*spec.operands, *results), epilogue=chain)


def check_reductions(
    outputs: Tensors, spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None
) -> None:
    """Every reduction of the chain within its tolerance; the message names the first that is not."""
    for index, step in enumerate(spec.epilogue):
        if not isinstance(step, Reduce):
            continue
        x, off = (each(spec, tensors, scalars, index) for each in (evaluate, moved))
        exact, allowed = reduced(step, x, off)
        error = (decode(outputs[step.to]) - exact).abs()
        assert outputs[step.to].shape == exact.shape
        worst = (error / (allowed + 1e-30)).max() if error.numel() else 0
        assert worst <= 1, f"{spec.name}: {step.to} is off by {worst:.3g} times what it may be"


def check_reductions_of(stored: str, outputs: Tensors, spec: KernelSpec) -> None:
    """Every reduction is that of the fp32 output of this name, which the chain's sums went to as they were.

    How exact the sums are is left out: a largest magnitude must be the output's bit for bit, and sums differ by the
    order of their terms alone.
    """
    values = decode(outputs[stored])
    for step in spec.epilogue:
        if not isinstance(step, Reduce):
            continue
        exact, allowed = reduced(step, values, torch.zeros_like(values))
        error = (decode(outputs[step.to]) - exact).abs()
        assert bool(
            (error <= allowed).all()
        ), f"{spec.name}: {step.to} is not that of {stored}, off by {error.max():.3g}"


def reduced(step: Reduce, x: torch.Tensor, off: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result on values ``x`` that may each be ``off`` by so much, and how far it may be off."""
    along = DIMENSIONS[step.along]
    if step.function == "amax":
        return x.abs().amax(along), off.amax(along)
    if step.function == "sum_of_squares":
        x, off = x * x, (2 * x.abs() + off) * off
    terms = x.numel() / max(x.sum(along).numel(), 1)
    return x.sum(along), off.sum(along) + (x.abs() + off).sum(along) * FP32_EPSILON * (terms / 2 + 1)
