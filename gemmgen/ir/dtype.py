"""Architectures and element types: names, widths and nothing else."""

from __future__ import annotations

from enum import StrEnum


class Arch(StrEnum):
    """A family of GPUs that one backend serves."""

    SM90 = "sm90"


class DType(StrEnum):
    """Element types by the names the PTX ISA uses."""

    E4M3 = "e4m3"
    BF16 = "bf16"
    F32 = "f32"

    @property
    def bits(self) -> int:
        """Bits one element takes in global memory."""
        return {DType.E4M3: 8, DType.BF16: 16, DType.F32: 32}[self]

    @property
    def bytes(self) -> int:
        """Bytes one element takes in global memory."""
        return self.bits // 8
