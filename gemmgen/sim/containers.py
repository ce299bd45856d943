"""How the elements of an mma.sync operand lie in its registers: packed, or narrow codes in containers of 8 bits.
Knows bits and values; which lane holds which element is fragments.py's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .errors import Fault
from .formats import decode, decode_table
from .tensor_core import ELEMENT_BITS
from .types import Array

_CONTAINER_KINDS = ("kind::f8f6f4", "kind::mxf8f6f4")
_SHIFT = {"e2m1": 2, "e3m2": 0, "e2m3": 0}  # where a narrow code starts in its container
_BITS = {"e2m1": 4, "e3m2": 6, "e2m3": 6}


@dataclass(frozen=True)
class Container:
    """One element type as an operand holds it: `bits` per element, of which `code_bits` from bit `shift` on count."""

    fmt: str
    bits: int
    shift: int
    code_bits: int

    @property
    def padding(self) -> int:
        """Bits of a container that hold no code."""
        return (1 << self.bits) - 1 & ~((1 << self.code_bits) - 1 << self.shift)

    def check(self, registers: Array, side: str) -> None:
        """Padding that is not zero is a code in the wrong place: the ISA says where it resides, not what else does."""
        if self.padding and (registers & np.uint32(self.padding * 0x01010101)).any():
            bad = registers.view(np.uint8) & self.padding
            register, octet = (int(x[0]) for x in np.nonzero(bad))
            value = int(registers.view(np.uint8)[register, octet])
            top = self.shift + self.code_bits - 1
            raise Fault(
                f"mma.sync: operand {side}, register {register} of lane {octet // 4} holds {value:#04x} in byte "
                f"{octet % 4}; {self.fmt} lies in bits {self.shift} to {top} of its container and the rest must be zero"
            )

    @cached_property
    def _octets(self) -> Array:
        """Value of every byte; of a packed byte both values, low bits first."""
        byte = np.arange(256)
        table = decode_table(self.fmt)
        if self.bits == 4:
            return np.stack([table[byte & 15], table[byte >> 4]], axis=1)
        values: Array = table[byte >> self.shift & (1 << self.code_bits) - 1]
        return values

    def values(self, registers: Array) -> Array:
        """float32 value of every element, flat, in the order of registers, lanes and bits."""
        if self.bits <= 8:
            return self._octets.take(registers.view(np.uint8), 0).reshape(-1)
        return decode(registers.view(f"u{self.bits // 8}").reshape(-1), self.fmt)


@lru_cache(maxsize=32)
def container(fmt: str, kind: str) -> Container:
    """The container of a format under an mma kind ('' for none)."""
    if fmt not in _BITS:
        return Container(fmt, ELEMENT_BITS[fmt], 0, ELEMENT_BITS[fmt])
    if kind in _CONTAINER_KINDS:
        return Container(fmt, 8, _SHIFT[fmt], _BITS[fmt])
    return Container(fmt, _BITS[fmt], 0, _BITS[fmt])
