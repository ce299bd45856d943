"""A mixture-of-experts MLP whose experts are two launches: python examples/moe_mlp.py [--arch sm100] [--compile]

Tokens are routed to their best experts and brought together by expert, right behind one another: no padding, and
nothing waits for the host. One grouped FP8 product makes gate and up of every expert, and its epilogue multiplies
silu(gate) by up and quantises; a second one reads that as it lies. Then every token adds up what its experts made.

With a GPU the example runs there; without one it runs on the simulator, with sizes that take a minute.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch

import gemmgen
from gemmgen import Arch, DType, Epilogue, Gate, Operand, Quantise, ops

BLOCK = 128
"""Columns that share a scale of activations on Hopper; Blackwell multiplies by a scale for 32."""


def swiglu(arch: Arch) -> Epilogue:
    """silu(gate) * up in e4m3, with scales in the layout that the next product reads on that architecture."""
    scales = Operand(name="h_sf", dtype=DType.F32, box=("m", f"n/{2 * BLOCK}"), major="m")
    if arch != Arch.SM90:
        scales = Operand(name="h_sf", dtype=DType.UE8M0X4, box=("m", "n/256"), major="m")
    h = Operand(name="h", dtype=DType.E4M3, box=("m", "n/2"))
    return Epilogue(
        name="swiglu", operands=(h, scales), steps=(Gate("silu", layout="interleaved"), Quantise(to="h", scales="h_sf"))
    )


class MoeMlp(torch.nn.Module):
    """Experts in FP8 with a scale for 128 x 128 weights; ``hidden`` and ``inner`` are multiples of 128.

    ``forward`` maps bf16 [tokens, hidden] to the same; each token goes to ``top_k`` experts. For inference.
    """

    def __init__(self, hidden: int, inner: int, experts: int, top_k: int, arch: Arch, device: torch.device) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.powers_of_two = arch != Arch.SM90
        """Tensor cores that apply scales themselves multiply by powers of two."""
        self.recipes = {} if arch == Arch.SM90 else {"recipe_a": (1, 32), "recipe_b": (BLOCK, BLOCK)}
        self.router = torch.nn.Linear(hidden, experts, bias=False, dtype=torch.bfloat16, device=device)
        self.gate_up = gemmgen.fuse("m_grouped_fp8_gemm_nt_contiguous", swiglu(arch))
        gate, up = (torch.randn(experts, inner, hidden, device=device) * hidden**-0.5 for _ in range(2))
        down = torch.randn(experts, hidden, inner, device=device) * inner**-0.5
        pairs = torch.stack((gate.unflatten(1, (-1, 8)), up.unflatten(1, (-1, 8))), 2)  # 8 rows of gate, 8 of up
        for name, weights in (("up", pairs.flatten(1, 3)), ("down", down)):
            codes, scales = ops.per_block_cast_to_fp8(weights.bfloat16(), self.powers_of_two)
            self.register_buffer(name, codes)
            self.register_buffer(f"{name}_sf", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = torch.softmax(self.router(x).float(), 1).topk(self.top_k)
        chosen = expert.flatten()
        order = chosen.argsort(stable=True)
        place = order.argsort()  # where each token's rows lie
        ends = (chosen[:, None] == torch.arange(self.experts, device=x.device)).sum(0).cumsum(0).int()

        rows = ops.per_token_cast_to_fp8(x[order // self.top_k], self.powers_of_two)
        hidden = self.gate_up(rows, (self.up, self.up_sf), ends, offsets=True)
        made = ops.m_grouped_fp8_gemm_nt_contiguous(
            hidden, (self.down, self.down_sf), None, ends, offsets=True, **self.recipes
        )
        return (made[place].unflatten(0, (-1, self.top_k)).float() * weight[:, :, None]).sum(1).to(x.dtype)


def reference(mlp: MoeMlp, x: torch.Tensor) -> torch.Tensor:
    """The same in float64 on the weights as they were rounded, without rounding activations, expert by expert."""

    def wide(name: str) -> torch.Tensor:
        codes, scales = getattr(mlp, name).double(), getattr(mlp, f"{name}_sf").double()
        return codes * scales.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)

    weight, expert = torch.softmax(mlp.router(x).float(), 1).topk(mlp.top_k)
    gate, up = wide("up").unflatten(1, (-1, 2, 8)).unbind(2)
    down, total = wide("down"), torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for token, choice in ((t, c) for t in range(len(x)) for c in range(mlp.top_k)):
        e, row = expert[token, choice], x[token].double()
        inner = torch.nn.functional.silu(gate[e].flatten(0, 1) @ row) * (up[e].flatten(0, 1) @ row)
        total[token] += weight[token, choice].double() * (down[e] @ inner)
    return total


def main() -> None:
    """Run a layer on random tokens and compare it with float64."""
    parser = argparse.ArgumentParser(description="A mixture-of-experts MLP in two grouped launches.")
    parser.add_argument("--arch", choices=[str(each) for each in Arch], default="sm90", help="simulated without a GPU")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--compile", action="store_true", help="the whole module as one graph of torch.compile")
    given = parser.parse_args()
    there = torch.cuda.is_available()
    device = torch.device("cuda" if there else "cpu")
    arch = Arch(f"sm{10 * torch.cuda.get_device_capability()[0]}") if there else Arch(given.arch)
    tokens, hidden, inner, experts, top_k = (
        (given.tokens or 512, 2048, 1024, 32, 4) if there else (given.tokens or 10, 256, 128, 4, 2)
    )

    mlp = MoeMlp(hidden, inner, experts, top_k, arch, device)
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    layer = torch.compile(mlp, fullgraph=True, backend="inductor" if there else "aot_eager") if given.compile else mlp
    with torch.inference_mode(), nullcontext() if there else gemmgen.simulate(arch, sms=2):
        found, wanted = layer(x), reference(mlp, x)
    error = float((found.double() - wanted).norm() / wanted.norm())
    where = torch.cuda.get_device_name() if there else f"the simulator as {arch}"
    print(f"{tokens} tokens, {experts} experts, {top_k} a token, on {where}: relative error {error:.4f}")
    if not error < 0.06:  # three roundings to e4m3, of 2^-4 each at most
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
