"""A thousand launches of random shapes, back to back and on two streams at once: right, bitwise equal, and they end."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from gemmgen import catalog, ops
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu

COUNT = 1000
ROWS, COLUMNS, LENGTH = 2048, 4096, 4096
PATIENCE_SECONDS = 60
"""For work of well under one."""
ROUNDING = 6e-3
"""Of bf16, and of sums of e4m3 products, in the worst tile of 64x64."""


@dataclass(frozen=True)
class Factors:
    """Factors of which every problem takes a corner, so that a thousand shapes need no more memory than one."""

    a: torch.Tensor
    b: torch.Tensor
    a8: torch.Tensor
    b8: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor


@dataclass(frozen=True)
class Launch:
    """One call: which operator, on which corner."""

    fp8: bool
    m: int
    n: int
    k: int

    def __call__(self, factors: Factors, d: torch.Tensor) -> None:
        m, n, k = self.m, self.n, self.k
        if not self.fp8:
            ops.bf16_gemm_nt(factors.a[:m, :k], factors.b[:n, :k], d)
            return
        blocks = -(-k // 128)
        a = factors.a8[:m, :k], factors.sfa[:m, :blocks]
        ops.fp8_gemm_nt(a, (factors.b8[:n, :k], factors.sfb[: -(-n // 128), :blocks]), d)

    def expected(self, factors: Factors) -> torch.Tensor:
        """The product in float32 of what the factors stand for."""
        if not self.fp8:
            return factors.a[: self.m, : self.k].float() @ factors.b[: self.n, : self.k].float().T
        a = factors.a8[: self.m, : self.k].float() * spread(factors.sfa, 1)[: self.m, : self.k]
        return a @ (factors.b8[: self.n, : self.k].float() * spread(factors.sfb, 128)[: self.n, : self.k]).T


def spread(scales: torch.Tensor, rows: int) -> torch.Tensor:
    return scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)


@pytest.fixture(scope="module")
def factors() -> Factors:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False

    def normal(rows: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(rows, LENGTH, device="cuda").to(dtype)

    scales = torch.rand(LENGTH // 128, ROWS, device="cuda") + 0.5
    return Factors(
        normal(ROWS, torch.bfloat16),
        normal(COLUMNS, torch.bfloat16),
        normal(ROWS, torch.float8_e4m3fn),
        normal(COLUMNS, torch.float8_e4m3fn),
        scales.T,
        torch.rand(COLUMNS // 128, LENGTH // 128, device="cuda") + 0.5,
    )


@pytest.fixture(scope="module")
def launches() -> list[Launch]:
    """Shapes log-uniform in each extent; one in eight has rows that TMA cannot store."""
    generator = random.Random(7)

    def drawn(limit: int) -> int:
        return round(math.exp(generator.uniform(0, math.log(limit))))

    found = []
    for index in range(COUNT):
        n = drawn(COLUMNS) if index % 8 == 0 else 8 * drawn(COLUMNS // 8)
        found.append(Launch(generator.random() < 0.5, drawn(ROWS), n, drawn(LENGTH)))
    shapes = {kernel for fp8 in (True, False) for kernel in _kernels(fp8)}
    list(compile_texts([kernel_of(spec).text for spec in shapes], gpu().architecture))
    return found


def _kernels(fp8: bool) -> Sequence[catalog.KernelSpec]:
    make = catalog.fp8_gemm_nt if fp8 else lambda shape, **options: catalog.bf16_gemm("nt", shape, **options)
    tiles = catalog.FP8_SHAPES if fp8 else catalog.BF16_SHAPES
    return [*map(make, tiles), *(make(shape, direct_store=True) for shape in catalog.DIRECT_SHAPES)]


def poisoned(launches: Sequence[Launch]) -> list[torch.Tensor]:
    return [torch.full((each.m, each.n), math.nan, dtype=torch.bfloat16, device="cuda") for each in launches]


def run(
    launches: Sequence[Launch], factors: Factors, stream_of: Callable[[int], torch.cuda.Stream]
) -> list[torch.Tensor]:
    """Every launch into an output of its own, nothing in between; fails when they do not end."""
    outputs = poisoned(launches)
    torch.cuda.synchronize()
    for index, (each, d) in enumerate(zip(launches, outputs, strict=True)):
        with torch.cuda.stream(stream_of(index)):
            each(factors, d)
    events = [torch.cuda.Event() for _ in range(2)]
    for index, event in enumerate(events):
        event.record(stream_of(index))
    limit = time.monotonic() + PATIENCE_SECONDS
    while not all(event.query() for event in events):
        assert time.monotonic() < limit, f"{len(launches)} launches did not end in {PATIENCE_SECONDS} seconds"
        time.sleep(0.01)
    return outputs


@pytest.fixture(scope="module")
def first(launches: list[Launch], factors: Factors) -> list[torch.Tensor]:
    return run(launches, factors, lambda index: torch.cuda.current_stream())


def worst_tile(d: torch.Tensor, expected: torch.Tensor, k: int) -> float:
    """The largest error of a 64x64 tile, relative to it or to a third of what sums of k have; NaN where an element is.

    A tile may be a single sum that happens to be near zero; terms have a variance of at least one.
    """

    def per_tile(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 64, 0, -x.shape[0] % 64))
        return padded.unflatten(1, (-1, 64)).unflatten(0, (-1, 64)).square().sum((1, 3))

    size = torch.maximum(per_tile(expected), per_tile(torch.ones_like(expected)) * k / 9)
    return float((per_tile(d.float() - expected) / size).sqrt().max())


def test_every_result_is_right(launches: list[Launch], factors: Factors, first: list[torch.Tensor]) -> None:
    wrong = []
    for each, d in zip(launches, first, strict=True):
        error = worst_tile(d, each.expected(factors), each.k)
        if not error < ROUNDING:
            wrong.append((each, error))
    assert not wrong


def test_repeats_are_bitwise_equal(launches: list[Launch], factors: Factors, first: list[torch.Tensor]) -> None:
    again = run(launches, factors, lambda index: torch.cuda.current_stream())
    assert [each for each, x, y in zip(launches, first, again, strict=True) if not torch.equal(x, y)] == []


def test_two_streams_at_once_give_the_same_bits(
    launches: list[Launch], factors: Factors, first: list[torch.Tensor]
) -> None:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(2):
        again = run(launches, factors, lambda index: streams[index % 2])
        assert [each for each, x, y in zip(launches, first, again, strict=True) if not torch.equal(x, y)] == []
