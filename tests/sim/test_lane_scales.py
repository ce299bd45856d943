"""Scales of B that the multiplying warps read by lanes, tile after tile: dense, cut, of groups, with long k."""

from __future__ import annotations

import pytest
import torch

from gemmgen import catalog
from gemmgen.catalog import Shape, fp8_gemm_nt, in_row_groups
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec
from gemmgen.ops.kernels import kernel_of

LOW = Shape(64, 32, groups=1, lanes=True)
TALL = Shape(256, 64, unroll=1, overlap=True, lanes=True)
PAIR = Shape(128, 128, width=64, unroll=1, cluster=(2, 1), lanes=True)
CASES: dict[str, tuple[KernelSpec, Sizes]] = {
    "more than 64 K blocks": (fp8_gemm_nt(LOW), Sizes(m=70, n=72, k=66 * 128 + 16)),
    "beside products": (fp8_gemm_nt(TALL), Sizes(m=300, n=200, k=272)),
    "cut tiles": (fp8_gemm_nt(Shape(128, 192, unroll=1, cut=3, overlap=True, lanes=True)), Sizes(m=300, n=400, k=272)),
    "columns of two scales": (fp8_gemm_nt(Shape(64, 48, groups=1, lanes=True)), Sizes(m=70, n=304, k=272)),
    "ids": (in_row_groups(fp8_gemm_nt(LOW), "ids"), Sizes(m=150, n=264, k=272)),
    "ends": (in_row_groups(fp8_gemm_nt(TALL), "ends"), Sizes(m=300, n=264, k=272)),
    "counts, where warpgroups skip rows": (in_row_groups(fp8_gemm_nt(PAIR), "counts"), Sizes(m=400, n=264, k=272)),
}


@pytest.mark.parametrize("schedule", ["random", "starve"])
@pytest.mark.parametrize("name", CASES)
def test_every_tile_has_its_own(name: str, schedule: str) -> None:
    spec, sizes = CASES[name]
    assert "LaneScales" in kernel_of(spec).text.source
    outcome = execute(spec, sizes, torch.device("cpu"), schedule, seed=5)
    assert not outcome.wrong and outcome.warnings == (), outcome.errors


def test_refusals() -> None:
    with pytest.raises(ValueError, match="a tile of 176 columns meets more than two rows of scales"):
        kernel_of(fp8_gemm_nt(Shape(128, 176, unroll=1, lanes=True)))
    assert catalog.behind(TALL, catalog.mxfp8_output(False)).lanes
