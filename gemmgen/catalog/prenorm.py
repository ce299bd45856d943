"""Products that sum the squares of A's rows while they read them and cast A from bf16 to tf32: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.ir import (
    Arch,
    Cast,
    DType,
    KernelSpec,
    MmaSync,
    Operand,
    PrologueStep,
    Ring,
    Role,
    SplitK,
    Store,
    SumOfSquares,
    Tile,
    TmaLoad,
    Wgmma,
)

PRENORM_COLUMNS: dict[Arch, tuple[int, ...]] = {Arch.SM90: (8, 16, 24, 32), Arch.SM120: (8, 16, 24, 32, 64, 128)}
"""Columns of the tiles that ship, by architecture; a call may have as many as the widest."""
PROLOGUE: tuple[PrologueStep, ...] = (SumOfSquares(to="sqr_sum"), Cast(to=DType.F32))


@dataclass(frozen=True)
class PrenormShape:
    """How a CTA works on its tile: extents, groups of four warps that multiply, K block, ring depth, CTAs an SM."""

    m: int
    n: int
    groups: int = 1
    k: int = 64
    slots: int | None = None
    ctas_per_sm: int = 1

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        marks = (
            f"_k{self.k}" if self.k != 64 else "",
            f"_x{self.ctas_per_sm}" if self.ctas_per_sm > 1 else "",
        )
        return f"{self.m}x{self.n}{''.join(marks)}"


def tf32_hc_prenorm_gemm(shape: PrenormShape, slices: bool = False, arch: Arch = Arch.SM90) -> KernelSpec:
    """D = A . B^T with A in bf16 and B in fp32, read as tf32, and the sums of squares of A's rows.

    The launch decides how many CTAs share a tile's K blocks; with ``slices`` each leaves partial sums of its own.
    """
    axis, warps = ("s",) if slices else (), 4 * shape.groups
    multiply = Wgmma(drains=("ab",)) if arch == Arch.SM90 else MmaSync(drains=("ab",), warp_rows=warps)
    return KernelSpec(
        name=f"{arch}_tf32_hc_prenorm_gemm{'_slices' if slices else ''}_{shape.label}",
        arch=arch,
        tile=Tile(m=shape.m, n=shape.n, k=shape.k),
        operands=(
            Operand(name="a", dtype=DType.BF16, box=("m", "k")),
            Operand(name="b", dtype=DType.F32, box=("n", "k")),
            Operand(name="d", dtype=DType.F32, box=(*axis, "m", "n")),
            Operand(name="sqr_sum", dtype=DType.F32, box=(*axis, "m")),
        ),
        rings=(Ring(name="ab", slots=shape.slots, holds=("a", "b")),),
        roles=(
            Role(name="math", warps=warps, body=multiply),
            Role(name="load", warps=1, body=TmaLoad(fills=("ab",))),
        ),
        prologue=PROLOGUE,
        epilogue=(Store(to="d"),),
        schedule=SplitK(splits=None, slices=slices),
        ctas_per_sm=shape.ctas_per_sm,
    )


def shipped_prenorm() -> Iterator[KernelSpec]:
    """A tile for every number of columns, in both forms."""
    for arch, widths in PRENORM_COLUMNS.items():
        for n in widths:
            for slices in (False, True):
                yield tf32_hc_prenorm_gemm(PrenormShape(64, n), slices, arch)
