"""Dense GEMMs for Hopper: pure functions from the choices a caller has to the specs we ship."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.ir import (
    Arch,
    BlockScale,
    Cast,
    Cluster,
    ClusterSplitK,
    CutRemainder,
    DType,
    KernelSpec,
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
    Wgmma,
)


@dataclass(frozen=True)
class Shape:
    """How a CTA works on its tile: extents, warpgroups, instruction width, unrolling, staging, cluster.

    With ``splits`` a CTA has one tile, or as many CTAs share the K blocks of one, which may have fewer rows than a
    product. Weights of such tiles, and of others that ``stream`` them, are read once: L2 drops them first, if they are
    few. With ``cut`` tiles that fill no wave are cut in as many parts; with ``overlap`` epilogues run beside the first
    products of the next tile. ``swap`` puts n on the product's rows, for few rows, or as many as fill other tiles
    badly; ``width`` is then of the tile's m. With ``share`` CTAs share the K blocks of tiles that fill no wave. With
    ``lanes`` warps that multiply read a scale of B for 128 columns from memory, where a ring holds it otherwise, that
    of the factors or, with ``strips``, one whose slots serve as many K blocks. With ``rounds`` the K loop is copied out
    for every slot. Swapped tiles are staged by ``staged_rows``. ``raster`` rows of tiles are walked together. The last
    tiles of A come in boxes of ``part_rows``. With ``partials=2`` products of ``width`` columns take turns at two
    sets of registers, and one runs while the other is scaled. ``registers`` of producer and consumers may be given.
    """

    m: int
    n: int
    groups: int = 2
    width: int | None = None
    unroll: int = 4
    staging: int = 2
    staged_rows: int | None = None
    slots: int | None = None
    cluster: tuple[int, int] = (1, 1)
    ctas_per_sm: int = 1
    k_bytes: int = 128
    splits: int | None = None
    cut: int = 1
    overlap: bool = False
    stream: bool = False
    swap: bool = False
    lanes: bool = False
    rounds: bool = False
    strips: int = 1
    raster: int = 8
    part_rows: int | None = None
    share: bool = False
    partials: Literal[1, 2] = 1
    registers: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """Part of the kernel's name."""
        cluster = f"_c{self.cluster[0]}{self.cluster[1]}" if self.cluster != (1, 1) else ""
        splits = f"_s{self.splits}" if self.splits else ""
        pair = f"_x{self.ctas_per_sm}" if self.ctas_per_sm > 1 else ""
        cut = f"_cut{self.cut}" if self.cut > 1 else ""
        share = "_share" if self.share else ""
        partials = f"_p{self.partials}" if self.partials > 1 else ""
        return f"{self.m}x{self.n}{'_swap' if self.swap else ''}{cluster}{splits}{pair}{cut}{share}{partials}"

    @property
    def schedule(self) -> ClusterSplitK | CutRemainder | Persistent | SplitK:
        """How tiles reach CTAs."""
        if self.splits:
            return ClusterSplitK(splits=self.splits)
        if self.cut > 1:
            return CutRemainder(parts=self.cut, raster_group=self.raster)
        if self.share:
            return SplitK(splits=None, whole_waves=True, raster_group=self.raster)
        return Persistent(raster_group=self.raster)


STAGED_ROWS = 64
"""Rows from which on what swapped products make is staged."""

REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
"""setmaxnreg of producer and consumers by the number of consumer warpgroups: 65,536 registers an SM, shared out."""


def fp8_gemm_nt(
    shape: Shape,
    d: DType = DType.BF16,
    residual: bool = False,
    sfa_major: str = "m",
    sfb_columns: int = 128,
    direct_store: bool = False,
    programmatic_launch: bool = False,
) -> KernelSpec:
    """D[m, n] = (A * sfa) . (B * sfb)^T (+ C) in e4m3, fp32 scales per 1x128 of A, 128x128 or 1x128 of B."""
    sfb_axis = "n" if sfb_columns == 1 else f"n/{sfb_columns}"
    operands = [
        Operand(name="a", dtype=DType.E4M3, box=("m", "k")),
        Operand(name="sfa", dtype=DType.F32, box=("m", "k/128"), major=sfa_major),
        Operand(name="b", dtype=DType.E4M3, box=("n", "k")),
        Operand(
            name="sfb",
            dtype=DType.F32,
            box=(sfb_axis, "k/128"),
            major="n" if sfb_columns == 1 and sfa_major == "m" else "k",
        ),
    ]
    scales = "" if sfb_columns == 128 else "_1d1d"
    plain = "" if sfa_major == "m" else "_ksf"
    name = f"sm90_fp8_gemm_nt{scales}{plain}"
    reads = ("sfb",) if (shape.splits or shape.lanes) and sfb_columns == 128 else ()
    holds = tuple(name for name in ("a", "b", "sfa", "sfb") if name not in reads)
    body = Wgmma(drains=("ab",), promote=BlockScale(a="sfa", b="sfb"), width=shape.width, unroll=shape.unroll)
    body = body.replace(reads=reads) if reads else body
    body = body.replace(overlap_epilogue=True) if shape.overlap else body
    body = body.replace(whole_rounds=True) if shape.rounds else body
    body = body.replace(partials=shape.partials)
    body = body.replace(swap_ab=True, staged_rows=shape.staged_rows) if shape.swap else body
    return _dense(name, operands, holds, body, shape, 128, d, residual, direct_store, programmatic_launch)


def bf16_gemm(
    layout: str,
    shape: Shape,
    d: DType = DType.BF16,
    residual: bool = False,
    direct_store: bool = False,
    programmatic_launch: bool = False,
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
    body = Wgmma(drains=("ab",), width=shape.width, unroll=shape.unroll)
    body = body.replace(swap_ab=True, staged_rows=shape.staged_rows) if shape.swap else body
    name = f"sm90_bf16_gemm_{layout}"
    k = shape.k_bytes // 2
    return _dense(name, operands, ("a", "b"), body, shape, k, d, residual, direct_store, programmatic_launch)


def _dense(
    name: str,
    operands: list[Operand],
    holds: tuple[str, ...],
    body: Wgmma,
    shape: Shape,
    k: int,
    d: DType,
    residual: bool,
    direct_store: bool,
    programmatic_launch: bool,
) -> KernelSpec:
    own = ("sfb",) if shape.strips > 1 and "sfb" in holds else ()
    rings = [Ring(name="ab", slots=shape.slots, holds=tuple(name for name in holds if name not in own))]
    if own:
        rings.append(Ring(name="strips", slots=2, holds=own, every=shape.strips))
        body = body.replace(drains=("ab", "strips"))
    epilogue: list[Step] = []
    if residual:
        operands = [*operands, Operand(name="c", dtype=d, box=("m", "n"))]
        epilogue.append(Residual(matrix="c"))
    epilogue.append(Cast(to=d))
    alone = shape.share or shape.splits or shape.m < STAGED_ROWS or d.bytes > 2  # each warp of a swapped product stores
    direct = direct_store or (shape.swap and alone)
    if not direct:
        rings.append(Ring(name="cd", slots=shape.staging, holds=("d",), turns="store"))
    epilogue.append(Store(to="d", through=None if direct else "cd"))
    marks = (
        f"_{d}",
        "_c" if residual else "",
        "_direct" if direct_store else "",
    )
    sole = shape.ctas_per_sm == 1 and not shape.splits
    if shape.registers and not sole:
        raise ValueError(
            f"registers={shape.registers}: CTAs that share an SM or a tile have what the compiler gives them"
        )
    producer, consumer = (shape.registers or REGISTERS[shape.groups]) if sole else (None, None)
    load_warps = 1 if shape.splits else 4 if sole else 2
    math = Role(name="math", warps=4 * shape.groups, registers=consumer, body=body)
    copying = TmaLoad(fills=body.drains, evict_first=("b",) if shape.splits or shape.stream else ())
    by_rows = next(each for each in operands if each.name == "a").inner == "k"
    copying = copying.replace(part_rows=shape.part_rows) if shape.part_rows and by_rows else copying
    load = Role(name="load", warps=load_warps, registers=producer, body=copying)
    spec = KernelSpec(
        name=f"{name}{''.join(marks)}_{shape.label}",
        arch=Arch.SM90,
        tile=Tile(m=shape.m, n=shape.n, k=k),
        operands=(*operands, Operand(name="d", dtype=d, box=("m", "n"))),
        rings=tuple(rings),
        roles=(load, math) if load_warps == 4 else (math, load),
        epilogue=tuple(epilogue),
        schedule=shape.schedule,
        cluster=Cluster(m=shape.cluster[0], n=shape.cluster[1]),
        ctas_per_sm=shape.ctas_per_sm,
    )
    return launched_early(spec) if programmatic_launch else spec


def accumulating(spec: KernelSpec) -> KernelSpec:
    """The same kernel, which adds to what its output holds; of any architecture, fp32.

    On sm90 L2 is asked for that beside scaled products, where CTAs walk whole tiles and stage them; it gains nothing
    beside bf16 ones, which run at a card's power (H200).
    """
    store = spec.epilogue[-1]
    assert isinstance(store, Store)
    adding = spec.replace(name=f"{spec.name}_add", epilogue=(*spec.epilogue[:-1], store.replace(accumulate=True)))
    scaled = isinstance(spec.math.body, Wgmma) and spec.math.body.promote is not None
    if not scaled or store.through is None or not isinstance(spec.schedule, Persistent):
        return adding
    load = spec.load
    fetching = load.replace(body=load.body.replace(to_l2=(store.to,)))
    return adding.replace(roles=tuple(fetching if role is load else role for role in spec.roles))


def starting_early(spec: KernelSpec) -> KernelSpec:
    """The same kernel, which starts before the one ahead of it has ended, and reads nothing until that has."""
    return spec.replace(name=f"{spec.name}_early", programmatic_launch=True)


def launched_early(spec: KernelSpec) -> KernelSpec:
    """The same kernel, which starts before the one ahead of it has ended.

    One that has a tile a CTA reads weights and their scales ahead, so no kernel that may still run may write them.
    """
    early = spec.replace(name=f"{spec.name}_pdl", programmatic_launch=True)
    if not isinstance(spec.schedule, ClusterSplitK):
        return early
    loaded = {name for ring in spec.rings if ring.turns == "k" for name in ring.holds} | {"sfb"}
    weights = (each.name for each in spec.operands if each.name in loaded and "n" in each.axes)
    return early.replace(ahead=tuple(weights))
