"""Outputs on an H100: what they are rounded to, what chains keep, columns moved by heads; memory beside them intact."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from problems import random_fp8_problem

import gemmgen
from gemmgen import ops
from gemmgen.ir import DType, HeadSplit, Operand

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

import chains
from test_head_split import split
from test_rounded_outputs import PATHS, SATURATING, given, hard_numbers, rounded, same
from test_several_outputs import with_pre
from test_skip_head_mid import places

SM90 = [path for path in PATHS if path.startswith("sm90")]
CUDA = "cuda"

pytestmark = pytest.mark.skipif(torch.cuda.get_device_capability()[0] != 9, reason="these kernels are for sm90")


@pytest.mark.parametrize("dtype", [DType.BF16, *SATURATING])
@pytest.mark.parametrize("path", SM90)
def test_torchs_bits(path: str, dtype: DType) -> None:
    m, n, k = 1067, 144 if "direct" not in path else 137, 16
    spec = given(path, dtype)
    a, b = torch.randn(m, k).bfloat16().to(CUDA), torch.randn(n, k).bfloat16().to(CUDA)
    x = hard_numbers(dtype, m, n)
    whole = torch.full((m + 2, 160), torch.nan).to(chains.TORCH[dtype]).to(CUDA)
    gemmgen.op(spec)(a=a, b=b, x=x.to(CUDA), d=whole[1:-1, :n])
    same(whole[1:-1, :n].cpu(), rounded(x, dtype))
    found = whole.float()
    assert found[0].isnan().all() and found[-1].isnan().all() and found[:, n:].isnan().all()


@pytest.mark.parametrize("kept", [DType.F32, DType.BF16, *SATURATING])
@pytest.mark.parametrize("path", SM90)
def test_chains_keep(path: str, kept: DType) -> None:
    pre = Operand(name="pre", dtype=kept, box=("m", "n"))
    spec = with_pre(PATHS[path](DType.BF16), pre)
    chains.run_and_check(spec, {"m": 667, "n": 392 if "direct" not in path else 391, "k": 200}, seed=2, device=CUDA)


@pytest.mark.parametrize("path", SM90)
def test_columns_move(path: str) -> None:
    heads, n = ((6, 3, 10), 400) if "direct" in path else ((64, 16, 64), 1024)
    chains.run_and_check(split(PATHS[path](DType.BF16), *heads), {"m": 667, "n": n, "k": 200}, seed=7, device=CUDA)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("splits", "n"), [((128, 64, 128), 4096), ((32, 6, 24), 1120)])
def test_skip_head_mid(splits: tuple[int, int, int], n: int, dtype: torch.dtype) -> None:
    p = random_fp8_problem(515, n, 1280, device=CUDA)
    heads = HeadSplit(left=splits[0], mid=splits[1], right=splits[2])
    wanted = torch.full((515, heads.columns(n)), 7.0, dtype=dtype, device=CUDA)
    d = wanted.clone()
    wanted[:, places(n, splits).to(CUDA)] = ops.fp8_gemm_nt(*p.pairs, out_dtype=dtype)
    for _ in range(3):
        d.fill_(7.0)
        assert torch.equal(ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d, splits), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d, splits)
    d.fill_(7.0)
    graph.replay()
    assert torch.equal(d, wanted)
