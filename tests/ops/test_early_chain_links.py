"""What tests/gpu/test_early_chains.py launches, without a GPU: its kernels, and calls that read what others wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from early_chains import EARLY, HASTY, LATE, PRODUCER, Chain, chain, early, is_fp8, slow_kernel, without_waits
from fake_gpu import FakeGpu, install

import gemmgen
from gemmgen.ops import hot_call
from gemmgen.ops.kernels import kernel_of
from gemmgen.runtime.architectures import resolve
from gemmgen.runtime.compiler import cached_cubin

LINKS = 2


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    yield install(monkeypatch)
    hot_call.forget()


def test_some_read_ahead_and_others_do_not() -> None:
    assert all("b" in early(name).ahead for name in EARLY) and not any(early(name).ahead for name in LATE)
    assert {early(name).schedule.splits for name in EARLY} == {1, 2, 3, 4, 6, 8}  # type: ignore[union-attr]
    assert PRODUCER.ahead == ("b", "sfb")


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_every_link_starts_early(gpu: FakeGpu, name: str) -> None:
    """Nothing of a call is refused, and nothing is launched between links that would end their overlap."""
    links = chain(name, LINKS, "cpu")
    links.poison()
    for call in links.calls:
        call()
    entries = [PRODUCER.name, early(name).name] if is_fp8(early(name)) else [early(name).name]
    assert [each.entry for each in gpu.launches] == entries * LINKS
    assert all(each.programmatic for each in gpu.launches)


@pytest.mark.parametrize("name", ["sm90_fp8_gemm_nt_bf16_8x128_swap_s4_x2", "sm90_bf16_gemm_nt_bf16_8x64_swap_s8_x2"])
def test_links_read_what_those_before_them_wrote(name: str) -> None:
    """On the simulator, where launches wait for each other; a link left out leaves NaN to the end."""
    links = chain(name, LINKS, "cpu", 256)
    assert run(links) and not run(Chain(links.calls[1:], links.start, links.first, links.written, links.last))


def run(links: Chain) -> bool:
    """Whether the last output has numbers alone."""
    links.poison()
    with gemmgen.simulate("sm90"):
        for call in links.calls:
            call()
    return bool(torch.isfinite(links.last).all())


def test_kernels_of_the_test_itself_compile() -> None:
    texts = [slow_kernel(), *(without_waits(kernel_of(early(name))).text for name in HASTY)]
    for text in texts:
        assert text.entry in cached_cubin(text.source, resolve("sm90"), text.file_name).resources
