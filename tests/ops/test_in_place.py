"""C that is the output itself: memory adds where it can, and where it cannot C is read before the output is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fake_gpu import FakeGpu, install
from reference import exact_factor, exact_scales

import gemmgen
from gemmgen import ops
from gemmgen.ops import hot_call


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    yield install(monkeypatch)
    hot_call.forget()


def factors(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return exact_factor(m, k, torch.bfloat16, 1), exact_factor(n, k, torch.bfloat16, 2)


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
@pytest.mark.parametrize("n", [72, 73], ids=["staged", "by lanes"])
def test_bf16_sums_are_added_up(arch: str, n: int) -> None:
    a, b = factors(70, n, 96)
    d = torch.full((70, n), 3.0)
    with gemmgen.simulate(arch):
        for _ in range(2):
            assert ops.bf16_gemm_nt(a, b, d, c=d) is d
    assert torch.equal(d, 3 + 2 * (a.float() @ b.float().T))


@pytest.mark.parametrize("columns", [1, 128])
def test_fp8_sums_are_added_up(columns: int) -> None:
    a, b = (exact_factor(rows, 256, torch.float8_e4m3fn, rows) for rows in (200, 136))
    sfa, sfb = exact_scales(200, 2, 3), exact_scales(-(-136 // columns), 2, 4)
    d = torch.full((200, 136), 3.0)
    with gemmgen.simulate("sm90", sms=2):
        ops.fp8_gemm_nt((a, sfa), (b, sfb), d, c=d)
    wide = sfb.repeat_interleave(columns, 0)[:136].repeat_interleave(128, 1)
    assert torch.equal(d, 3 + (a.float() * sfa.repeat_interleave(128, 1)) @ (b.float() * wide).T)


def test_nothing_of_k_leaves_what_there_was() -> None:
    d = torch.randn(40, 48)
    before = d.clone()
    with gemmgen.simulate("sm90"):
        ops.bf16_gemm_nt(torch.empty(40, 0).bfloat16(), torch.empty(48, 0).bfloat16(), d, c=d)
    assert torch.equal(d, before)


def test_which_kernel_that_is(gpu: FakeGpu) -> None:
    """Another C, one of another type or pitch, and a repeated call of either kind."""
    a, b = factors(256, 256, 128)
    d, c = torch.zeros(256, 256), torch.zeros(256, 256)
    for other in (d, c, d, c):
        ops.bf16_gemm_nt(a, b, d, c=other)
    marks = ["_add" in launch.entry for launch in gpu.launches]
    assert marks == [True, False, True, False]
    assert [launch.hot for launch in gpu.launches] == [False, False, True, True]
    gpu.launches.clear()
    low, odd = torch.zeros(256, 256).bfloat16(), torch.zeros(256, 257)[:, :256]
    ops.bf16_gemm_nt(a, b, low, c=low)
    ops.bf16_gemm_nt(a, b, odd, c=odd)
    assert not any("_add" in launch.entry for launch in gpu.launches)
