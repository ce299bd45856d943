"""Outputs with gaps in the middle of heads: every path moves columns, and leaves the gaps as they were."""

from __future__ import annotations

import chains
import pytest
import torch
from test_rounded_outputs import PATHS

import gemmgen
from gemmgen.backends import lower
from gemmgen.ir import DType, HeadSplit, KernelSpec


def split(spec: KernelSpec, left: int, mid: int, right: int) -> KernelSpec:
    """The kernel with these heads."""
    return chains.with_heads(spec, HeadSplit(left=left, mid=mid, right=right))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("path", PATHS)
def test_every_path_moves_columns(path: str, dtype: DType) -> None:
    """Staged stores by whole chunks, the others by pairs: heads of 6 and 10 columns, a gap of 3."""
    direct = "direct" in path or "swapped" in path
    left, mid, right, n = (6, 3, 10, 144) if direct else (64, 16, 64, 256)
    chains.run_and_check(split(PATHS[path](dtype), left, mid, right), {"m": 35, "n": n, "k": 24}, seed=7)


@pytest.mark.parametrize("schedule", ["early", "late", "starve"])
@pytest.mark.parametrize("arch", chains.BASES)
def test_heads_that_begin_or_end_with_the_gap(arch: str, schedule: str) -> None:
    for left, right in ((64, 0), (0, 128)):
        spec = split(chains.BASES[arch](DType.BF16), left, 8, right)
        chains.run_and_check(spec, {"m": 33, "n": 128, "k": 24}, seed=1, schedule=schedule)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ((48, 64, 64), "heads of 48 + 64 columns 64 apart; TMA stores 32 columns at a time"),
        ((64, 64, 16), "both must be multiples of 32 and the gap of 8; or leave out `through`"),
        ((64, 4, 64), "heads of 64 + 64 columns 4 apart"),
    ],
)
def test_chunks_that_would_be_torn_are_refused(heads: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        lower(split(chains.BASES["sm90"](DType.BF16), *heads))


def test_shapes_follow_from_heads() -> None:
    spec = split(chains.BASES["sm90"](DType.BF16), 64, 8, 32)
    a, b = torch.randn(5, 16).bfloat16(), torch.randn(192, 16).bfloat16()
    with gemmgen.simulate("sm90", sms=2):
        assert gemmgen.op(spec)(a=a, b=b).shape == (5, 208)
        with pytest.raises(ValueError, match=r"d: n is 160 without its gaps; must be whole heads of 64 \+ 32"):
            gemmgen.op(spec)(a=a, b=b[:160])
        with pytest.raises(
            ValueError, match=r"d: shape is \(5, 192\); must be \(5, 208\) .* 8 more for each head of 96"
        ):
            gemmgen.op(spec)(a=a, b=b, d=torch.empty(5, 192).bfloat16())
