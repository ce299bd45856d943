"""Small problems whose sums are exact, for operator tests on the simulator and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from reference import exact_factor, exact_scales

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Fp8Problem:
    """Operands of fp8_gemm_nt."""

    a: torch.Tensor
    sfa: torch.Tensor
    b: torch.Tensor
    sfb: torch.Tensor

    @property
    def pairs(self) -> tuple[Pair, Pair]:
        return (self.a, self.sfa), (self.b, self.sfb)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"a": self.a, "sfa": self.sfa, "b": self.b, "sfb": self.sfb}

    def but(self, **changes: torch.Tensor) -> Fp8Problem:
        """The same problem with some operands exchanged."""
        return replace(self, **changes)


def fp8_problem(m: int, n: int, k: int, columns: int = 128, device: str = "cpu") -> Fp8Problem:
    """Small whole numbers with scales that are powers of two; one scale of b per 128 or per 1 of its rows."""
    blocks = -(-k // 128)
    return Fp8Problem(
        exact_factor(m, k, torch.float8_e4m3fn, 1, device),
        exact_scales(m, blocks, 2, device),
        exact_factor(n, k, torch.float8_e4m3fn, 3, device),
        exact_scales(n if columns == 1 else -(-n // 128), blocks, 4, device),
    )


def random_fp8_problem(m: int, n: int, k: int, columns: int = 128, device: str = "cpu", seed: int = 0) -> Fp8Problem:
    """Any finite e4m3 codes, scales that are no powers of two."""
    generator = torch.Generator().manual_seed(seed)
    exact = fp8_problem(m, n, k, columns)

    def codes(like: torch.Tensor) -> torch.Tensor:
        values = torch.randn(like.shape, generator=generator) * 64
        return values.clamp(-448, 448).to(torch.float8_e4m3fn).to(device)

    def scales(like: torch.Tensor) -> torch.Tensor:
        return (torch.rand(like.shape, generator=generator) * 0.02 + 0.0003).to(device)

    return Fp8Problem(codes(exact.a), scales(exact.sfa), codes(exact.b), scales(exact.sfb))


def bf16_problem(m: int, n: int, k: int, device: str = "cpu") -> Pair:
    """A [m, k] and B [n, k] of small whole numbers."""
    return exact_factor(m, k, torch.bfloat16, 5, device), exact_factor(n, k, torch.bfloat16, 6, device)


def whole_numbers(m: int, n: int, dtype: torch.dtype, device: str = "cpu", seed: int = 7) -> torch.Tensor:
    """A matrix to add: whole numbers that bf16 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-32, 33, (m, n), generator=generator).to(dtype).to(device)
