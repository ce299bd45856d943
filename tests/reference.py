"""What every node of the ir means, said in torch and float64, with decoders of its own.

Shares no code or table with gemmgen's backends, templates or simulator, so that they can be judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmgen.ir import (
    Bias,
    BlockScale,
    Cast,
    DType,
    KernelSpec,
    Multiplier,
    Operand,
    Residual,
    Scale,
    Store,
    Wgmma,
    split_axis,
)

Tensors = Mapping[str, torch.Tensor]
FP32_EPSILON = 2.0**-23
ROUNDING = {DType.BF16: 2.0**-8, DType.F32: 2.0**-23}
"""Relative error of rounding to nearest, doubled."""


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
    if tensor.dtype == torch.float32:
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


def evaluate(spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> torch.Tensor:
    """The output in float64, before the rounding of its cast."""
    a, b = factors(spec, tensors)
    return _epilogue(spec, a @ b.T, tensors, scalars or {})


def tolerance(spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> torch.Tensor:
    """Per element, how far a correct kernel may be off: rounding of the output, and of fp32 sums over k."""
    a, b = factors(spec, tensors)
    magnitudes = {name: decode(tensors[name]).abs() for name in _added(spec) if name in tensors}
    size = _epilogue(spec, a.abs() @ b.abs().T, magnitudes, {k: abs(v) for k, v in (scalars or {}).items()})
    exact = evaluate(spec, tensors, scalars).abs()
    steps = sizes_of(spec, tensors)["k"] / 16 + 8
    promoted = isinstance(_body(spec), Wgmma) and _scales(_body(spec)) is not None
    coarse = 2.0**-13 if promoted else FP32_EPSILON * steps  # Hopper's fp8 tensor cores keep 13 bits between K blocks
    return exact * ROUNDING[spec.output.dtype] + size * coarse + 1e-30


def _added(spec: KernelSpec) -> set[str]:
    """Operands that the epilogue reads."""
    return {name for step in spec.epilogue if not isinstance(step, Store) for name in step.operands}


def _body(spec: KernelSpec) -> Multiplier:
    body = spec.math.body
    assert isinstance(body, Multiplier)
    return body


def _scales(body: Multiplier) -> BlockScale | None:
    return body.promote if isinstance(body, Wgmma) else body.scales


def _oriented(operand: Operand, values: torch.Tensor) -> torch.Tensor:
    """k last."""
    return values if operand.axes[-1] == "k" else values.T


def _epilogue(spec: KernelSpec, x: torch.Tensor, tensors: Tensors, scalars: Mapping[str, float]) -> torch.Tensor:
    for step in spec.epilogue:
        if isinstance(step, Scale):
            x = x * _broadcast(spec.operand(step.by), tensors, scalars)
        elif isinstance(step, Bias):
            x = x + _broadcast(spec.operand(step.vector), tensors, scalars)
        elif isinstance(step, Residual):
            beta = 1.0 if step.beta is None else scalars[step.beta]
            x = x + beta * _numbers(tensors[step.matrix])
        elif isinstance(step, Cast):
            pass  # the caller compares within the rounding of the output's type
    return x


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else decode(tensor)


def _broadcast(operand: Operand, tensors: Tensors, scalars: Mapping[str, float]) -> torch.Tensor | float:
    if operand.is_scalar:
        return scalars[operand.name]
    values = _numbers(tensors[operand.name])
    return values[:, None] if operand.box == ("m",) else values[None, :]


# ------------------------------------------------------------------------------------------------------- judging


def check(d: torch.Tensor, spec: KernelSpec, tensors: Tensors, scalars: Mapping[str, float] | None = None) -> None:
    """Every element within its tolerance; the message names the worst."""
    exact, allowed = evaluate(spec, tensors, scalars), tolerance(spec, tensors, scalars)
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
