"""Random operands of a spec: data, quantised where the spec scales blocks, in the memory order and pitch it asks for.

Knows the ir and the number formats, nothing of backends. Memory that belongs to no element holds NaN where its type
has one, so that a kernel that counts it in is found out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmgen.ir import BlockScale, DType, KernelSpec, MmaSync, Multiplier, Operand, Tcgen05, Wgmma, split_axis
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.ops.quantise import AMAX_FLOOR, ceil_to_ue8m0, pack_fp4
from gemmgen.ops.quantise.blocks import block_amax, spread
from gemmgen.ops.quantise.formats import E2M1_MAX, E4M3_MAX, decode_e4m3, encode_e2m1, encode_e4m3, encode_ue4m3
from gemmgen.ops.quantise.ue8m0 import pack_bytes, ue8m0_bytes
from gemmgen.runtime.arguments import SPREAD_ELEMENTS, expected_shape

LARGEST = {DType.E4M3: E4M3_MAX, DType.E5M2: 57344.0, DType.E2M1: E2M1_MAX, DType.F16: 65504.0}
SCALES_PER_WORD = 4
NAN_BYTES = {DType.UE8M0X4: 0xFF, DType.UE4M3X4: 0x7F}
"""Element types that hold four scales each, and the byte that is NaN: it fills what the last word has too much."""
GRAIN = 16
"""Magnitudes are drawn anew for as many elements of k, so that neighbouring scales differ."""
PITCH = 32
"""Bytes that rows start at multiples of: what the pickiest copies of TMA want."""
TF32_MASK = -(1 << 13)

SLICES = 3
"""Splits of k, where they are for outputs to tell."""

Operands = dict[str, torch.Tensor | float]
CPU = torch.device("cpu")


def random_operands(spec: KernelSpec, sizes: Mapping[str, int], seed: int, device: torch.device = CPU) -> Operands:
    """Normal data, quantised block by block where the spec scales blocks; outputs full of NaN bits, or added to."""
    sizes = {**sizes, "s": SLICES}
    generator = torch.Generator(device).manual_seed(seed)
    found: Operands = {}
    for data, scale in scaled_pairs(spec):
        values = _uneven(sizes[outer_axis(data)], sizes["k"], generator)
        found[data.name], found[scale.name] = quantise(values, data, scale)
    for operand in spec.operands:
        if operand.name in found or operand in spec.outputs:
            continue
        if operand.is_scalar:
            found[operand.name] = float(torch.rand((), generator=generator, device=device) + 0.5)
        else:
            values = torch.randn(_shape(operand, sizes), generator=generator, device=device)
            found[operand.name] = lay_out(_representable(values, operand, spec), operand)
    written = {output.name: poisoned(output, sizes, device) for output in spec.outputs}
    if spec.accumulates:
        there = torch.randn(expected_shape(spec.output, sizes), generator=generator, device=device)
        written[spec.output.name].copy_(there)
    return {**found, **written}


def poisoned(output: Operand, sizes: Mapping[str, int], device: torch.device = CPU) -> torch.Tensor:
    """An output in which every byte is 0xFF: NaN in each type, so that an element nobody wrote shows."""
    zeros = torch.zeros(expected_shape(output, sizes), dtype=TORCH_DTYPES[output.dtype], device=device)
    tensor = lay_out(zeros, output)
    poison(tensor)
    return tensor


def poison(tensor: torch.Tensor) -> None:
    """Every byte of a tensor's memory, that between its rows too, becomes 0xFF."""
    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).fill_(0xFF)


# ---------------------------------------------------------------------------------------------- what the spec says


def factors_of(spec: KernelSpec) -> tuple[Operand, Operand]:
    """The two operands that are multiplied."""
    body = spec.math.body
    assert isinstance(body, Multiplier)
    return spec.operand(body.a), spec.operand(body.b)


def k_step(spec: KernelSpec) -> int:
    """What k must be a multiple of: TMA spreads 4-bit numbers to bytes by whole blocks, and packs two a byte."""
    body = spec.math.body
    spreading = isinstance(body, Tcgen05 | MmaSync) and not body.packed
    return max(
        SPREAD_ELEMENTS if spreading and each.dtype == DType.E2M1 else each.dtype.packed for each in factors_of(spec)
    )


def scaled_pairs(spec: KernelSpec) -> list[tuple[Operand, Operand]]:
    """Each factor with its block scales, or nothing."""
    scales = _scales(spec)
    if scales is None:
        return []
    return list(zip(factors_of(spec), (spec.operand(scales.a), spec.operand(scales.b)), strict=True))


def granule(scale: Operand) -> tuple[int, int]:
    """Rows and elements of k that share a scale; a word has four of them along k."""
    divisors = dict(map(split_axis, scale.box))
    return divisors[outer_axis(scale)], divisors["k"] // (SCALES_PER_WORD if scale.dtype in NAN_BYTES else 1)


def outer_axis(operand: Operand) -> str:
    """m or n: the axis of a factor, or of its scales, that is not summed over."""
    return next(axis for axis in operand.axes if axis != "k")


def _scales(spec: KernelSpec) -> BlockScale | None:
    """Whether summing warps or the tensor core apply them."""
    body = spec.math.body
    assert isinstance(body, Multiplier)
    return body.promote if isinstance(body, Wgmma) else body.scales


# ---------------------------------------------------------------------------------------------- numbers


def quantise(values: torch.Tensor, data: Operand, scale: Operand) -> tuple[torch.Tensor, torch.Tensor]:
    """``values`` [m or n, k] as stored codes and scales: a granule's largest magnitude meets the type's largest.

    It meets 1 in types that have fp32's range, whose largest would leave it in a product.
    """
    gran = granule(scale)
    scales = block_amax(values, gran).clamp(min=AMAX_FLOOR) / LARGEST.get(data.dtype, 1.0)
    if scale.dtype == DType.UE8M0X4:
        scales = ceil_to_ue8m0(scales)
    elif scale.dtype == DType.UE4M3X4:
        scales = decode_e4m3(encode_ue4m3(scales))
    codes = _encode(values / spread(scales, gran, *values.shape), data.dtype)
    return lay_out(_in_box_order(codes, data), data), lay_out(_in_box_order(_stored(scales, scale.dtype), scale), scale)


def _encode(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype == DType.E2M1:
        return pack_fp4(encode_e2m1(values))
    return encode_e4m3(values) if dtype == DType.E4M3 else values.to(TORCH_DTYPES[dtype])


def _stored(scales: torch.Tensor, dtype: DType) -> torch.Tensor:
    """fp32 scales, or words of the bytes of four."""
    if dtype not in NAN_BYTES:
        return scales
    codes = ue8m0_bytes(scales) if dtype == DType.UE8M0X4 else encode_e4m3(scales).view(torch.uint8)
    rows, count = scales.shape
    words = -(-count // SCALES_PER_WORD)
    room = codes.new_full((rows, words * SCALES_PER_WORD), NAN_BYTES[dtype], dtype=torch.uint8)
    room[:, :count] = codes
    return pack_bytes(room)


def _uneven(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers whose magnitude changes from row to row and along k."""
    grains = -(-k // GRAIN)
    device = generator.device
    powers = torch.exp2(torch.randint(-2, 3, (rows, grains), generator=generator, device=device).float())
    return torch.randn(rows, k, generator=generator, device=device) * powers.repeat_interleave(GRAIN, 1)[:, :k]


def _representable(values: torch.Tensor, operand: Operand, spec: KernelSpec) -> torch.Tensor:
    """In the operand's type; factors in fp32 are read as tf32, which has 13 bits less."""
    if operand.dtype == DType.F32 and operand in factors_of(spec):
        return (values.view(torch.int32) & TF32_MASK).view(torch.float32)
    return values.to(TORCH_DTYPES[operand.dtype])


# ---------------------------------------------------------------------------------------------- memory


def lay_out(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    """The values in the operand's memory order, rows (or columns) padded with bytes of 0xFF as TMA asks."""
    if values.dim() != 2:
        return values.contiguous()
    inner = operand.box.index(operand.inner)
    step = PITCH // values.element_size()
    pitch = max(-(-values.shape[inner] // step) * step, step)
    size = (max(values.shape[1 - inner], 1), pitch * values.element_size())
    room = torch.full(size, 0xFF, dtype=torch.uint8, device=values.device)
    view = room.view(values.dtype)[: values.shape[1 - inner], : values.shape[inner]]
    view = view if inner == 1 else view.T
    view.copy_(values)
    return view


def _in_box_order(values: torch.Tensor, operand: Operand) -> torch.Tensor:
    return values.T if operand.axes[0] == "k" else values


def _shape(operand: Operand, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(-(-sizes[name] // divisor) for name, divisor in map(split_axis, operand.box))
