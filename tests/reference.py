"""What every node of the ir means, said in torch and float64, with decoders of its own.

Shares no code or table with gemmgen's backends, templates or simulator, so that they can be judged by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from gemmgen.ir import (
    Activation,
    Apply,
    Bias,
    BlockScale,
    Cast,
    DType,
    Gate,
    Keep,
    KernelSpec,
    Multiplier,
    Operand,
    Reduce,
    Residual,
    Scale,
    SoftCap,
    Step,
    Store,
    Wgmma,
    split_axis,
)
from gemmgen.ir.expression import evaluate as evaluate_expression

Tensors = Mapping[str, torch.Tensor]
FP32_EPSILON = 2.0**-23
NUDGE = 2.0**-18
"""How far, of itself, what a step reads may be off: its arithmetic is fp32 with approximate functions."""
LEAST_SIGMOID = 2.0**-61
"""Numbers below -43 count as -43 where two sigmoids share a reciprocal."""
ROUNDING = {DType.BF16: 2.0**-8, DType.F16: 2.0**-11, DType.F32: 2.0**-23, DType.E4M3: 2.0**-4, DType.E5M2: 2.0**-3}
"""Relative error of rounding to nearest."""
SUBNORMAL = {DType.F16: 2.0**-25, DType.E4M3: 2.0**-10, DType.E5M2: 2.0**-17}
"""Half of the smallest number: an error that is not relative."""
LARGEST = {DType.F16: 65504.0, DType.E4M3: 448.0, DType.E5M2: 57344.0}
"""What larger numbers become, where a type saturates."""


# ------------------------------------------------------------------------------------------------------- decoding


def decode(tensor: torch.Tensor) -> torch.Tensor:
    """The float64 numbers that a tensor's bits stand for."""
    if tensor.dtype == torch.float8_e4m3fn:
        return _e4m3_values().to(tensor.device)[tensor.view(torch.uint8).long()]
    if tensor.dtype == torch.float8_e5m2:
        return _e5m2_values().to(tensor.device)[tensor.view(torch.uint8).long()]
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).int() << 16
        return bits.view(torch.float32).double()
    if tensor.dtype in (torch.float16, torch.float32):
        return tensor.double()
    raise TypeError(f"no meaning is written down for {tensor.dtype}")


def _e4m3_values() -> torch.Tensor:
    """All 256 codes: sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones is NaN, there is no infinity."""
    values = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            values.append(float("nan"))
        elif exponent == 0:
            values.append(sign * mantissa * 2.0**-9)
        else:
            values.append(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return torch.tensor(values, dtype=torch.float64)


def _e5m2_values() -> torch.Tensor:
    """All 256 codes: the upper half of an fp16 number, so bias 15, with infinities and NaN in the last exponent."""
    values = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = code >> 2 & 31, code & 3
        if exponent == 31:
            values.append(float("nan") if mantissa else sign * float("inf"))
        elif exponent == 0:
            values.append(sign * mantissa * 2.0**-16)
        else:
            values.append(sign * (1 + mantissa / 4) * 2.0 ** (exponent - 15))
    return torch.tensor(values, dtype=torch.float64)


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of 4-bit numbers; bit 3 is the sign."""


def decode_operand(tensor: torch.Tensor, operand: Operand) -> torch.Tensor:
    """The float64 numbers of an operand whose element type torch does not know; words of scales become bytes of k."""
    if operand.dtype == DType.E2M1:
        return _pairs(tensor, operand.box.index(operand.inner))
    if operand.dtype in (DType.UE8M0X4, DType.UE4M3X4):
        return _scale_bytes(tensor, operand)
    return decode(tensor)


def _pairs(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    """Two 4-bit numbers a byte along one dimension, the even one in the low half."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64, device=tensor.device)
    codes = tensor.view(torch.uint8).long()
    halves = torch.stack((codes & 15, codes >> 4), dim=dimension + 1)
    return values[halves.flatten(dimension, dimension + 1)]


def _scale_bytes(words: torch.Tensor, operand: Operand) -> torch.Tensor:
    """[rows, words of k] to [rows, 4 scales a word], the lowest k in the low byte."""
    codes = torch.stack([words.long() >> 8 * byte & 255 for byte in range(4)], dim=-1).flatten(1)
    if operand.dtype == DType.UE4M3X4:
        return _e4m3_values().to(words.device)[codes]
    return torch.where(codes == 255, torch.nan, torch.pow(2.0, codes.double() - 127))


def spread(scales: torch.Tensor, operand: Operand, sizes: Mapping[str, int]) -> torch.Tensor:
    """Block scales repeated to one value per element: ``"k/128"`` covers 128 of k, the last block what is left.

    A word of four scales covers ``k / divisor``, so each scale a quarter of the divisor.
    """
    packed = 4 if operand.dtype in (DType.UE8M0X4, DType.UE4M3X4) else 1
    scales = decode_operand(scales, operand)
    for dimension, axis in enumerate(operand.box):
        name, divisor = split_axis(axis)
        each = divisor // packed if name == "k" else divisor
        index = torch.arange(sizes[name], device=scales.device) // each
        scales = scales.index_select(dimension, index)
    return scales


# ------------------------------------------------------------------------------------------------------- pipeline


def sizes_of(spec: KernelSpec, tensors: Tensors) -> dict[str, int]:
    """m, n and k, read off the two factors."""
    body = _body(spec)
    sizes: dict[str, int] = {}
    for name in (body.a, body.b):
        operand = spec.operand(name)
        for axis, size in zip(operand.box, tensors[name].shape, strict=True):
            sizes[axis] = size * (operand.dtype.packed if axis == operand.inner else 1)
    return sizes


def factors(spec: KernelSpec, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """A [m, k] and B [n, k] after dequantisation."""
    body, sizes = _body(spec), sizes_of(spec, tensors)
    a, b = (
        _oriented(spec.operand(name), decode_operand(tensors[name], spec.operand(name))) for name in body.operands[:2]
    )
    if (scales := _scales(body)) is not None:
        sfa, sfb = (spec.operand(name) for name in (scales.a, scales.b))
        a = a * _oriented(sfa, spread(tensors[sfa.name], sfa, sizes))
        b = b * _oriented(sfb, spread(tensors[sfb.name], sfb, sizes))
    return a, b


def evaluate(
    spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None, end: int | None = None
) -> torch.Tensor:
    """The output in float64, before the rounding of its cast; or the value before step ``end``."""
    a, b = factors(spec, tensors)
    return _epilogue(spec, a @ b.T, tensors, scalars or {}, end=end)


def kept(spec: KernelSpec) -> dict[str, KernelSpec]:
    """What each kept output means: the output of a spec whose chain ends there."""
    found = {}
    for index, step in enumerate(spec.epilogue):
        if isinstance(step, Keep):
            steps = [each for each in spec.epilogue[:index] if not isinstance(each, Keep | Reduce)]
            chain = (*steps, Cast(to=spec.operand(step.to).dtype), Store(to=step.to))
            rings = tuple(ring for ring in spec.rings if ring.turns != "store")
            used = {name for ring in rings for name in ring.holds} | {name for each in chain for name in each.operands}
            operands = tuple(each for each in spec.operands if each.name in used)
            found[step.to] = spec.replace(operands=operands, rings=rings, epilogue=chain)
    return found


def tolerance(spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> torch.Tensor:
    """Per element, how far a correct kernel may be off: rounding of the output, of fp32 sums over k, of each step."""
    exact, least = evaluate(spec, tensors, scalars), SUBNORMAL.get(spec.output.dtype, 1e-30)
    return exact.abs() * ROUNDING[spec.output.dtype] + moved(spec, tensors, scalars) + least


def moved(
    spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None, end: int | None = None
) -> torch.Tensor:
    """How far the value before step ``end``, or at the end of the chain, may be off before it is rounded.

    Found by moving the sums, and what each step reads, by as much as fp32 may be off, and looking at the end.
    """
    a, b = factors(spec, tensors)
    sums, numbers = a @ b.T, scalars or {}
    steps = sizes_of(spec, tensors)["k"] / 16 + 8
    promoted = isinstance(_body(spec), Wgmma) and _scales(_body(spec)) is not None
    coarse = 2.0**-13 if promoted else FP32_EPSILON * steps  # Hopper's fp8 tensor cores keep 13 bits between K blocks
    off = a.abs() @ b.abs().T * coarse
    exact = _epilogue(spec, sums, tensors, numbers, end=end)
    found = [_epilogue(spec, sums + sign * off, tensors, numbers, end=end) for sign in (1, -1)]
    worst = torch.maximum((found[0] - exact).abs(), (found[1] - exact).abs())
    for index in range(len(spec.epilogue[:end])):
        for what in ("value", "operands", "result"):
            worst = worst + (_epilogue(spec, sums, tensors, numbers, (index, what), end) - exact).abs()
    return worst


def _body(spec: KernelSpec) -> Multiplier:
    body = spec.math.body
    assert isinstance(body, Multiplier)
    return body


def _scales(body: Multiplier) -> BlockScale | None:
    return body.promote if isinstance(body, Wgmma) else body.scales


def _oriented(operand: Operand, values: torch.Tensor) -> torch.Tensor:
    """k last."""
    return values if operand.axes[-1] == "k" else values.T


def _epilogue(
    spec: KernelSpec,
    x: torch.Tensor,
    tensors: Tensors,
    scalars: Mapping[str, float],
    nudge: tuple[int, str] | None = None,
    end: int | None = None,
) -> torch.Tensor:
    """The chain on sums, as far as ``end``.

    ``nudge`` moves the value that one step reads, or its operands, by ``NUDGE`` of itself; or the result of a function
    by a rounding of the value, because 1 + erf(x) or 1 + tanh(x) cancel where both are large, or that of a gate by what
    the least sigmoid leaves of it.
    """
    for index, step in enumerate(spec.epilogue[:end]):
        operands = {name: _operand(spec.operand(name), tensors, scalars) for name in _read(step)}
        if nudge == (index, "operands"):
            operands = {name: value * (1 + NUDGE) for name, value in operands.items()}
        if nudge == (index, "value"):
            x = x * (1 + NUDGE)
        before, x = x, _step(step, x, operands)
        if nudge == (index, "result") and isinstance(step, Activation | Apply):
            x = x + before * FP32_EPSILON
        if nudge == (index, "result") and isinstance(step, Gate):
            gate, up = gate_and_up(before, step)
            x = x + gate * up * LEAST_SIGMOID
    return x


def _read(step: Step) -> tuple[str, ...]:
    return step.operands if isinstance(step, Scale | Bias | Residual | Apply | Gate) else ()


def _step(step: Step, x: torch.Tensor, operands: Mapping[str, torch.Tensor | float]) -> torch.Tensor:
    if isinstance(step, Scale):
        return x * operands[step.by]
    if isinstance(step, Bias):
        return x + operands[step.vector]
    if isinstance(step, Residual):
        return x + (1.0 if step.beta is None else operands[step.beta]) * operands[step.matrix]
    if isinstance(step, Activation):
        return FUNCTIONS[step.function](x)
    if isinstance(step, SoftCap):
        return step.cap * torch.tanh(x / step.cap)
    if isinstance(step, Apply):
        result = evaluate_expression(step.tree, {"acc": x, **operands}, FUNCTIONS)
        return result + torch.zeros_like(x)  # an expression may not read acc at all
    if isinstance(step, Gate):
        gate, up = gate_and_up(x, step)
        return evaluate_expression(step.tree, {"gate": gate, "up": up, **operands}, FUNCTIONS) + torch.zeros_like(up)
    if isinstance(step, Cast) and step.to in LARGEST:
        return x.clamp(-LARGEST[step.to], LARGEST[step.to])
    return x  # the caller compares within the rounding of a cast to the output's type


def gate_and_up(x: torch.Tensor, step: Gate) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of gate and those of up: the first and the second half, or 8 of one beside 8 of the other."""
    column = torch.arange(x.shape[1])
    is_up = 2 * column >= x.shape[1] if step.layout == "halves" else column % 16 >= 8
    return x[:, ~is_up], x[:, is_up]


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else decode(tensor)


def _operand(operand: Operand, tensors: Tensors, scalars: Mapping[str, float]) -> torch.Tensor | float:
    """An epilogue operand, shaped to meet [m, n]."""
    if operand.is_scalar:
        return scalars[operand.name]
    values = _numbers(tensors[operand.name])
    return values[:, None] if operand.box == ("m",) else values


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": lambda x: x / 2 * torch.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),  # 1 + tanh would cancel
    "log": torch.log,
    "maximum": lambda x, y: torch.fmax(*_both(x, y)),
    "minimum": lambda x, y: torch.fmin(*_both(x, y)),
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "sqrt": torch.sqrt,
    "squared_relu": lambda x: torch.relu(x) ** 2,
    "tanh": torch.tanh,
    "where": lambda condition, x, y: torch.where(condition, *_both(x, y)),
}


def _both(x: torch.Tensor | float, y: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------- judging


def places(operand: Operand, columns: int) -> torch.Tensor:
    """Where the product's columns lie in an output, one by one."""
    heads = operand.heads
    if heads is None:
        return torch.arange(columns)
    return torch.tensor(
        [n + (n + heads.right) // (heads.left + heads.right) * heads.mid for n in range(columns)], dtype=torch.long
    )


def check(d: torch.Tensor, spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> None:
    """Every element within its tolerance; the message names the worst."""
    exact, allowed = evaluate(spec, tensors, scalars), tolerance(spec, tensors, scalars)
    d = d[:, places(spec.output, exact.shape[1])]
    error = (decode(d) - exact).abs()
    excess = torch.where(error.isnan(), torch.inf, error / allowed)
    if excess.numel() and excess.max() > 1:
        at = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{spec.name}: element {at} is {decode(d)[at]:.9g}, must be {exact[at]:.9g} within {allowed[at]:.3g}; "
            f"{int((excess > 1).sum())} of {excess.numel()} elements are wrong"
        )


def exact_result(spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> torch.Tensor:
    """The output as the kernel must give it bit for bit, for inputs whose sums are exact in fp32."""
    dtype = {DType.BF16: torch.bfloat16, DType.F32: torch.float32}[spec.output.dtype]
    x = evaluate(spec, tensors, scalars)
    rounded = x.float()
    assert bool((rounded.double() == x).all()), "the inputs' sums are not exact in fp32"
    return rounded.to(dtype)


# ------------------------------------------------------------------------------------------------------- inputs


def exact_factor(rows: int, k: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> torch.Tensor:
    """Small whole numbers, whose products sum exactly in fp32 for k up to a million."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, (rows, k), generator=generator).float().to(dtype).to(device)


def exact_scales(rows: int, columns: int, seed: int, device: str = "cpu") -> torch.Tensor:
    """Powers of two between 1/4 and 2."""
    generator = torch.Generator().manual_seed(seed)
    return torch.exp2(torch.randint(-2, 2, (rows, columns), generator=generator).float()).to(device)


def mn_major(scales: torch.Tensor) -> torch.Tensor:
    """The same scales with m contiguous and columns 16 bytes apart, NaN between them."""
    rows, columns = scales.shape
    buffer = torch.full((columns, -(-rows // 4) * 4), torch.nan, device=scales.device)
    buffer[:, :rows] = scales.T
    return buffer[:, :rows].T
