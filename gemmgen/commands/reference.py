"""What a spec means on given operands, in float64, and how far a result is from it: ``run`` and ``check`` judge by it.

Knows the ir and torch; it shares nothing with the backends, so that a wrong plan cannot hide in it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from gemmgen.commands.inputs import LARGEST, NAN_BYTES, Operands, factors_of, granule, scaled_pairs
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
    Quantise,
    Reduce,
    Residual,
    Scale,
    SoftCap,
    Step,
    SumOfSquares,
    Wgmma,
)
from gemmgen.ir.chain import QUANTISED
from gemmgen.ir.expression import ACCUMULATOR, PAIR, evaluate, names
from gemmgen.ops.quantise import decode_ue8m0, unpack_fp4
from gemmgen.ops.quantise.blocks import spread
from gemmgen.ops.quantise.formats import decode_e2m1, decode_e4m3
from gemmgen.ops.quantise.ue8m0 import ue8m0_bytes

GROUP = 8
"""Neighbouring columns of gate, or of up."""
TILE = 64
"""Errors are taken per tile of this many rows and columns, so that one wrong corner is not averaged away."""


FP32_MAX = torch.finfo(torch.float32).max
LEAST, LEAST_NORMAL = 2.0**-150, torch.finfo(torch.float32).tiny
"""Below these fp32 rounds to 0; some instructions do below its normal numbers."""


@dataclass(frozen=True)
class Errors:
    """How far a result is from the reference: the worst tile's relative error, and the field's global difference.

    ``apart`` counts elements that are NaN or infinite in one of the two and not the same in the other: with any of them
    both errors are infinite.
    """

    worst_tile: float
    calc_diff: float
    apart: int = 0

    @property
    def remark(self) -> str:
        """Why errors are infinite, to be said behind them; nothing where they are not."""
        return f", {self.apart} elements are NaN or infinite on one side only" if self.apart else ""


def judged(spec: KernelSpec) -> tuple[str, ...]:
    """Outputs that have a reference: what the last step stores, what is kept on the way there, what a prologue sums."""
    steps = [step for step in (*spec.epilogue, *spec.prologue) if isinstance(step, Keep | SumOfSquares)]
    return (spec.output.name, *(step.to for step in steps))


def reference(
    spec: KernelSpec, operands: Operands, output: str | None = None, shift: float = 0.0, least: float = LEAST
) -> torch.Tensor:
    """An output, the stored one by default, in float64 on the dequantised inputs, before it is rounded to its type.

    Of a reduction, the numbers that it reduces. An output that is added to holds what it did before. Sums are off by
    ``shift``, relative to their root mean square. What steps make is 0 below ``least``.
    """
    a, b = (_numbers(operands[each.name], each) for each in factors_of(spec))
    if pairs := scaled_pairs(spec):
        a, b = (
            values * _spread(operands[scale.name], scale, *values.shape)
            for values, (_, scale) in zip((a, b), pairs, strict=True)
        )
    if output in [step.to for step in spec.prologue if isinstance(step, SumOfSquares)]:
        return a.square().sum(1, keepdim=True)
    result = a @ b.T
    if shift:
        result = result + shift * result.square().mean().sqrt()
    for step in spec.epilogue:
        reads = [_broadcast(spec.operand(name), operands[name], result) for name in step.reads]
        result = _in_fp32(_stepped(step, result, reads, least), least)
        if isinstance(step, Keep) and step.to == output:
            return _saturated(result, spec.operand(step.to).dtype)
        if isinstance(step, Reduce) and step.to == output:
            return result
    if spec.accumulates:
        result = result + _stored(spec, _numbers(operands[spec.output.name], spec.output))
    return result


def _in_fp32(x: torch.Tensor, least: float) -> torch.Tensor:
    """What fp32 has of a number: infinity and 0 where its range ends."""
    x = x.masked_fill(x > FP32_MAX, math.inf).masked_fill(x < -FP32_MAX, -math.inf)
    return torch.where(x.abs() < least, x * 0.0, x)


def _stepped(step: Step, x: torch.Tensor, reads: list[torch.Tensor], least: float) -> torch.Tensor:
    """A cast only saturates, and what writes changes no number here."""
    if isinstance(step, Scale):
        return x * reads[0]
    if isinstance(step, Bias):
        return x + reads[0]
    if isinstance(step, Residual):
        return x + reads[0] * (reads[1] if len(reads) > 1 else 1.0)
    if isinstance(step, Activation):
        return MEANINGS[step.function](x)
    if isinstance(step, SoftCap):
        return step.cap * torch.tanh(x / step.cap)
    if isinstance(step, Gate):
        halves = x.unflatten(1, (2, -1, GROUP)) if step.layout == "halves" else x.unflatten(1, (-1, 2, GROUP))
        gate, up = halves.unbind(1 if step.layout == "halves" else 2)
        return _computed(step, {"gate": gate.flatten(1), "up": up.flatten(1)}, reads, least)
    if isinstance(step, Apply):
        return _computed(step, {"acc": x}, reads, least)
    return _saturated(x, step.to) if isinstance(step, Cast) else x


def _computed(
    step: Apply | Gate, given: dict[str, torch.Tensor], reads: list[torch.Tensor], least: float
) -> torch.Tensor:
    """The author's expression, everything in it a tensor: 1 / 0 and sqrt(2) mean what they do in a kernel."""
    first = next(iter(given.values()))
    tree = _Kernels(first).visit(step.tree)  # parsed anew whenever it is asked for
    values = {**given, **dict(zip(step.reads, reads, strict=True))}
    meanings: dict[str, Callable[..., torch.Tensor]] = {**MEANINGS, IN_FP32: partial(_in_fp32, least=least)}
    return torch.broadcast_to(evaluate(tree, values, meanings), first.shape)


IN_FP32 = "in fp32"
"""Called on all that an expression computes; no author's function has a blank in its name."""


class _Kernels(ast.NodeTransformer):
    """An expression as a kernel has it: constants are tensors, rounded to fp32, which lie where ``like`` does, and
    whatever is computed on the way ends where fp32 does."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(self.like.new_tensor(node.value).float().double())

    def visit_BinOp(self, node: ast.BinOp) -> ast.Call:
        return _ending(self.generic_visit(node))

    def visit_Call(self, node: ast.Call) -> ast.Call:
        return _ending(self.generic_visit(node))


def _ending(node: ast.AST) -> ast.Call:
    assert isinstance(node, ast.expr)
    return ast.Call(func=ast.Name(id=IN_FP32), args=[node], keywords=[])


def _saturated(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    return x.clamp(-LARGEST[dtype], LARGEST[dtype]) if dtype in LARGEST else x


MEANINGS: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs,
    "erf": torch.special.erf,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "log": torch.log,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "relu": torch.nn.functional.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "sqrt": torch.sqrt,
    "squared_relu": lambda x: torch.nn.functional.relu(x).square(),
    "tanh": torch.tanh,
    "where": torch.where,
}
"""Functions of expressions, by torch."""


def has_edges(spec: KernelSpec) -> bool:
    """Whether the sums go through a function that is no number, or has no bound or slope, at some value."""
    trees = [step.tree for step in spec.epilogue if isinstance(step, Apply | Gate)]
    arguments = [each for tree in trees for node in ast.walk(tree) for each in _at_an_edge(node)]
    return any({ACCUMULATOR, *PAIR} & set(names(each, ())) for each in arguments)


def _at_an_edge(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.BinOp(op=ast.Div(), right=divisor) if not _is_positive(divisor):
            return [divisor]
        case ast.Call(func=ast.Name(id="log" | "rsqrt" | "sqrt"), args=arguments):
            return arguments
    return []


def _is_positive(node: ast.expr, or_zero: bool = False) -> bool:
    """Whether a divisor is never 0, by how it is written: 1 + exp(-acc), or 1 + acc * acc."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number > 0 or (or_zero and number == 0)
        case ast.Call(func=ast.Name(id="exp" | "sigmoid")):
            return True
        case ast.Call(func=ast.Name(id="abs" | "relu" | "squared_relu" | "sqrt")):
            return or_zero
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            if or_zero:
                return _is_positive(left, True) and _is_positive(right, True)
            return any(_is_positive(one) and _is_positive(other, True) for one, other in ((left, right), (right, left)))
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            squared = or_zero and ast.dump(left) == ast.dump(right)
            return squared or (_is_positive(left, or_zero) and _is_positive(right, or_zero))
    return False


def slack_of(spec: KernelSpec, operands: Operands, output: str | None = None) -> torch.Tensor:
    """How far rounding of the sums by itself may move an output that ``has_edges``; 0 of any other.

    Infinite where it makes NaN or infinity of a number, or the other way round, as log does with sums near 0, and any
    expression where fp32 ends. Whether numbers below the normal ones are 0 may move any output.
    """
    if not any(isinstance(step, Apply | Gate) for step in spec.epilogue):
        return torch.zeros(())
    expected, rounding = reference(spec, operands, output), _rounding_of_sums(spec)
    found, edges = torch.zeros_like(expected), has_edges(spec)
    for shift, least in ((-rounding, LEAST), (rounding, LEAST), (0.0, LEAST_NORMAL)):
        moved = reference(spec, operands, output, shift, least)
        distance = (moved - expected).abs().where(expected.isfinite() & moved.isfinite(), 0.0)
        distance = distance if edges or not shift else distance * 0.0
        found = found.maximum(distance.masked_fill(_apart(moved, expected), math.inf))
    return found


def compare(result: torch.Tensor, expected: torch.Tensor, slack: torch.Tensor | None = None) -> Errors:
    """Errors of a result, beyond its slack, over what is finite; what is NaN or infinite has to be the same in both."""
    x, y = result.to(expected.device).double(), expected.double()
    if x.numel() == 0:
        return Errors(0.0, 0.0)
    slack = torch.zeros_like(y) if slack is None else slack.expand_as(y)
    apart = int((_apart(x, y) & slack.isfinite()).sum())
    if apart:
        return Errors(math.inf, math.inf, apart)
    counted = y.isfinite() & slack.isfinite()
    x, y, slack = x.where(counted, 0.0), y.where(counted, 0.0), slack.where(counted, 0.0)
    off = ((x - y).abs() - slack).clamp_min(0.0)
    squares = (x * x + y * y).sum()
    diff = 1 - 2 * (x * y).sum() / squares if squares != 0 else squares
    # What may move a lot is judged by itself: large as such elements are, others would be measured by them. What moves
    # by denormals alone is none of these.
    loose = slack > (LOOSE * y.abs()).clamp_min(LEAST_JUDGED)
    alone = off.div(y.abs().clamp_min(LEAST_JUDGED)).where(loose, 0.0).max()
    tiles = _tile_norms(off.where(~loose, 0.0)).div(_tile_norms(y.where(~loose, 0.0)).clamp_min(LEAST_JUDGED))
    return Errors(float(torch.maximum(tiles.max(), alone)), abs(float(diff)))


LEAST_JUDGED = 1e-30
"""Errors of numbers below are taken relative to this."""
LOOSE = 1e-4
"""Slack of an element over the element, from which on it is no part of its tile."""


def _apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Which elements are NaN or infinite in one and not the same in the other."""
    same = (x == y) | (x.isnan() & y.isnan())
    return ~same & ~(x.isfinite() & y.isfinite())


def tolerance(spec: KernelSpec, output: str | None = None) -> float:
    """The worst tile error that rounding explains: of an output to its type, plus of sums inside the tensor core."""
    return ROUNDING.get(spec.operand(output or spec.output.name).dtype, 0.0) + _rounding_of_sums(spec)


def _rounding_of_sums(spec: KernelSpec) -> float:
    thirteen_bits = isinstance(spec.math.body, Wgmma) and factors_of(spec)[0].dtype == DType.E4M3
    return 2e-3 if thirteen_bits else 1e-4


ROUNDING = {DType.BF16: 2**-8, DType.F16: 2**-11, DType.E5M2: 2**-3, DType.E4M3: 2**-4, DType.E2M1: 2**-2}
"""The relative error of rounding to a type, of what lies in its range, by itself or with the scale of its block."""


def reduction_errors(spec: KernelSpec, operands: Operands) -> dict[str, Errors]:
    """How far each reduction among the outputs is off, relative to what it would be of magnitudes.

    Rounding of the sums moves it by no more than what it moves the numbers by that are reduced, see ``slack_of``.
    """
    found = {}
    for step in spec.epilogue:
        if isinstance(step, Reduce):
            result, x = operands[step.to], reference(spec, operands, step.to)
            assert isinstance(result, torch.Tensor)
            slack = slack_of(spec, operands, step.to).expand_as(x)
            if step.function == "sum_of_squares":
                x, slack = x.square(), (slack * (2 * x.abs() + slack)).where(slack > 0, 0.0)
            along = {"m": [0], "n": [1], "mn": [0, 1]}[step.along]
            size = x.abs().amax(along) if step.function == "amax" else x.abs().sum(along)
            expected = size if step.function == "amax" else x.sum(along)
            slack = slack.amax(along) if step.function == "amax" else slack.sum(along)
            apart = int((_apart(result.double(), expected) & slack.isfinite()).sum())
            error = ((result.double() - expected).abs() - slack).clamp_min(0.0) / size.clamp_min(1e-30)
            counted = expected.isfinite() & slack.isfinite()
            worst = math.inf if apart else float(error.where(counted, 0.0).max())
            found[step.to] = Errors(worst, worst, apart)
    return found


def numbers_of(spec: KernelSpec, outputs: Operands, output: str | None = None) -> torch.Tensor:
    """What an output, the stored one by default, stands for: times the scales of its blocks, slices added up."""
    step = spec.epilogue[-1]
    value = outputs[output or spec.output.name]
    assert isinstance(value, torch.Tensor)
    if not isinstance(step, Quantise) or output not in (None, step.to):
        value = value.sum(0) if spec.sliced else value
        value = _stored(spec, value) if output in (None, spec.output.name) else value
        return value[:, None] if value.dim() == 1 else value
    data, scales = spec.operand(step.to), spec.operand(step.scales)
    codes = _numbers(value, data)
    size = QUANTISED[data.dtype, scales.dtype]
    spread_scales = spread(_numbers(outputs[scales.name], scales), (1, size), *codes.shape)
    tensor_scale = outputs[step.tensor_scale] if step.tensor_scale else 1.0
    return codes * spread_scales * (tensor_scale.double() if isinstance(tensor_scale, torch.Tensor) else tensor_scale)


def _stored(spec: KernelSpec, value: torch.Tensor) -> torch.Tensor:
    """The columns of an output's rows that are the product's."""
    return value[:, head_columns(spec.output.heads, value.shape[1])] if spec.output.heads else value


def head_columns(heads: HeadSplit, stored: int) -> torch.Tensor:
    """Which of an output's columns are the product's: all but the gaps in the middle of heads."""
    place = torch.arange(stored) % (heads.head + heads.mid)
    return ((place < heads.left) | (place >= heads.left + heads.mid)).nonzero().flatten()


def _tile_norms(values: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % TILE, 0, -rows % TILE))
    tiles = padded.unflatten(1, (-1, TILE)).unflatten(0, (-1, TILE))
    return tiles.square().sum(dim=(1, 3)).sqrt()


def _numbers(value: torch.Tensor | float, operand: Operand) -> torch.Tensor:
    """A factor or its scales in float64 as [m or n, k]; words of scales become four columns each."""
    assert isinstance(value, torch.Tensor)
    stored = value.T if operand.axes[0] == "k" else value
    if operand.dtype == DType.E2M1:
        return decode_e2m1(unpack_fp4(stored.contiguous())).double()
    if operand.dtype == DType.UE8M0:
        return decode_ue8m0(stored).double()
    if operand.dtype in NAN_BYTES:
        codes = ue8m0_bytes(stored)  # of words; also where they hold another kind of byte
        decode = decode_ue8m0 if operand.dtype == DType.UE8M0X4 else decode_e4m3
        return decode(codes).double()
    return stored.float().double()


def _spread(value: torch.Tensor | float, scale: Operand, rows: int, k: int) -> torch.Tensor:
    """Scales repeated to one an element of [m or n, k]."""
    return spread(_numbers(value, scale), granule(scale), rows, k)


def _broadcast(operand: Operand, value: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    """A step's operand, shaped to meet [m, n]; a scalar of the host lies where ``like`` does."""
    if not isinstance(value, torch.Tensor):
        return like.new_tensor(value)
    wide = value.double()
    return wide[:, None] if operand.box == ("m",) else wide
