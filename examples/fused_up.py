"""H = fp8(silu(A @ B^T + bias) * gate) for Hopper, with the scales that the next FP8 product reads."""

from gemmgen import Apply, Arch, DType, KernelSpec, Operand, Quantise, Ring, Role, Tile, TmaLoad, Wgmma
from gemmgen.functions import silu

fused_up = KernelSpec(
    name="fused_up",
    arch=Arch.SM90,
    tile=Tile(m=64, n=128, k=64),
    operands=(
        Operand(name="a", dtype=DType.BF16, box=("m", "k")),
        Operand(name="b", dtype=DType.BF16, box=("n", "k")),
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="gate", dtype=DType.BF16, box=("m", "n")),
        Operand(name="h", dtype=DType.E4M3, box=("m", "n")),
        Operand(name="h_sf", dtype=DType.F32, box=("m", "n/128"), major="m"),
    ),
    rings=(Ring(name="ab", holds=("a", "b")), Ring(name="staged", slots=2, holds=("h",), turns="store")),
    roles=(
        Role(name="load", warps=4, registers=40, body=TmaLoad(fills=("ab",))),
        Role(name="math", warps=4, registers=248, body=Wgmma(drains=("ab",))),
    ),
    epilogue=(
        Apply(lambda acc, bias, gate: silu(acc + bias) * gate),
        Quantise(to="h", scales="h_sf", through="staged"),
    ),
)
