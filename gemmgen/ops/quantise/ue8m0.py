"""UE8M0 scales: the one rounding rule, packing four to an int32, and checks that look at content only on demand.

Knows fp32 scales and their bytes; which block a scale belongs to is decided elsewhere.
"""

from __future__ import annotations

import torch

from gemmgen.ops.quantise.blocks import align
from gemmgen.ops.quantise.formats import E2M1_MAX, E4M3_MAX, UE8M0_NAN, decode_ue8m0

_MANTISSA = 0x007F_FFFF
_SMALLEST = 0x0040_0000
"""Bits of 2**-127 in fp32, the one power of two that UE8M0 holds and fp32 has no exponent for."""
_INFINITY = 0x7F80_0000
_MAXIMA = {E4M3_MAX: (8, 0x0060_0000), E2M1_MAX: (2, 0x0040_0000), 1.0: (0, 0)}
"""Exponent and mantissa bits of the largest finite number of a format (1.0: of a scale itself)."""


def ue8m0_scale(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """UE8M0 bytes of the smallest powers of two ``s`` with ``amax / s <= largest``: scales are rounded up, always.

    Integer arithmetic on the bits of ``amax`` (fp32, sign ignored), so exact and the same everywhere: the exponent of
    ``amax`` less that of ``largest``, one more if the mantissa is greater. Not below 2**-126; NaN for Inf or NaN.
    """
    exponent, mantissa = _MAXIMA[largest]
    bits = amax.view(torch.int32) & 0x7FFF_FFFF
    byte = (((bits + (_MANTISSA - mantissa)) >> 23) - exponent).clamp(min=1)
    return torch.where(bits >= _INFINITY, UE8M0_NAN, byte).to(torch.uint8)


def ceil_to_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """Positive fp32 scales rounded up to powers of two, fp32; from 2**-126 to 2**127. NaN and what is larger is NaN.

    For scales *before* data is quantised with them; for data that exists already see ``requantise_to_ue8m0``.
    """
    return decode_ue8m0(ue8m0_scale(scale, 1.0))


def ue8m0_bytes(sf: torch.Tensor) -> torch.Tensor:
    """The UE8M0 bytes of scales whose type says how they hold them: fp32, ``float8_e8m0fnu`` or packed int32.

    fp32 is never rounded: powers of two keep their value, 0.0 is the smallest scale 2**-127, and anything else is NaN.
    A scale that is off by a little gives numbers that are off by up to 2, silently; NaN shows wherever it counts, waits
    for no device, and leaves rows that nobody reads alone.
    Packed int32 gives four bytes a word, the lowest first.
    """
    if sf.dtype == torch.float32:
        return _exponents(sf)
    if sf.dtype == torch.float8_e8m0fnu:
        return sf.view(torch.uint8)
    if sf.dtype == torch.int32:
        return sf.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    raise TypeError(f"sf: dtype is {sf.dtype}; {ACCEPTED}")


def _exponents(sf: torch.Tensor) -> torch.Tensor:
    """The exponent byte of fp32 numbers that have nothing but an exponent, NaN for others and negative ones."""
    bits = sf.view(torch.int32)
    exponent = bits >> 23  # negative where the sign is
    held = ((exponent << 23) == bits) & (exponent >= 0) | (bits == _SMALLEST)
    return torch.where(held, exponent, UE8M0_NAN).to(torch.uint8)


ACCEPTED = (
    "UE8M0 scales are torch.float32 powers of two, torch.float8_e8m0fnu, or torch.int32 with four bytes each; "
    "bytes of another type are never guessed at, so pass sf.view(torch.float8_e8m0fnu) if that is what they are"
)


def pack_bytes(codes: torch.Tensor) -> torch.Tensor:
    """Four scale bytes an int32 along the last dimension, the first lowest; missing ones in the last word are 0."""
    *batch, count = codes.shape
    if not count:
        return codes.to(torch.int32)
    room = codes.new_zeros(*batch, align(count, 4))
    room[..., :count] = codes
    return room.view(torch.int32)


def pack_ue8m0_to_int(sf: torch.Tensor) -> torch.Tensor:
    """Scales [.., k] as int32 [.., ceil(k/4)], row-major; fp32 ones that are no powers of two become NaN."""
    return pack_bytes(ue8m0_bytes(sf))


def unpack_ue8m0_from_int(packed: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """fp32 scales [.., 4*k] of packed words [.., k], or only the first ``count`` of each row."""
    if packed.dtype != torch.int32:
        raise TypeError(f"packed: dtype is {packed.dtype}; packed UE8M0 scales are torch.int32")
    values = decode_ue8m0(ue8m0_bytes(packed))
    return values if count is None else values[..., :count]


def is_ue8m0(sf: torch.Tensor) -> torch.Tensor:
    """Which fp32 scales keep their value when packed: 2**-127 .. 2**127 and NaN; 0.0 counts as the smallest.

    Returns a mask on the same device and waits for nothing.
    """
    packed = decode_ue8m0(ue8m0_bytes(sf))
    zero = sf.view(torch.int32) == 0
    return (packed == sf) | (packed.isnan() & sf.isnan()) | zero


def check_ue8m0(sf: torch.Tensor, name: str = "sf") -> None:
    """Raise ``ValueError`` for the first fp32 scale that packing would lose. Reads the content: not for hot calls."""
    bad = (~is_ue8m0(sf)).nonzero()
    if not len(bad):
        return
    where = tuple(bad[0].tolist())
    raise ValueError(
        f"{name}: scale {where} is {sf[where].item()!r}, one of {len(bad)} that are no power of two from 2**-127 to "
        "2**127; UE8M0 holds nothing else, and rounding a scale whose data is quantised already changes the numbers; "
        "quantise with use_ue8m0=True, or re-quantise the data with requantise_to_ue8m0"
    )
