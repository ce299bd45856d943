"""Kernels that start before the one ahead has ended, and read weights meanwhile, wait with all else: on a GPU.

Chains of kernels are held against the same launches with the GPU idle between; and behind a writer that lets them start
at once and writes much later, so that what they do too soon cannot go unseen. Two kernels without their wait show that.
"""

from __future__ import annotations

import pytest
import torch
from early_chains import (
    EARLY,
    HASTY,
    LATE,
    PAST,
    POISON,
    PRODUCER,
    SIZE,
    Chain,
    Left,
    chain,
    early,
    slow_copy,
    slow_kernel,
    weights,
    without_waits,
)

import gemmgen
from gemmgen.ir import KernelSpec
from gemmgen.ops import dispatch
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.parallel import compile_texts
from gemmgen.runtime.targets import gpu

LINKS, REPEATS = 12, 30
SOURCES = 3
"""A's that come by turns, so that the last one's bits are not this one's."""
QUEUED_CYCLES = 3_000_000
"""A sleeping kernel of more than a millisecond, behind which the host queues the launches of a test."""
LATE_NS, VERY_LATE_NS = 30_000, 200_000
"""A kernel under test takes less, from its start to its end."""
CUDA = "cuda"


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """All kernels at once."""
    texts = [slow_kernel(), kernel_of(PRODUCER).text, *(kernel_of(early(name)).text for name in (*EARLY, *LATE))]
    list(compile_texts(texts, gpu().architecture))


def results(links: Chain, waiting: bool) -> list[torch.Tensor]:
    """What the chain leaves, launched back to back or with the GPU idle between."""
    links.poison()
    torch.cuda.synchronize()
    if not waiting:
        torch.cuda._sleep(QUEUED_CYCLES)
    for call in links.calls:
        call()
        if waiting:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return links.results()


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_a_chain_has_the_bits_of_launches_that_wait(name: str) -> None:
    """Each kernel's A, and its scales, are what the kernel before it writes."""
    assert bool(early(name).ahead) == (name in EARLY)
    links = chain(name, LINKS, CUDA)
    wanted = results(links, waiting=True)
    assert bool(torch.isfinite(links.last).all())
    for _ in range(REPEATS):
        found = results(links, waiting=False)
        assert [index for index, (x, y) in enumerate(zip(found, wanted, strict=True)) if not torch.equal(x, y)] == []


# ------------------------------------------------------------------------------------------------ a slow writer


class Behind:
    """A kernel whose A another one writes late, from one of several sources; its results when nobody is late."""

    def __init__(self, spec: KernelSpec) -> None:
        self.op, rows = gemmgen.op(spec), spec.tile.m + PAST
        self.weights = weights(spec, SIZE, SIZE, CUDA)
        self.sources = [Left.random(spec, rows, SIZE, CUDA) for _ in range(SOURCES)]
        self.left = Left.empty(spec, rows, SIZE, CUDA)
        self.outputs = [torch.empty(rows, SIZE, dtype=torch.bfloat16, device=CUDA) for _ in range(REPEATS)]

    def wanted(self) -> list[torch.Tensor]:
        """Of every source, each launched on an idle GPU."""
        found = []
        for source in self.sources:
            d = torch.full_like(self.outputs[0], torch.nan)
            torch.cuda.synchronize()
            self.op(**source.operands, **self.weights, d=d)
            torch.cuda.synchronize()
            found.append(d)
        assert all(bool(torch.isfinite(d).all()) for d in found)
        return found

    def queue(self, index: int, nanoseconds: int) -> torch.Tensor:
        """Poison, the late writer and the kernel, one behind the other."""
        d = self.outputs[index]
        self.left.room.fill_(POISON)
        slow_copy(gpu(), self.sources[index % SOURCES].room, self.left.room, nanoseconds)
        self.op(**self.left.operands, **self.weights, d=d)
        return d


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_what_a_late_writer_writes_is_read_behind_it(name: str) -> None:
    behind = Behind(early(name))
    wanted = behind.wanted()
    behind.queue(0, 0)
    for d in behind.outputs:
        d.fill_(torch.nan)
    torch.cuda.synchronize()
    torch.cuda._sleep(QUEUED_CYCLES)
    found = [behind.queue(index, LATE_NS) for index in range(REPEATS)]
    torch.cuda.synchronize()
    assert [index for index, d in enumerate(found) if not torch.equal(d, wanted[index % SOURCES])] == []


@pytest.mark.parametrize("name", HASTY)
def test_without_its_wait_a_kernel_reads_what_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests above look where they should. The GPU may start a kernel late, but not every time."""
    monkeypatch.setattr(dispatch, "kernel_of", lambda spec: without_waits(kernel_of(spec)))
    spec = early(name)
    behind, seen = Behind(spec.replace(name=f"{spec.name}_hasty")), 0
    behind.queue(0, 0)
    for index in range(10):
        torch.cuda.synchronize()
        torch.cuda._sleep(QUEUED_CYCLES)
        d = behind.queue(index, VERY_LATE_NS)
        torch.cuda.synchronize()
        seen += bool(torch.isnan(d).any())
    assert seen > 0


# ------------------------------------------------------------------------------------------------ the same output


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_of_two_that_write_the_same_output_the_later_one_stays(name: str) -> None:
    """The first one is a late writer, and then a longer product of the same kernel."""
    spec = early(name)
    op, rows, short = gemmgen.op(spec), spec.tile.m + PAST, 128
    left, given = Left.random(spec, rows, SIZE, CUDA), weights(spec, SIZE, SIZE, CUDA)
    few, few_given = Left.random(spec, rows, short, CUDA), weights(spec, SIZE, short, CUDA)
    d, wanted, other = (torch.full((rows, SIZE), torch.nan, dtype=torch.bfloat16, device=CUDA) for _ in range(3))
    kept = torch.full((2, REPEATS, rows, SIZE), torch.nan, dtype=torch.bfloat16, device=CUDA)
    op(**few.operands, **few_given, d=wanted)
    torch.cuda.synchronize()
    op(**left.operands, **given, d=other)
    slow_copy(gpu(), other, d, 0)
    kept[0, 0].copy_(d)
    torch.cuda.synchronize()
    assert bool(torch.isfinite(wanted).all()) and not torch.equal(wanted, other) and torch.equal(d, other)
    torch.cuda._sleep(QUEUED_CYCLES)
    for late, long in zip(*kept, strict=True):
        slow_copy(gpu(), other, d, LATE_NS)
        op(**few.operands, **few_given, d=d)
        late.copy_(d)
        op(**left.operands, **given, d=d)
        op(**few.operands, **few_given, d=d)
        long.copy_(d)
    torch.cuda.synchronize()
    assert [tuple(at) for at in (kept != wanted).any(-1).any(-1).nonzero().tolist()] == []
