"""D = alpha * (A * sfa) @ (B * sfb)^T + bias in bf16: NVFP4 factors on datacenter Blackwell, with launch control."""

from gemmgen import (
    Arch,
    Bias,
    BlockScale,
    Cast,
    DType,
    FetchTiles,
    KernelSpec,
    LaunchControl,
    Operand,
    Ring,
    Role,
    Scale,
    Store,
    Tcgen05,
    Tile,
    TmaLoad,
    TmemStore,
    TransposeScales,
)

nvfp4 = KernelSpec(
    name="nvfp4",
    arch=Arch.SM100,
    tile=Tile(m=128, n=128, k=256),
    operands=(
        Operand(name="a", dtype=DType.E2M1, box=("m", "k")),
        Operand(name="sfa", dtype=DType.UE4M3X4, box=("m", "k/64"), major="m"),  # a word: four scales of 16
        Operand(name="b", dtype=DType.E2M1, box=("n", "k")),
        Operand(name="sfb", dtype=DType.UE4M3X4, box=("n", "k/64"), major="n"),
        Operand(name="alpha", dtype=DType.F32, box=()),
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    ),
    rings=(
        Ring(name="ab", holds=("a", "b")),
        Ring(name="sfa", holds=("sfa",), slots=4),
        Ring(name="sfb", holds=("sfb",), slots=4),
        Ring(name="acc", space="tmem", turns="tile"),
        Ring(name="cd", slots=2, holds=("d",), turns="store"),
        Ring(name="tile", slots=2, turns="launch"),
    ),
    roles=(
        Role(name="store", warps=4, body=TmemStore(drains=("acc",))),
        Role(name="load", warps=1, body=TmaLoad(fills=("ab", "sfa", "sfb"))),
        Role(
            name="mma",
            warps=1,
            body=Tcgen05(drains=("ab", "sfa", "sfb"), fills=("acc",), scales=BlockScale(a="sfa", b="sfb"), packed=True),
        ),
        Role(name="scales", warps=1, body=TransposeScales(hands_on=("sfa", "sfb"))),
        Role(name="fetch", warps=1, body=FetchTiles(fills=("tile",))),
    ),
    epilogue=(Scale(by="alpha"), Bias(vector="bias"), Cast(to=DType.BF16), Store(to="d", through="cd")),
    schedule=LaunchControl(),
)
