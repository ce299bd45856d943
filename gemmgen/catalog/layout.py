"""Layout kernels we ship: factors that a tensor core cannot take as they lie, and scales on their way to words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gemmgen.ir import Arch, DType, LayoutSpec, Operand

SOURCE, DESTINATION = "source", "destination"
ROWS_PER_SCALE = (1, 128)
"""Rows that one row of scales may stand for."""
TO_K = {Arch.SM100: (DType.E2M1,), Arch.SM120: (DType.E4M3, DType.E2M1)}
"""Factors that the products of an architecture read contiguous along k only."""


def to_k_major(arch: Arch, dtype: DType) -> LayoutSpec:
    """A factor [m, k] contiguous along m becomes contiguous along k; 4-bit elements are paired along k instead of m."""
    return _transpose(arch, dtype, "k")


def to_m_major(arch: Arch, dtype: DType) -> LayoutSpec:
    """A matrix of scales [m, k] contiguous along k becomes contiguous along m, its columns whole chunks of 16 bytes."""
    return _transpose(arch, dtype, "m")


@cache
def _transpose(arch: Arch, dtype: DType, major: str) -> LayoutSpec:
    return LayoutSpec(
        name=f"{arch}_{major}_major_{dtype}",
        arch=arch,
        source=Operand(name=SOURCE, dtype=dtype, box=("m", "k"), major="m" if major == "k" else "k"),
        destination=Operand(name=DESTINATION, dtype=dtype, box=("m", "k"), major=major),
        fill_pads=major == "m",
    )


@cache
def pack_ue8m0(arch: Arch, rows: int = 1) -> LayoutSpec:
    """Scales [m / rows, k] in fp32 become words of four UE8M0 bytes along k for every m, contiguous along m."""
    return LayoutSpec(
        name=f"{arch}_pack_ue8m0_{rows}x1",
        arch=arch,
        source=Operand(name=SOURCE, dtype=DType.F32, box=("m" if rows == 1 else f"m/{rows}", "k")),
        destination=Operand(name=DESTINATION, dtype=DType.UE8M0X4, box=("m", "k/4"), major="m"),
        fill_pads=True,
    )


@cache
def pack_bytes(arch: Arch) -> LayoutSpec:
    """Scales [m, k] of one byte, UE8M0 or any other, become words of four along k, contiguous along m."""
    return LayoutSpec(
        name=f"{arch}_pack_bytes",
        arch=arch,
        source=Operand(name=SOURCE, dtype=DType.UE8M0, box=("m", "k")),
        destination=Operand(name=DESTINATION, dtype=DType.UE8M0X4, box=("m", "k/4"), major="m"),
        fill_pads=True,
    )


@cache
def layouts() -> dict[str, LayoutSpec]:
    """Every shipped layout kernel by name, in a fixed order."""
    return {spec.name: spec for spec in _shipped()}


def _shipped() -> Iterator[LayoutSpec]:
    for arch, dtypes in TO_K.items():
        for dtype in dtypes:
            yield to_k_major(arch, dtype)
        yield to_m_major(arch, DType.UE8M0X4)
        yield pack_bytes(arch)
        for rows in ROWS_PER_SCALE:
            yield pack_ue8m0(arch, rows)
