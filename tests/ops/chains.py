"""Epilogue chains for tests: a base kernel per architecture, steps with their operands, and data for both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import reduced
import reference
import torch

import gemmgen
from gemmgen.catalog import dense, dense_sm100, dense_sm120
from gemmgen.ir import (
    Activation,
    Apply,
    Bias,
    Cast,
    DType,
    Gate,
    HeadSplit,
    Keep,
    KernelSpec,
    Operand,
    Reduce,
    Residual,
    Scale,
    SoftCap,
    Step,
    split_axis,
)
from gemmgen.runtime.arguments import expected_shape

BASES: dict[str, Callable[[DType], KernelSpec]] = {
    "sm90": lambda d: dense.bf16_gemm("nt", dense.Shape(64, 32, groups=1), d),
    "sm100": lambda d: dense_sm100.bf16_gemm("nt", dense_sm100.PairShape(64), d),
    "sm120": lambda d: dense_sm120.bf16_gemm("nt", dense_sm120.WarpShape(64, 64), d),
}
"""A small kernel of each architecture, by output type."""
TORCH = {
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.F32: torch.float32,
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
}
BOXES: dict[str, tuple[str, ...]] = {"scalar": (), "m": ("m",), "n": ("n",), "matrix": ("m", "n")}


@dataclass(frozen=True)
class Link:
    """A step and the operands it brings."""

    step: Step
    operands: tuple[Operand, ...] = ()


def scale(index: int, along: str, dtype: DType = DType.F32, on_device: bool = False) -> Link:
    operand = Operand(name=f"scale{index}", dtype=dtype, box=BOXES[along], on_device=on_device)
    return Link(Scale(by=operand.name), (operand,))


def bias(index: int, along: str, dtype: DType = DType.BF16) -> Link:
    operand = Operand(name=f"bias{index}", dtype=dtype, box=BOXES[along])
    return Link(Bias(vector=operand.name), (operand,))


def residual(index: int, dtype: DType = DType.BF16, beta: bool = False) -> Link:
    matrix = Operand(name=f"c{index}", dtype=dtype, box=("m", "n"))
    if not beta:
        return Link(Residual(matrix=matrix.name), (matrix,))
    number = Operand(name=f"beta{index}", dtype=DType.F32, box=())
    return Link(Residual(matrix=matrix.name, beta=number.name), (matrix, number))


def activation(function: str) -> Link:
    return Link(Activation(function=function))


def soft_cap(cap: float) -> Link:
    return Link(SoftCap(cap=cap))


def keep(index: int, dtype: DType = DType.BF16) -> Link:
    return Link(Keep(to=f"kept{index}"), (Operand(name=f"kept{index}", dtype=dtype, box=("m", "n")),))


def apply(index: int, expression: str, *alongs: str) -> Link:
    """``expression`` names its operands x, y, z in the order of ``alongs``."""
    text, operands = _named(index, expression, alongs)
    return Link(Apply(expression=text), operands)


def gate(index: int, expression: str, *alongs: str, layout: str = "interleaved") -> Link:
    """Likewise; boxes are those of what the gate leaves."""
    text, operands = _named(index, expression, alongs)
    return Link(Gate(expression=text, layout=layout), operands)


def _named(index: int, expression: str, alongs: tuple[str, ...]) -> tuple[str, tuple[Operand, ...]]:
    operands = []
    for letter, along in zip("xyz", alongs, strict=False):
        dtype = DType.F32 if along == "scalar" else DType.BF16
        operands.append(Operand(name=f"{letter}{index}", dtype=dtype, box=BOXES[along]))
    text = expression.format(**{each.name[0]: each.name for each in operands})
    return text, tuple(operands)


def reduction(index: int, function: str, along: str, to: str = "") -> Link:
    box = {"n": BOXES["m"], "m": BOXES["n"], "mn": ()}[along]
    operand = Operand(name=to or f"reduced{index}", dtype=DType.F32, box=box, on_device=not box)
    return Link(Reduce(function=function, along=along, to=operand.name), (operand,))


def chained(arch: str, output: DType, links: list[Link]) -> KernelSpec:
    """The architecture's small kernel with these links before its cast; behind a gate operands have half of n."""
    base = BASES[arch](output)
    tail = [step for step in base.epilogue if not isinstance(step, Cast)]
    cast = [Cast(to=output)] if output != DType.F32 else []
    extra: list[Operand] = []
    gated = False
    for link in links:
        gated = gated or isinstance(link.step, Gate)
        extra += [halved(each) if gated else each for each in link.operands]
    return base.replace(
        name=f"chain_{arch}",
        operands=(*base.operands[:-1], *extra, halved(base.operands[-1]) if gated else base.operands[-1]),
        epilogue=(*(link.step for link in links), *cast, *tail),
    )


def halved(operand: Operand) -> Operand:
    """The operand behind a gate: where it has one element for so many of n, now for twice as many."""
    split = [(axis, *split_axis(axis)) for axis in operand.box]
    return operand.replace(box=tuple(f"n/{2 * by}" if name == "n" else axis for axis, name, by in split))


def with_heads(spec: KernelSpec, heads: HeadSplit) -> KernelSpec:
    """The kernel with gaps in the middle of the heads of what it stores."""
    moved = spec.output.replace(heads=heads)
    return spec.replace(operands=tuple(moved if each == spec.output else each for each in spec.operands))


def data(spec: KernelSpec, sizes: dict[str, int], seed: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Normal numbers for tensors, factors scaled so that sums are of the size of one; outputs are left out."""
    generator = torch.Generator().manual_seed(seed)
    tensors, scalars = {}, {}
    for operand in spec.operands:
        if operand.is_scalar:
            scalars[operand.name] = float(torch.rand((), generator=generator) + 0.5)
        elif operand not in spec.outputs:
            values = torch.randn(expected_shape(operand, sizes), generator=generator)
            size = sizes["k"] ** -0.25 if "k" in operand.box else 1.0
            tensors[operand.name] = pitched((values * size).to(TORCH[operand.dtype]), operand)
    return tensors, scalars


def pitched(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    """Rows of a matrix, or columns where those are contiguous, 16-byte aligned with NaN between them."""
    if values.dim() != 2:
        return values
    if operand.inner != operand.box[-1]:
        return pitched(values.T, operand.replace(box=operand.box[::-1])).T
    step = 16 // values.element_size()
    wide = torch.full((values.shape[0], -(-values.shape[1] // step) * step), torch.nan).to(values.dtype)
    wide[:, : values.shape[1]] = values
    return wide[:, : values.shape[1]]


def run_and_check(
    spec: KernelSpec, sizes: dict[str, int], seed: int, schedule: str = "random", device: str = "cpu"
) -> None:
    """One call, simulated on the CPU, on poisoned outputs: each element against the reference, the poison beside."""
    tensors, scalars = data(spec, sizes, seed)
    rooms = {each.name: Room(each, sizes, device) for each in spec.outputs}
    there = {
        name: torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device).copy_(each)
        for name, each in tensors.items()
    }
    simulated = gemmgen.simulate(str(spec.arch), schedule=schedule, seed=seed, sms=2)
    with simulated if device == "cpu" else nullcontext():
        gemmgen.op(spec)(**there, **scalars, **{name: room.output for name, room in rooms.items()})
    for name, meaning in {spec.output.name: spec, **reference.kept(spec)}.items():
        reference.check(rooms[name].output.cpu(), meaning, tensors, scalars)
    reduced.check_reductions({name: room.output.cpu() for name, room in rooms.items()}, spec, tensors, scalars)
    for room in rooms.values():
        room.check_untouched()


class Room:
    """An output amid memory full of NaN, a vector as one row: rows above and below, columns beside, gaps of heads."""

    def __init__(self, operand: Operand, sizes: dict[str, int], device: str = "cpu") -> None:
        shape = expected_shape(operand, sizes)
        rows, columns = [1, 1, *shape][-2:]
        pitch = -(-columns // 16) * 16 + 16
        self.name = operand.name
        self.whole = torch.full((rows + 2, pitch), torch.nan).to(TORCH[operand.dtype]).to(device)
        self.output = self.whole[1:-1, :columns]
        while self.output.dim() > len(shape):
            self.output = self.output[0]
        self.outside = torch.ones(pitch, dtype=torch.bool)
        if operand.heads:
            columns = sizes["n"] // split_axis(operand.inner)[1]
        self.outside[reference.places(operand, columns)] = False

    def check_untouched(self) -> None:
        """Every number beside the output, and in the gaps of its heads, is still NaN."""
        whole = self.whole.float()
        for beside in (whole[0], whole[-1], whole[:, self.outside]):
            assert beside.isnan().all(), f"{self.name}: written beside the output"
