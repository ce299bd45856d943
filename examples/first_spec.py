"""D = alpha * (A @ B^T) + bias in bf16, summed in fp32, for Hopper."""

from gemmgen import Arch, Bias, Cast, DType, KernelSpec, Operand, Ring, Role, Scale, Store, Tile, TmaLoad, Wgmma

first = KernelSpec(
    name="first",
    arch=Arch.SM90,
    tile=Tile(m=128, n=128, k=64),
    operands=(
        Operand(name="a", dtype=DType.BF16, box=("m", "k")),
        Operand(name="b", dtype=DType.BF16, box=("n", "k")),
        Operand(name="alpha", dtype=DType.F32, box=()),
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="d", dtype=DType.BF16, box=("m", "n")),
    ),
    rings=(Ring(name="ab", holds=("a", "b")), Ring(name="cd", slots=2, holds=("d",), turns="store")),
    roles=(
        Role(name="load", warps=4, registers=40, body=TmaLoad(fills=("ab",))),
        Role(name="math", warps=8, registers=232, body=Wgmma(drains=("ab",))),
    ),
    epilogue=(Scale(by="alpha"), Bias(vector="bias"), Cast(to=DType.BF16), Store(to="d", through="cd")),
)
