"""Dense GEMMs for datacenter Blackwell: pure functions from the choices a caller has to specs."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.ir import (
    Arch,
    BlockScale,
    Cast,
    Cluster,
    DType,
    FetchTiles,
    KernelSpec,
    LaunchControl,
    Operand,
    Persistent,
    Residual,
    Ring,
    Role,
    Step,
    Store,
    Tcgen05,
    Tile,
    TmaLoad,
    TmemStore,
    TransposeScales,
)
from gemmgen.ir.schedule import Schedule

LANES = 128
SCALES_PER_WORD = 4


@dataclass(frozen=True)
class PairShape:
    """How CTAs work on a tile: columns of the product, CTAs that multiply together, staging, ring depths.

    ``swap`` puts n on the 128 lanes and makes the columns the tile's rows, for problems with few of them.
    ``launch_control`` lets the hardware hand out tiles.
    """

    n: int
    ctas: int = 1
    staging: int = 2
    slots: int | None = None
    acc_slots: int | None = None
    swap: bool = False
    launch_control: bool = False

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        lanes = LANES * self.ctas
        tile = f"{self.n}x{lanes}_swap" if self.swap else f"{lanes}x{self.n}"
        return tile + ("_clc" if self.launch_control else "")

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the output that a CTA computes."""
        return (self.n, LANES) if self.swap else (LANES, self.n)

    @property
    def cluster(self) -> Cluster:
        """CTAs that multiply together lie along the axis that is on the lanes."""
        return Cluster(n=self.ctas) if self.swap else Cluster(m=self.ctas)


@dataclass(frozen=True)
class Factor:
    """A block-scaled factor: element type and how many elements of k share a scale."""

    dtype: DType
    block: int

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        return f"{self.dtype}x{self.block}"


def bf16_gemm(
    layout: str,
    shape: PairShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
) -> KernelSpec:
    """D = A . B^T (+ C) in bf16 with fp32 sums.

    ``layout`` is nt, nn, tn or tt: A lies as [m, k] (n) or [k, m] (t), B as [k, n] (n) or [n, k] (t).
    """
    a_major = "k" if layout[0] == "n" else "m"
    b_major = "k" if layout[1] == "t" else "n"
    operands = [
        Operand(name="a", dtype=DType.BF16, box=("m", "k"), major=a_major),
        Operand(name="b", dtype=DType.BF16, box=("n", "k"), major=b_major),
    ]
    body = Tcgen05(
        drains=("ab",),
        fills=("acc",),
        ctas=shape.ctas,  # type: ignore[arg-type]
        swap_ab=shape.swap,
    )
    return _dense(f"sm100_bf16_gemm_{layout}", operands, _data_ring(shape), body, shape, 64, d, residual, direct_store)


def tf32_gemm_nt(shape: PairShape, d: DType = DType.F32, residual: bool = False) -> KernelSpec:
    """D = A . B^T (+ C) of fp32 factors, read as tf32, with fp32 sums."""
    operands = [
        Operand(name="a", dtype=DType.F32, box=("m", "k")),
        Operand(name="b", dtype=DType.F32, box=("n", "k")),
    ]
    body = Tcgen05(
        drains=("ab",),
        fills=("acc",),
        ctas=shape.ctas,  # type: ignore[arg-type]
        swap_ab=shape.swap,
    )
    return _dense("sm100_tf32_gemm_nt", operands, _data_ring(shape), body, shape, 32, d, residual, False)


def scaled_gemm_nt(
    a: Factor,
    b: Factor,
    shape: PairShape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
    scale: DType = DType.UE8M0X4,
    a_major: str = "k",
    b_major: str = "k",
) -> KernelSpec:
    """D = (A * sfa) . (B * sfb)^T (+ C) with one scale for every ``block`` of k of each row, four in a word.

    ``a_major`` "m" and ``b_major`` "n" read 8-bit factors that lie transposed.

    Two 4-bit factors with blocks of 32 (UE8M0 scales) or 16 (UE4M3) stay packed in shared memory and run at the full
    4-bit rate; any other mix of e4m3, e5m2 and e2m1 takes a byte an element.
    """
    packed = {a.dtype, b.dtype} == {DType.E2M1} and a.block == b.block and a.block <= 32
    tile_k = 256 if packed else 128
    operands = []
    for factor, data, scales, axis, major in ((a, "a", "sfa", "m", a_major), (b, "b", "sfb", "n", b_major)):
        operands += [
            Operand(name=data, dtype=factor.dtype, box=(axis, "k"), major=major),
            Operand(name=scales, dtype=scale, box=(axis, f"k/{SCALES_PER_WORD * factor.block}"), major=axis),
        ]
    rings = _scaled_rings({"sfa": a.block, "sfb": b.block}, tile_k, shape)
    body = Tcgen05(
        drains=tuple(ring.name for ring in rings),
        fills=("acc",),
        scales=BlockScale(a="sfa", b="sfb"),
        ctas=shape.ctas,  # type: ignore[arg-type]
        packed=packed,
        swap_ab=shape.swap,
    )
    layout = ("n" if a_major == "k" else "t") + ("t" if b_major == "k" else "n")
    name = f"sm100_gemm_{layout}_{a.label}_{b.label}"
    return _dense(name, operands, rings, body, shape, tile_k, d, residual, direct_store)


def _data_ring(shape: PairShape) -> list[Ring]:
    return [Ring(name="ab", slots=shape.slots, holds=("a", "b"))]


def _scaled_rings(blocks: dict[str, int], tile_k: int, shape: PairShape) -> list[Ring]:
    """Scales whose words serve one K block lie with the data; those that serve more turn over in their own ring."""
    every = {name: max(1, SCALES_PER_WORD * block // tile_k) for name, block in blocks.items()}
    fine = tuple(name for name, turns in every.items() if turns == 1)
    coarse = tuple(name for name in every if name not in fine)
    rings = [Ring(name="ab", slots=shape.slots, holds=("a", "b", *fine))]
    if coarse:
        rings.append(Ring(name="sf", holds=coarse, slots=4, every=max(every.values())))
    return rings


def _dense(
    name: str,
    operands: list[Operand],
    filled: list[Ring],
    body: Tcgen05,
    shape: PairShape,
    k: int,
    d: DType,
    residual: bool,
    direct_store: bool,
) -> KernelSpec:
    rings = [*filled, Ring(name="acc", space="tmem", turns="tile", slots=shape.acc_slots)]
    epilogue: list[Step] = []
    if residual:
        operands = [*operands, Operand(name="c", dtype=d, box=("m", "n"))]
        epilogue.append(Residual(matrix="c"))
    epilogue.append(Cast(to=d))
    if not direct_store:
        rings.append(Ring(name="cd", slots=shape.staging, holds=("d",), turns="store"))
    epilogue.append(Store(to="d", through=None if direct_store else "cd"))
    roles = [
        Role(name="store", warps=4, body=TmemStore(drains=("acc",))),
        Role(name="load", warps=1, body=TmaLoad(fills=tuple(ring.name for ring in filled))),
        Role(name="mma", warps=1, body=body),
    ]
    if body.scales:
        scales = TransposeScales(hands_on=tuple(each.name for each in filled if {"sfa", "sfb"} & set(each.holds)))
        roles.append(Role(name="scales", warps=1, body=scales))
    schedule: Schedule = Persistent(raster_group=8)
    if shape.launch_control:
        rings.append(Ring(name="tile", turns="launch", slots=2))
        roles.append(Role(name="fetch", warps=1, body=FetchTiles(fills=("tile",))))
        schedule = LaunchControl(raster_group=8)
    marks = (f"_{d}", "_c" if residual else "", "_direct" if direct_store else "")
    return KernelSpec(
        name=f"{name}{''.join(marks)}_{shape.label}",
        arch=Arch.SM100,
        tile=Tile(m=shape.tile[0], n=shape.tile[1], k=k),
        operands=(*operands, Operand(name="d", dtype=d, box=("m", "n"))),
        rings=tuple(rings),
        roles=tuple(roles),
        epilogue=tuple(epilogue),
        schedule=schedule,
        cluster=shape.cluster,
    )
