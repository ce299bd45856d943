"""Dense GEMMs for workstation Blackwell: pure functions from the choices a caller has to specs."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.catalog.dense_sm100 import SCALES_PER_WORD, Factor
from gemmgen.ir import (
    Arch,
    BlockScale,
    Cast,
    DType,
    KernelSpec,
    MmaSync,
    Operand,
    Persistent,
    Residual,
    Ring,
    Role,
    SplitK,
    Step,
    Store,
    Tile,
    TmaLoad,
)
from gemmgen.ir.schedule import Schedule


@dataclass(frozen=True)
class WarpShape:
    """How a CTA works on its tile: extents, the grid of warps that multiply, bytes of k a block, ring depths.

    ``swap`` puts n on the product's rows, for problems with few rows. ``splits`` CTAs share the K blocks of a tile.
    """

    m: int
    n: int
    warps: tuple[int, int] = (4, 2)
    k_bytes: int = 128
    staging: int = 1
    slots: int | None = None
    unroll: int = 1
    swap: bool = False
    splits: int = 1
    ctas_per_sm: int = 1

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        marks = (
            f"_k{self.k_bytes}" if self.k_bytes != 128 else "",
            "_swap" if self.swap else "",
            f"_split{self.splits}" if self.splits > 1 else "",
            f"_x{self.ctas_per_sm}" if self.ctas_per_sm > 1 else "",
        )
        return f"{self.m}x{self.n}{''.join(marks)}"

    @property
    def schedule(self) -> Schedule:
        """Persistent, with or without shares of k."""
        return SplitK(splits=self.splits) if self.splits > 1 else Persistent(raster_group=8)

    def block(self, bits: int) -> int:
        """Elements of a K block."""
        return self.k_bytes * 8 // bits


REGISTERS = (40, 232)
"""setmaxnreg of producer and multiplying warps: 65,536 registers an SM, shared out to 4 and 8 warps."""


def bf16_gemm(
    layout: str,
    shape: WarpShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
) -> KernelSpec:
    """D = A . B^T (+ C) in bf16 with fp32 sums.

    ``layout`` is nt, nn, tn or tt: A lies as [m, k] (n) or [k, m] (t), B as [k, n] (n) or [n, k] (t).
    """
    operands = [
        Operand(name="a", dtype=DType.BF16, box=("m", "k"), major="k" if layout[0] == "n" else "m"),
        Operand(name="b", dtype=DType.BF16, box=("n", "k"), major="k" if layout[1] == "t" else "n"),
    ]
    return _dense(
        f"sm120_bf16_gemm_{layout}", operands, _body(shape), shape, shape.block(16), d, residual, direct_store
    )


def tf32_gemm_nt(
    shape: WarpShape, d: DType = DType.F32, residual: bool = False, direct_store: bool = False
) -> KernelSpec:
    """D = A . B^T (+ C) of fp32 factors, read as tf32, with fp32 sums."""
    operands = [Operand(name=name, dtype=DType.F32, box=(axis, "k")) for name, axis in (("a", "m"), ("b", "n"))]
    return _dense("sm120_tf32_gemm_nt", operands, _body(shape), shape, shape.block(32), d, residual, direct_store)


def e4m3_gemm_nt(
    shape: WarpShape, d: DType = DType.BF16, residual: bool = False, direct_store: bool = False
) -> KernelSpec:
    """D = A . B^T (+ C) of e4m3 factors without block scales, with fp32 sums."""
    operands = [Operand(name=name, dtype=DType.E4M3, box=(axis, "k")) for name, axis in (("a", "m"), ("b", "n"))]
    return _dense("sm120_e4m3_gemm_nt", operands, _body(shape), shape, shape.block(8), d, residual, direct_store)


def scaled_gemm_nt(
    a: Factor,
    b: Factor,
    shape: WarpShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
    scale: DType = DType.UE8M0X4,
) -> KernelSpec:
    """D = (A * sfa) . (B * sfb)^T (+ C) with one scale for every ``block`` of k of each row, four in a word.

    Two 4-bit factors stay packed in shared memory and run at the full 4-bit rate; any other mix of e4m3, e5m2 and e2m1
    takes a byte an element. All factors are k-contiguous.
    """
    packed = {a.dtype, b.dtype} == {DType.E2M1}
    operands = []
    for factor, data, scales, axis in ((a, "a", "sfa", "m"), (b, "b", "sfb", "n")):
        operands += [
            Operand(name=data, dtype=factor.dtype, box=(axis, "k")),
            Operand(name=scales, dtype=scale, box=(axis, f"k/{SCALES_PER_WORD * factor.block}"), major=axis),
        ]
    body = _body(shape, scales=BlockScale(a="sfa", b="sfb"), packed=packed)
    name = f"sm120_gemm_nt_{a.label}_{b.label}"
    return _dense(name, operands, body, shape, shape.block(4 if packed else 8), d, residual, direct_store)


def _body(shape: WarpShape, scales: BlockScale | None = None, packed: bool = False) -> MmaSync:
    return MmaSync(
        drains=("ab",),
        scales=scales,
        warp_rows=shape.warps[0],
        packed=packed,
        swap_ab=shape.swap,
        unroll=shape.unroll,
    )


def _dense(
    name: str,
    operands: list[Operand],
    body: MmaSync,
    shape: WarpShape,
    k: int,
    d: DType,
    residual: bool,
    direct_store: bool,
) -> KernelSpec:
    rings = [Ring(name="ab", slots=shape.slots, holds=tuple(operand.name for operand in operands))]
    direct = direct_store or shape.swap
    epilogue: list[Step] = []
    if residual:
        operands = [*operands, Operand(name="c", dtype=d, box=("m", "n"))]
        epilogue.append(Residual(matrix="c"))
    epilogue.append(Cast(to=d))
    if not direct:
        rings.append(Ring(name="cd", slots=shape.staging, holds=("d",), turns="store"))
    epilogue.append(Store(to="d", through=None if direct else "cd"))
    marks = (f"_{d}", "_c" if residual else "", "_direct" if direct_store else "")
    warps = shape.warps[0] * shape.warps[1]
    alone = shape.ctas_per_sm == 1 and warps == 8
    load = Role(name="load", warps=4 if alone else 1, registers=REGISTERS[0] if alone else None, body=_load())
    math = Role(name="math", warps=warps, registers=REGISTERS[1] if alone else None, body=body)
    return KernelSpec(
        name=f"{name}{''.join(marks)}_{shape.label}",
        arch=Arch.SM120,
        tile=Tile(m=shape.m, n=shape.n, k=k),
        operands=(*operands, Operand(name="d", dtype=d, box=("m", "n"))),
        rings=tuple(rings),
        roles=(load, math) if alone else (math, load),
        epilogue=tuple(epilogue),
        schedule=shape.schedule,
        ctas_per_sm=shape.ctas_per_sm,
    )


def _load() -> TmaLoad:
    return TmaLoad(fills=("ab",))
