"""H = fp8(silu(X @ W_gate^T) * (X @ W_up^T)) for Hopper: rows of both weights interleaved by 8 in one product."""

from gemmgen import Arch, DType, Gate, KernelSpec, Operand, Quantise, Ring, Role, Tile, TmaLoad, Wgmma

swiglu = KernelSpec(
    name="swiglu",
    arch=Arch.SM90,
    tile=Tile(m=128, n=256, k=64),
    operands=(
        Operand(name="x", dtype=DType.BF16, box=("m", "k")),
        Operand(name="w", dtype=DType.BF16, box=("n", "k")),  # 8 rows of gate, 8 of up, and so on
        Operand(name="h", dtype=DType.E4M3, box=("m", "n/2")),
        Operand(name="h_sf", dtype=DType.F32, box=("m", "n/256"), major="m"),  # one per 128 columns of h
    ),
    rings=(Ring(name="ab", holds=("x", "w")), Ring(name="staged", slots=2, holds=("h",), turns="store")),
    roles=(
        Role(name="load", warps=4, registers=40, body=TmaLoad(fills=("ab",))),
        Role(name="math", warps=8, registers=232, body=Wgmma(drains=("ab",), a="x", b="w")),
    ),
    epilogue=(Gate(), Quantise(to="h", scales="h_sf", through="staged")),
)
