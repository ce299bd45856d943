"""Hypothesis strategies for kernel specs: every field that an author can turn, within what the ir allows."""

from __future__ import annotations

from hypothesis import strategies as st

from gemmgen.ir import (
    Apply,
    Arch,
    Bias,
    BlockScale,
    Cast,
    Cluster,
    CutRemainder,
    DType,
    Keep,
    KernelSpec,
    OneTile,
    Operand,
    Persistent,
    Reduce,
    Residual,
    Ring,
    Role,
    Scale,
    Step,
    Store,
    Tile,
    TmaLoad,
    Wgmma,
)
from gemmgen.ir.reserved import KERNELS

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name not in KERNELS and name not in ("load", "math")
)
SCHEDULES = st.one_of(
    st.builds(OneTile, raster_group=st.integers(1, 64)),
    st.builds(Persistent, raster_group=st.integers(1, 64)),
    st.builds(CutRemainder, parts=st.integers(2, 8)),
)
TILES = st.builds(Tile, m=st.integers(8, 512), n=st.integers(1, 32).map(lambda i: 8 * i), k=st.integers(16, 512))
STEPS = {
    "scale": (Operand(name="alpha", dtype=DType.F32, box=()), Scale(by="alpha")),
    "row_scale": (Operand(name="rows", dtype=DType.F32, box=("m",)), Scale(by="rows")),
    "bias": (Operand(name="bias", dtype=DType.BF16, box=("n",)), Bias(vector="bias")),
    "gain": (
        Operand(name="gain", dtype=DType.F32, box=(), on_device=True),
        Apply(expression="silu(acc) * gain"),
    ),
    "keep": (Operand(name="pre", dtype=DType.F16, box=("m", "n")), Keep(to="pre")),
    "sums": (Operand(name="sums", dtype=DType.F32, box=("m",)), Reduce(function="sum", along="n", to="sums")),
    "columns": (Operand(name="columns", dtype=DType.F32, box=("n",)), Reduce(function="sum", along="m", to="columns")),
    "largest": (
        Operand(name="largest", dtype=DType.F32, box=(), on_device=True),
        Reduce(function="amax", along="mn", to="largest"),
    ),
    "residual": (Operand(name="c", dtype=DType.BF16, box=("m", "n")), Residual(matrix="c")),
}


@st.composite
def specs(draw: st.DrawFn) -> KernelSpec:
    """Any spec that the ir accepts, whether or not an architecture can run it."""
    chain = draw(st.lists(st.sampled_from(sorted(STEPS)), unique=True))
    extra = [STEPS[name][0] for name in chain]
    d = draw(st.sampled_from([DType.BF16, DType.F16, DType.F32, DType.E4M3, DType.E5M2]))
    scaled = draw(st.booleans())
    data = DType.E4M3 if scaled else DType.BF16
    operands = [Operand(name="a", dtype=data, box=("m", "k")), Operand(name="b", dtype=data, box=("n", "k"))]
    if scaled:
        operands.append(Operand(name="sfa", dtype=DType.F32, box=("m", "k/128"), major=draw(st.sampled_from("mk"))))
        operands.append(Operand(name="sfb", dtype=DType.F32, box=("n/128", "k/128")))
    holds = tuple(operand.name for operand in operands)
    staged = draw(st.booleans())
    rings = [Ring(name="ab", slots=draw(st.none() | st.integers(1, 32)), holds=holds)]
    if staged:
        rings.append(Ring(name="cd", slots=draw(st.integers(1, 4)), holds=("d",), turns="store"))
    body = Wgmma(
        drains=("ab",),
        promote=BlockScale(a="sfa", b="sfb") if scaled else None,
        width=draw(st.none() | st.integers(1, 32).map(lambda i: 8 * i)),
        unroll=draw(st.integers(1, 16)),
    )
    steps: list[Step] = [STEPS[name][1] for name in chain]
    return KernelSpec(
        name=draw(NAMES),
        arch=Arch.SM90,
        tile=draw(TILES),
        operands=(*operands, *extra, Operand(name="d", dtype=d, box=("m", "n"))),
        rings=tuple(rings),
        roles=(
            Role(name="load", warps=draw(st.integers(1, 32)), body=TmaLoad(fills=("ab",))),
            Role(name="math", warps=draw(st.integers(1, 32)), registers=draw(st.none() | st.just(232)), body=body),
        ),
        epilogue=(*steps, Cast(to=d), Store(to="d", through="cd" if staged else None)),
        schedule=draw(SCHEDULES),
        cluster=Cluster(m=draw(st.integers(1, 2)), n=draw(st.integers(1, 2))),
        programmatic_launch=draw(st.booleans()),
        ctas_per_sm=draw(st.integers(1, 4)),
    )
