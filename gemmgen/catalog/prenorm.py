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
    Tcgen05,
    Tile,
    TmaLoad,
    TmemCast,
    TmemStore,
    Wgmma,
)

PRENORM_COLUMNS: dict[Arch, tuple[int, ...]] = {
    Arch.SM90: (8, 16, 24, 32),
    Arch.SM100: (16, 32, 64, 128),
    Arch.SM120: (8, 16, 24, 32, 64, 128),
}
"""Columns of the tiles that ship, by architecture; a call may have as many as the widest."""
PROLOGUE: tuple[PrologueStep, ...] = (SumOfSquares(to="sqr_sum"), Cast(to=DType.F32))


@dataclass(frozen=True)
class PrenormShape:
    """How a CTA works on its tile: extents, groups of four warps that multiply, K block, ring depth, CTAs an SM.

    ``ahead`` gives sm90 a second set of registers for A, so that a block is read and cast while the one before is
    multiplied; ``share_k`` gives its groups the same rows, and each of them a part of every K block. On sm90 the last
    tile's rows come in boxes of ``part_rows``.
    """

    m: int
    n: int
    groups: int = 1
    k: int = 64
    slots: int | None = None
    ctas_per_sm: int = 1
    ahead: bool = True
    share_k: bool = False
    part_rows: int | None = None

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        marks = (
            f"_k{self.k}" if self.k != 64 else "",
            f"_x{self.ctas_per_sm}" if self.ctas_per_sm > 1 else "",
            "_shared" if self.share_k else "",
        )
        return f"{self.m}x{self.n}{''.join(marks)}"


def tf32_hc_prenorm_gemm(shape: PrenormShape, slices: bool = False, arch: Arch = Arch.SM90) -> KernelSpec:
    """D = A . B^T with A in bf16 and B in fp32, read as tf32, and the sums of squares of A's rows.

    The launch decides how many CTAs share a tile's K blocks; with ``slices`` each leaves partial sums of its own.
    """
    axis = ("s",) if slices else ()
    rings, roles = _graph(shape, arch)
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
        rings=(Ring(name="ab", slots=shape.slots, holds=("a", "b")), *rings),
        roles=(*roles, Role(name="load", warps=1, body=TmaLoad(fills=("ab",), part_rows=shape.part_rows))),
        prologue=PROLOGUE,
        epilogue=(Store(to="d"),),
        schedule=SplitK(splits=None, slices=slices, raster_group=1),
        ctas_per_sm=shape.ctas_per_sm,
    )


def _graph(shape: PrenormShape, arch: Arch) -> tuple[tuple[Ring, ...], tuple[Role, ...]]:
    """Who multiplies, and rings that only some architectures have: on sm100 a role of its own casts A's rows."""
    warps = 4 * shape.groups
    if arch == Arch.SM90:
        body = Wgmma(drains=("ab",), unroll=1 + shape.ahead, share_k=shape.share_k)
        return (), (Role(name="math", warps=warps, body=body),)
    if arch == Arch.SM120:
        return (), (Role(name="math", warps=warps, body=MmaSync(drains=("ab",), warp_rows=warps)),)
    rings = (
        Ring(name="acc", space="tmem", turns="tile"),
        Ring(name="wide", space="tmem", slots=2 if shape.slots else None),
    )
    return rings, (
        Role(name="store", warps=4, body=TmemStore(drains=("acc",))),
        Role(name="cast", warps=4, body=TmemCast(drains=("ab",), fills=("wide",))),
        Role(name="mma", warps=1, body=Tcgen05(drains=("ab", "wide"), fills=("acc",))),
    )


@dataclass(frozen=True)
class PrenormForms:
    """The shapes that serve so many columns: ``sole`` while an SM has one CTA at most, ``paired`` for more of them.

    ``tall`` is for more slices than those have room for.
    """

    sole: PrenormShape
    paired: PrenormShape
    tall: PrenormShape

    def specs(self, arch: Arch) -> Iterator[KernelSpec]:
        """Each once."""
        for slices, shapes in ((False, (self.sole, self.paired)), (True, (self.sole, self.paired, self.tall))):
            for shape in dict.fromkeys(shapes):
                yield tf32_hc_prenorm_gemm(shape, slices, arch)


def prenorm_forms(arch: Arch, n: int) -> PrenormForms:
    """What ships with tiles of ``n`` columns.

    On sm90 the small products of a K block follow each other, so a CTA that has an SM to itself is faster with two
    warpgroups that share K; two CTAs hide that from one another; and where there are more slices than room for them,
    128 rows read half as much of B (benchmarks/prenorm.py). Rows past the last stay away: 48 of 13.
    """
    if arch != Arch.SM90:
        one = PrenormShape(64 if arch == Arch.SM120 else 128, n)
        return PrenormForms(one, one, one)
    sole = PrenormShape(64, n, groups=2, k=128, share_k=True, part_rows=16)
    tall = PrenormShape(128, n, groups=2, ctas_per_sm=2, ahead=False)
    return PrenormForms(sole, PrenormShape(64, n, ctas_per_sm=2, part_rows=16), tall)


def shipped_prenorm() -> Iterator[KernelSpec]:
    """Every form for every number of columns."""
    for arch, widths in PRENORM_COLUMNS.items():
        for n in widths:
            yield from prenorm_forms(arch, n).specs(arch)
