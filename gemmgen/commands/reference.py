"""Random operands of a spec, and what the spec means on them in float64: the yardstick of ``run`` and ``check``.

Knows the ir and torch; it shares nothing with the backends, so that a wrong plan cannot hide in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gemmgen.ir import Bias, DType, KernelSpec, Operand, Residual, Scale, Wgmma, split_axis

TORCH_TYPES = {DType.E4M3: torch.float8_e4m3fn, DType.BF16: torch.bfloat16, DType.F32: torch.float32}
E4M3_MAX = 448.0
TILE = 64
"""Errors are taken per tile of this many rows and columns, so that one wrong corner is not averaged away."""

Operands = dict[str, torch.Tensor | float]


@dataclass(frozen=True)
class Errors:
    """How far a result is from the reference: the worst tile's relative error, and the field's global difference."""

    worst_tile: float
    calc_diff: float


def random_operands(spec: KernelSpec, sizes: Mapping[str, int], seed: int) -> Operands:
    """Normal data, quantised block by block where the spec scales blocks; the output full of NaN bits."""
    generator = torch.Generator().manual_seed(seed)
    found: Operands = {}
    for data, scale in _scaled_pairs(spec):
        values = torch.randn(_shape(data, sizes), generator=generator)
        found[data.name], found[scale.name] = _quantise(values, data, scale)
    for operand in spec.operands:
        if operand.name in found:
            continue
        if operand.is_scalar:
            found[operand.name] = float(torch.rand((), generator=generator) + 0.5)
        else:
            values = torch.randn(_shape(operand, sizes), generator=generator)
            found[operand.name] = _lay_out(values.to(TORCH_TYPES[operand.dtype]), operand)
    found[spec.output.name] = poisoned(spec.output, sizes)
    return found


def poisoned(output: Operand, sizes: Mapping[str, int]) -> torch.Tensor:
    """An output in which every byte is 0xFF: NaN in each type, so that an element nobody wrote shows."""
    tensor = _lay_out(torch.zeros(_shape(output, sizes), dtype=TORCH_TYPES[output.dtype]), output)
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(0xFF)
    return tensor


def reference(spec: KernelSpec, operands: Operands) -> torch.Tensor:
    """The result in float64 on the dequantised inputs, before it is rounded to the output's type."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    a, b = _wide(operands[body.a], spec.operand(body.a), "m"), _wide(operands[body.b], spec.operand(body.b), "n")
    if body.promote is not None:
        a = a * _spread(spec.operand(body.promote.a), operands[body.promote.a], "m", a.shape)
        b = b * _spread(spec.operand(body.promote.b), operands[body.promote.b], "n", b.shape)
    result = a @ b.T
    for step in spec.epilogue:
        if isinstance(step, Scale):
            result = result * _broadcast(spec.operand(step.by), operands[step.by])
        elif isinstance(step, Bias):
            result = result + _broadcast(spec.operand(step.vector), operands[step.vector])
        elif isinstance(step, Residual):
            beta = 1.0 if step.beta is None else operands[step.beta]
            result = result + beta * _broadcast(spec.operand(step.matrix), operands[step.matrix])
    return result


def compare(result: torch.Tensor, expected: torch.Tensor) -> Errors:
    """Errors of a result; NaN anywhere makes both NaN."""
    x, y = result.double().cpu(), expected.double()
    if x.numel() == 0:
        return Errors(0.0, 0.0)
    squares = (x * x + y * y).sum()
    diff = 1 - 2 * (x * y).sum() / squares if squares != 0 else squares
    return Errors(float(_tile_norms(x - y).div(_tile_norms(y).clamp_min(1e-30)).max()), abs(float(diff)))


def tolerance(spec: KernelSpec) -> float:
    """The worst tile error that rounding explains: of D to bf16, plus of sums inside the tensor core."""
    body = spec.math.body
    assert isinstance(body, Wgmma)
    output = 2**-8 if spec.output.dtype == DType.BF16 else 0.0
    sums = 2e-3 if spec.operand(body.a).dtype == DType.E4M3 else 1e-4
    return output + sums


def _tile_norms(values: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % TILE, 0, -rows % TILE))
    tiles = padded.unflatten(1, (-1, TILE)).unflatten(0, (-1, TILE))
    return tiles.square().sum(dim=(1, 3)).sqrt()


def _scaled_pairs(spec: KernelSpec) -> list[tuple[Operand, Operand]]:
    body = spec.math.body
    assert isinstance(body, Wgmma)
    if body.promote is None:
        return []
    return [
        (spec.operand(body.a), spec.operand(body.promote.a)),
        (spec.operand(body.b), spec.operand(body.promote.b)),
    ]


def _quantise(values: torch.Tensor, data: Operand, scale: Operand) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes and their scales: the largest magnitude of each block becomes 448."""
    rows, columns = (_divisor(scale, axis) for axis in data.axes)
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % columns, 0, -values.shape[0] % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scales = blocks.abs().amax(dim=(1, 3)).clamp_min(1e-4) / E4M3_MAX
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    codes = (values / spread[: values.shape[0], : values.shape[1]]).to(torch.float8_e4m3fn)
    ordered = scales if scale.axes == data.axes else scales.T
    return _lay_out(codes, data), _lay_out(ordered, scale)


def _divisor(operand: Operand, axis: str) -> int:
    return next(divisor for name, divisor in map(split_axis, operand.box) if name == axis)


def _shape(operand: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(-(-sizes[name] // divisor) for name, divisor in map(split_axis, operand.box))


def _lay_out(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    """The values in the operand's memory order, rows (or columns) 16 bytes apart as TMA asks."""
    if values.dim() != 2:
        return values.contiguous()
    inner = operand.box.index(operand.inner)
    step = max(1, 16 // values.element_size())
    pitch = max(-(-values.shape[inner] // step) * step, step)
    storage = torch.zeros(max(values.shape[1 - inner], 1), pitch, dtype=values.dtype)
    view = storage[: values.shape[1 - inner], : values.shape[inner]]
    view = view if inner == 1 else view.T
    view.copy_(values)
    return view


def _wide(value: torch.Tensor | float, operand: Operand, outer: str) -> torch.Tensor:
    """A matrix operand in float64 as [m or n, k]."""
    assert isinstance(value, torch.Tensor)
    wide = value.float().double()
    return wide if operand.axes[0] == outer else wide.T


def _spread(operand: Operand, value: torch.Tensor | float, outer: str, shape: torch.Size) -> torch.Tensor:
    """Scales repeated to one an element of [m or n, k]."""
    scales = _wide(value, operand, outer)
    spread = scales.repeat_interleave(_divisor(operand, outer), 0).repeat_interleave(_divisor(operand, "k"), 1)
    return spread[: shape[0], : shape[1]]


def _broadcast(operand: Operand, value: torch.Tensor | float) -> torch.Tensor | float:
    """A step's operand, shaped to meet [m, n]."""
    if not isinstance(value, torch.Tensor):
        return value
    wide = value.double()
    return wide[:, None] if operand.box == ("m",) else wide
