"""What is set for the process, on a GPU: fixed sums, few multiprocessors, early launches; results, bits and grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from problems import random_fp8_problem
from reference import mn_major

from gemmgen import ops
from gemmgen.ops import settings
from gemmgen.ops.dispatch import Dispatcher
from gemmgen.ops.settings import Settings
from gemmgen.runtime.gpu_target import GpuTarget

CUDA = "cuda"
ROWS = (1, 7, 24, 40, 64, 100, 130, 250, 300, 1000)
SIZES = [(576, 7168), (2112, 7168), (7168, 2048), (144, 16384)]
ROUNDING = 6e-3
FINISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "silu": {"bias": True, "activation": "silu"},
    "gate": {"gate": "halves"},
}
LAUNCH = GpuTarget.launch
Call = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    settings._change(**Settings()._asdict())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """Name, CTAs and whether it started early, of every launch that no hot call repeats."""
    made: list[tuple[str, int, bool]] = []

    def launch(self: GpuTarget, handle: Any, grid: Any, params: bytes, stream: int, early: bool, *rest: Any) -> None:
        made.append((handle.text.entry, grid[0], early))
        LAUNCH(self, handle, grid, params, stream, early, *rest)

    monkeypatch.setattr(GpuTarget, "launch", launch)
    return made


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls that reach a dispatcher, which repeated ones do not."""
    seen: list[Any] = []
    call = Dispatcher.__call__

    def counted(self: Dispatcher, *arguments: Any) -> None:
        seen.append(self.names)
        call(self, *arguments)

    monkeypatch.setattr(Dispatcher, "__call__", counted)
    return seen


def product(kind: str, n: int, k: int, m: int = max(ROWS)) -> tuple[Call, torch.Tensor]:
    """A call of as many rows as it is told, and what all rows are, in fp32."""
    p = random_fp8_problem(m, n, k, 128, CUDA)
    if kind == "fp8":
        return lambda rows, **named: ops.fp8_gemm_nt(
            (p.a[:rows], mn_major(p.sfa[:rows])), (p.b, p.sfb), **named
        ), _wanted(p)
    a, b = torch.randn(m, k, device=CUDA).bfloat16(), torch.randn(n, k, device=CUDA).bfloat16()
    return lambda rows, **named: ops.bf16_gemm_nt(a[:rows], b, **named), a.double() @ b.double().T


def _wanted(p: Any) -> torch.Tensor:
    n, k = p.b.shape
    a = p.a.double() * p.sfa.double().repeat_interleave(128, 1)[:, :k]
    b = p.b.double() * p.sfb.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return a @ b.T


def is_near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """By every 64 rows, whose norms say more than the worst element."""
    pairs = zip(found.double().split(64), wanted.split(64), strict=True)
    return all(bool((x - y).norm() <= ROUNDING * y.norm()) for x, y in pairs)


def finished(finish: str, n: int) -> dict[str, Any]:
    named = dict(FINISHES[finish])
    return named | ({"bias": torch.randn(n, device=CUDA)} if "bias" in named else {})


# ------------------------------------------------------------------------------------------------ fixed sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("finish", list(FINISHES))
@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_rows_have_the_same_bits_in_any_company(kind: str, finish: str, dtype: torch.dtype) -> None:
    """By kernels of few rows, of many, and between; called twice, as the second is a repeated one."""
    ops.use_deterministic_algorithms(True)
    for n, k in SIZES:
        call, wanted = product(kind, n, k)
        named = {**finished(finish, n), "out_dtype": dtype}
        whole = call(max(ROWS), **named)
        assert finish != "plain" or is_near(whole, wanted)
        for rows in ROWS:
            for _ in range(2):
                assert torch.equal(call(rows, **named), whole[:rows]), (rows, n, k)


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_without_them_they_do_not(kind: str) -> None:
    """So that the test above has something to find."""
    call, _ = product(kind, 576, 7168)
    whole = call(max(ROWS), out_dtype=torch.float32)
    assert not all(torch.equal(call(rows, out_dtype=torch.float32), whole[:rows]) for rows in ROWS)


def test_groups_have_the_bits_of_dense_products() -> None:
    """Of each group's rows, by offsets and masked, whatever the groups beside it are."""
    ops.use_deterministic_algorithms(True)
    counts, n, k = [3, 0, 130, 64, 700, 1], 2112, 4096
    ends = torch.tensor(counts, device=CUDA).cumsum(0).int()
    a = torch.randn(sum(counts), k, device=CUDA).bfloat16()
    b = torch.randn(len(counts), n, k, device=CUDA).bfloat16()
    wanted = [
        ops.bf16_gemm_nt(rows, w) if len(rows) else rows.new_empty(0, n)
        for rows, w in zip(a.split(counts), b, strict=True)
    ]
    found = torch.full((len(a), n), torch.nan, dtype=torch.bfloat16, device=CUDA)
    ops.m_grouped_bf16_gemm_nt_contiguous(a, b, found, ends, offsets=True)
    assert torch.equal(found, torch.cat(wanted))
    for most in (8, 130):
        few = torch.tensor([min(count, most) for count in counts], dtype=torch.int32, device=CUDA)
        rows = torch.zeros(len(counts), most, k, dtype=torch.bfloat16, device=CUDA)
        for into, group in zip(rows, a.split(counts), strict=True):
            into[: min(len(group), most)] = group[:most]
        d = torch.full((len(counts), most, n), torch.nan, dtype=torch.bfloat16, device=CUDA)
        ops.m_grouped_bf16_gemm_nt_masked(rows, b, d, few, most)
        for each, group in zip(d, wanted, strict=True):
            assert torch.equal(each[: min(len(group), most)], group[:most])


# ------------------------------------------------------------------------------------------------ multiprocessors


@pytest.mark.parametrize("limit", [1, 2, 7, 66, 131])
@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_no_more_ctas_are_launched_and_results_are_right(
    kind: str, limit: int, launches: list[tuple[str, int, bool]], long_ways: list[Any]
) -> None:
    for n, k in SIZES:
        call, wanted = product(kind, n, k)
        free = {rows: call(rows, out_dtype=torch.float32) for rows in ROWS}
        ops.set_num_sms(limit)
        for rows in ROWS:
            launches.clear()
            found = call(rows, out_dtype=torch.float32)
            assert is_near(found, wanted[:rows])
            assert [ctas <= limit for _, ctas, _ in launches] == [True]
            long_ways.clear()
            assert torch.equal(call(rows, out_dtype=torch.float32), found) and not long_ways
        ops.set_num_sms(torch.cuda.get_device_properties(0).multi_processor_count)
        long_ways.clear()
        assert all(torch.equal(call(rows, out_dtype=torch.float32), free[rows]) for rows in ROWS)
        assert not long_ways, "what was known without a limit is known again"


# ------------------------------------------------------------------------------------------------ early launches


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_early_launches_read_what_the_kernel_ahead_wrote(kind: str, launches: list[tuple[str, int, bool]]) -> None:
    """Weights and rows are written right ahead of each call, which only waiting kernels read in time."""
    n, k = 2112, 2048
    for rows in (1, 40, 300, 1000):
        calls = []
        for seed in range(3):
            torch.manual_seed(seed)
            p = random_fp8_problem(rows, n, k, 128, CUDA, seed)
            given = (p.a, mn_major(p.sfa), p.b, p.sfb) if kind == "fp8" else (p.a.bfloat16(), p.b.bfloat16())
            calls.append(given)
        room = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=CUDA) for each in calls[0]]

        def written(given: tuple[torch.Tensor, ...], room: list[torch.Tensor] = room) -> torch.Tensor:
            for into, each in zip(room, given, strict=True):
                into.copy_(each)
            if kind == "fp8":
                return ops.fp8_gemm_nt((room[0], room[1]), (room[2], room[3]), out_dtype=torch.float32)
            return ops.bf16_gemm_nt(*room, out_dtype=torch.float32)

        wanted = [written(given) for given in calls]
        ops.set_pdl(True)
        launches.clear()
        written(calls[0])
        assert [early for *_, early in launches] == [True]
        torch.cuda._sleep(3_000_000)  # so that the launches below are queued back to back
        found = [[written(given) for given in calls] for _ in range(30)]
        torch.cuda.synchronize()
        assert all(torch.equal(x, y) for turn in found for x, y in zip(turn, wanted, strict=True))
        ops.set_pdl(False)
