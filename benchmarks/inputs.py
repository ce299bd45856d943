"""Random inputs and references for benchmarks, in torch alone, so that nothing of gemmgen judges itself."""

from __future__ import annotations

import torch

Scaled = tuple[torch.Tensor, torch.Tensor]


def quantise_rows(x: torch.Tensor) -> tuple[Scaled, torch.Tensor]:
    """e4m3 data with one fp32 scale per 1x128 of x [m, k], and what the pair stands for in fp32."""
    m, k = x.shape
    blocks = torch.nn.functional.pad(x, (0, -k % 128)).view(m, -1, 128)
    scale = blocks.abs().amax(2).clamp(1e-4) / 448
    data = (blocks / scale[:, :, None]).to(torch.float8_e4m3fn)
    value = (data.float() * scale[:, :, None]).view(m, -1)[:, :k]
    return (data.view(m, -1)[:, :k].contiguous(), scale), value


def quantise_blocks(x: torch.Tensor) -> tuple[Scaled, torch.Tensor]:
    """e4m3 data with one fp32 scale per 128x128 of x [n, k], and what the pair stands for in fp32."""
    n, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % 128, 0, -n % 128))
    blocks = padded.view(padded.shape[0] // 128, 128, -1, 128)
    scale = blocks.abs().amax((1, 3)).clamp(1e-4) / 448
    data = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    value = (data.float() * scale[:, None, :, None]).reshape(padded.shape)[:n, :k]
    return (data.reshape(padded.shape)[:n, :k].contiguous(), scale), value


def mn_major(scale: torch.Tensor) -> torch.Tensor:
    """Scales [m, k/128] laid out with m contiguous and columns 16-byte aligned; padding holds NaN on purpose."""
    m, k = scale.shape
    buffer = torch.full((k, -(-m // 4) * 4), float("nan"), device=scale.device)
    buffer[:, :m] = scale.t()
    return buffer[:, :m].t()


def worst_tile(out: torch.Tensor, reference: torch.Tensor, tile: int = 64) -> float:
    """The largest relative Frobenius error over tiles of the output; infinite if any element is NaN."""
    m, n = reference.shape

    def per_tile(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, -n % tile, 0, -m % tile))
        return padded.view(padded.shape[0] // tile, tile, -1, tile).pow(2).sum((1, 3))

    error = per_tile(out.float() - reference) / per_tile(reference).clamp_min(1e-30)
    return float("inf") if bool(error.isnan().any()) else error.max().sqrt().item()


def calc_diff(out: torch.Tensor, reference: torch.Tensor) -> float:
    """The field's global measure: 1 - 2<x, y> / (<x, x> + <y, y>) in float64."""
    x, y = out.double(), reference.double()
    return float(1 - 2 * (x * y).sum() / ((x * x).sum() + (y * y).sum()))
