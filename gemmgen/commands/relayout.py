"""What ``run`` and ``check`` do with a layout kernel: random bytes, what must come of them, and a comparison of memory.

Knows the ir and torch; expectations are worked out element by element and share nothing with the backends.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmgen.commands.inputs import lay_out
from gemmgen.ir import DType, LayoutSpec, Operand, split_axis
from gemmgen.ir.layout import SCALES_PER_WORD
from gemmgen.ops.problem import TORCH_DTYPES
from gemmgen.ops.quantise import pack_fp4, unpack_fp4
from gemmgen.runtime.arguments import expected_shape, extent

POISON = 0xFF


def random_layout_operands(spec: LayoutSpec, sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:
    """A source of random bytes (powers of two where scales are packed) and a destination full of 0xFF."""
    generator = torch.Generator().manual_seed(seed)
    source, destination = spec.operands
    shape = tuple(extent(source, axis, sizes) for axis in source.box)
    if source.dtype == DType.F32 and spec.packs:
        values = torch.randint(0, 255, shape, generator=generator, dtype=torch.int32) << 23
        stored = values.view(torch.float32)
    elif source.dtype == DType.E2M1:
        stored = _paired(torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8), source)
    else:
        dtype = TORCH_DTYPES[source.dtype]
        raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
        stored = raw.view(dtype).squeeze(-1)
    room = lay_out(torch.zeros(expected_shape(destination, sizes), dtype=TORCH_DTYPES[destination.dtype]), destination)
    memory_of(room).fill_(POISON)
    return {source.name: lay_out(stored, source), destination.name: room}


def expected_memory(spec: LayoutSpec, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Every byte that the destination's storage must hold afterwards: elements, zeros that fill up lines, poison."""
    source, destination = operands[spec.source.name], operands[spec.output.name]
    room = torch.full_like(memory_of(destination), POISON)
    image = torch.empty(0, dtype=destination.dtype).set_(
        room.untyped_storage(), destination.storage_offset(), destination.shape, destination.stride()
    )
    if spec.fill_pads:
        inner = spec.output.box.index(spec.output.inner)
        step = 16 // destination.element_size()
        filled = list(destination.shape)
        filled[inner] = -(-filled[inner] // step) * step
        image.as_strided(filled, image.stride()).zero_()
    image.copy_(_expected(spec, source, destination.shape[0]))
    return room


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as bytes, in place."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _expected(spec: LayoutSpec, source: torch.Tensor, rows: int) -> torch.Tensor:
    if spec.packs:
        return _packed(source, rows, dict(map(split_axis, spec.source.box))["m"])
    if spec.source.dtype == DType.E2M1:
        return _paired(_apart(source, spec.source), spec.destination)
    return source


def _apart(stored: torch.Tensor, operand: Operand) -> torch.Tensor:
    """4-bit codes, one a byte, of numbers paired along the contiguous axis."""
    if operand.box.index(operand.inner) == 1:
        return unpack_fp4(stored.contiguous())
    return unpack_fp4(stored.T.contiguous()).T


def _paired(codes: torch.Tensor, operand: Operand) -> torch.Tensor:
    if operand.box.index(operand.inner) == 1:
        return pack_fp4(codes.contiguous())
    return pack_fp4(codes.T.contiguous()).T


def _packed(scales: torch.Tensor, rows: int, repeat: int) -> torch.Tensor:
    """Words of the bytes, or exponents, of four scales; each row of scales makes ``repeat`` rows of words."""
    plain = scales.contiguous()
    exponents = plain.view(torch.uint8) if plain.element_size() == 1 else (plain.view(torch.int32) >> 23) & 0xFF
    count = exponents.shape[1]
    words = torch.zeros(exponents.shape[0], -(-count // SCALES_PER_WORD), dtype=torch.int64)
    for k in range(count):
        words[:, k // SCALES_PER_WORD] |= exponents[:, k].long() << 8 * (k % SCALES_PER_WORD)
    signed = words - (words >> 31 << 32)
    return signed.to(torch.int32).repeat_interleave(repeat, 0)[:rows]
