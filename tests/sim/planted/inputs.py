"""Inputs whose sums are exact, in the memory order asked for: small numbers, scales that are powers of two or nearly.

Whatever no element occupies, in rows, between them and behind them, holds NaN or its like, and so must not count.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gemmgen.ir import DType, Operand, split_axis

TORCH_TYPES = {
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
}
SCALE_WORDS = (DType.UE8M0X4, DType.UE4M3X4)
SPAN = 128
"""Elements of k that share a scale at most: the scale of A may be huge where B's is tiny, block by block of this."""
EXTREMES = (0, 126, -126)
"""How far A's exponents are moved up and B's down, block after block: bytes 253, 254 and 1, 2 meet."""
PADDING = {DType.UE8M0X4: 0xFF, DType.UE4M3X4: 0x7F}
"""NaN as a scale."""


def exact(operand: Operand, sizes: Mapping[str, int]) -> torch.Tensor:
    """Values that depend on the operand's name alone; every row and column its own."""
    generator = torch.Generator().manual_seed(sum(map(ord, operand.name)))
    if operand.dtype in SCALE_WORDS:
        return laid_out(_scale_words(operand, sizes, generator), operand)
    shape = [-(-sizes[name] // divisor) for name, divisor in map(split_axis, operand.box)]
    if operand.dtype == DType.E2M1:
        shape[operand.box.index(operand.inner)] //= 2
        return laid_out(torch.randint(0, 256, shape, generator=generator).to(torch.uint8), operand)
    if operand.dtype == DType.F32 and any("/" in axis for axis in operand.box):
        values = 2.0 ** torch.randint(-1, 2, shape, generator=generator)
    else:
        values = torch.randint(-4, 5, shape, generator=generator).float()
    return laid_out(values.to(TORCH_TYPES[operand.dtype]), operand)


def _scale_words(operand: Operand, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    """Four scales a word; those that lie beyond k are NaN."""
    (rows, _), (axis, divisor) = map(split_axis, operand.box)
    block = divisor // 4
    words, blocks = -(-sizes[axis] // divisor), -(-sizes[axis] // block)
    codes = torch.full((sizes[rows], 4 * words), PADDING[operand.dtype], dtype=torch.int64)
    make = _exponents if operand.dtype == DType.UE8M0X4 else _narrow
    codes[:, :blocks] = make((sizes[rows], blocks), block, rows, generator)
    return sum(codes[:, byte::4] << 8 * byte for byte in range(4)).to(torch.int32)


def _exponents(shape: tuple[int, int], block: int, rows: str, generator: torch.Generator) -> torch.Tensor:
    small = torch.randint(-2, 2, shape, generator=generator)
    far = torch.tensor(EXTREMES)[torch.arange(shape[1]) * block // SPAN % len(EXTREMES)]
    near = torch.where(far == 0, small, small & 1)
    return 127 + near + far * (1 if rows == "m" else -1)


def _narrow(shape: tuple[int, int], block: int, rows: str, generator: torch.Generator) -> torch.Tensor:
    """UE4M3 numbers of two significant bits from 0.25 to 3."""
    codes = torch.tensor([0x28, 0x2C, 0x30, 0x34, 0x38, 0x3C, 0x40, 0x44])
    return codes[torch.randint(0, len(codes), shape, generator=generator)]


def laid_out(values: torch.Tensor, operand: Operand, extra: int = 0, filled: int = 0xFF) -> torch.Tensor:
    """In the operand's memory order, rows a whole number of 16 bytes apart and ``extra`` bytes more."""
    inner = operand.box.index(operand.inner)
    size = values.element_size()
    rows, pitch = values.shape[1 - inner], max(16, -(-values.shape[inner] * size // 16) * 16) + extra
    memory = torch.full((rows, pitch), filled, dtype=torch.uint8).view(values.dtype)
    view = memory[:, : values.shape[inner]]
    view = view if inner == 1 else view.T
    return view.copy_(values)
