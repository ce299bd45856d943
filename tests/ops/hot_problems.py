"""Calls drawn at random: tensors that lie anyhow, outputs that are given or not, options."""

from __future__ import annotations

import random
from typing import Any

import torch

from gemmgen import ops

BF16 = torch.bfloat16


def lies(generator: random.Random, *shape: int, dtype: torch.dtype, columns_first: bool = False) -> torch.Tensor:
    """A matrix somewhere in a buffer, its pitch and mostly its start multiples of 16 bytes."""
    step = 16 // dtype.itemsize
    rows, columns = shape[::-1] if columns_first else shape
    pitch = -(-columns // step) * step + step * generator.choice([0, 0, 0, 1, 2])
    start = step * generator.choice([0, 0, 0, 0, 1, 2]) if generator.random() < 0.9 else 1
    buffer = torch.zeros(rows * pitch + start + step, dtype=dtype)
    matrix = buffer.as_strided((rows, columns), (pitch, 1), start)
    return matrix.T if columns_first else matrix


def drawn_bf16(generator: random.Random) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    m, n, k = generator.choice([1, 7, 8]), generator.choice([8, 16, 24]), generator.choice([64, 128])
    layout = generator.choice(["nt", "nn", "tn", "tt"])
    function = getattr(ops, f"bf16_gemm_{layout}")
    a = lies(generator, m, k, dtype=BF16, columns_first=layout[0] == "t" and m == 8)
    b = lies(generator, n, k, dtype=BF16, columns_first=layout[1] == "n")
    a, b = a.T if layout[0] == "t" else a, b.T if layout[1] == "n" else b
    out = generator.choice([BF16, torch.float32])
    named: dict[str, Any] = {}
    if generator.random() < 0.5:
        named["d"] = lies(generator, m, n, dtype=out)
    elif generator.random() < 0.5:
        named["out_dtype"] = out
    if generator.random() < 0.3:
        kind = named["d"].dtype if "d" in named else named.get("out_dtype", BF16)
        named["c"] = named["d"] if "d" in named and generator.random() < 0.5 else lies(generator, m, n, dtype=kind)
    if layout == "nt" and generator.random() < 0.3:
        named["bias"] = torch.zeros(n, dtype=generator.choice([BF16, torch.float32]))
    if layout == "nt" and generator.random() < 0.3:
        named["activation"] = generator.choice(["relu", "silu"])
    return function, (a, b), named


def drawn_fp8(generator: random.Random) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    m, n, k = generator.choice([1, 7, 8]), generator.choice([16, 32, 256]), generator.choice([128, 384])
    e4m3, blocks = torch.float8_e4m3fn, k // 128
    a, b = lies(generator, m, k, dtype=e4m3), lies(generator, n, k, dtype=e4m3)
    sfa = lies(generator, m, blocks, dtype=torch.float32, columns_first=generator.random() < 0.5)
    sfb = torch.zeros(generator.choice([n, -(-n // 128)]), blocks)
    pairs = (a, sfa), (b, sfb)
    which = generator.randrange(4)
    d = lies(generator, m, n, dtype=BF16) if generator.random() < 0.5 else None
    if which == 0:
        return ops.fp8_gemm_nt, (*pairs, d), {"recipe": generator.choice([None, (1, n // n, 128)])} if n > 1 else {}
    if which == 1:
        heads = (16, generator.choice([8, 16]), 16) if n % 32 == 0 else (8, 8, 8)
        wide = n + n // (heads[0] + heads[2]) * heads[1]
        return ops.fp8_gemm_nt_skip_head_mid, (*pairs, lies(generator, m, wide, dtype=BF16), heads), {}
    if which == 2:
        sf = torch.zeros(m, -(-n // 128)) if generator.random() < 0.5 else None
        return ops.fp8_gemm_nt_fp8out, pairs, {"d_sf": sf}
    return ops.fp8_gemm_nt, (*pairs, d, None), {"disable_ue8m0_cast": generator.random() < 0.5}
