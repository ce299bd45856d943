"""Layout kernels against torch on this GPU: bytes a second, read and written, for large factors and their scales.

Results are compared bit for bit first. 4-bit numbers have no counterpart in torch: a copy of their bytes stands beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from environment import card, keep_apart, write

from gemmgen import ops
from gemmgen.ir import Arch, DType
from gemmgen.ops import relayout
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.timing import Flush, times

SIZES = ((4096, 4096), (7168, 4096), (24576, 1536), (7168, 16384), (4096, 7176))
Case = tuple[str, Callable[[], object], Callable[[], object], int]


def cases(arch: Arch, m: int, k: int) -> list[Case]:
    """Kernels, what torch does, and the bytes that are moved."""
    eight = torch.randint(0, 0x7F, (k, m), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn).mT
    four = torch.randint(-128, 128, (k, m // 2), dtype=torch.int8, device="cuda").mT
    sf = torch.exp2(torch.randint(-8, 8, (m, -(-k // 32)), device="cuda").float())
    words = 4 * m * -(-sf.shape[1] // 4)
    assert torch.equal(relayout.to_k_major(eight, DType.E4M3, arch).view(torch.uint8), eight.view(torch.uint8))
    assert torch.equal(relayout.to_k_major(four, DType.E2M1, arch), ops.transpose_packed_fp4(four.mT))
    packed = ops.transform_sf_into_required_layout(sf, m, k, (1, 32), arch="sm100")
    assert torch.equal(relayout.pack_ue8m0(sf, m, 1, arch), packed)
    return [
        ("e4m3", lambda: relayout.to_k_major(eight, DType.E4M3, arch), lambda: eight.contiguous(), 2 * m * k),
        ("e2m1", lambda: relayout.to_k_major(four, DType.E2M1, arch), lambda: four.mT.clone(), m * k),
        (
            "ue8m0",
            lambda: relayout.pack_ue8m0(sf, m, 1, arch),
            lambda: ops.transform_sf_into_required_layout(sf, m, k, (1, 32), arch="sm100"),
            sf.numel() * 4 + words,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    keep_apart(arguments.json, card())
    arch, flush, rows = Arch(resolve(torch.cuda.get_device_capability()).family), Flush("read"), list[dict[str, Any]]()
    for m, k in SIZES:
        for name, ours, torchs, moved in cases(arch, m, k):
            us, torch_us = times([ours, torchs], flush, arguments.repeats)
            rows.append({"what": name, "m": m, "k": k, "bytes": moved, "us": us, "torch_us": torch_us})
            print(
                f"{name:6} {m:6} {k:6} {us:8.1f} us {moved / us / 1e3:7.0f} GB/s   torch {torch_us:8.1f} us", flush=True
            )
            write(arguments.json, rows, what="layout kernels, medians in us, L2 flushed by a 256 MiB read before each")


if __name__ == "__main__":
    main()
