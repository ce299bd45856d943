"""Architectures and element types: names, widths and nothing else."""

from __future__ import annotations

from enum import StrEnum


class Arch(StrEnum):
    """A family of GPUs that one backend serves."""

    SM90 = "sm90"
    SM100 = "sm100"
    SM120 = "sm120"


class DType(StrEnum):
    """Element types by the names the PTX ISA uses."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1 = "e2m1"
    """Four bits, two elements a byte, the even one in the low half."""
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    I32 = "i32"
    """Whole numbers that say where groups lie."""
    UE8M0 = "ue8m0"
    """A power of two: the scale of a block."""
    UE4M3 = "ue4m3"
    """An unsigned e4m3 scale of a block."""
    UE8M0X4 = "ue8m0x4"
    """Four powers of two in a 32-bit word, the scale of the lowest k in the low byte."""
    UE4M3X4 = "ue4m3x4"
    """Four unsigned e4m3 scales in a 32-bit word, likewise."""

    @property
    def bits(self) -> int:
        """Bits one element takes in global memory."""
        return _BITS[self]

    @property
    def scales(self) -> int:
        """Block scales that one element holds: 4 for words of them."""
        return 4 if self in (DType.UE8M0X4, DType.UE4M3X4) else 1

    @property
    def packed(self) -> int:
        """Elements that share one addressable unit of memory along the contiguous axis: 2 for 4-bit types."""
        return max(1, 8 // self.bits)

    @property
    def bytes(self) -> int:
        """Whole bytes one element takes in global memory; 4-bit types have none."""
        if self.bits % 8:
            raise ValueError(f"an element of {self} takes {self.bits} bits, which is no whole number of bytes")
        return self.bits // 8


_BITS = {
    DType.E4M3: 8,
    DType.E5M2: 8,
    DType.E2M1: 4,
    DType.BF16: 16,
    DType.F16: 16,
    DType.F32: 32,
    DType.I32: 32,
    DType.UE8M0: 8,
    DType.UE4M3: 8,
    DType.UE8M0X4: 32,
    DType.UE4M3X4: 32,
}
