"""``gemmgen run`` and what ``check`` is made of, on kernels of groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gemmgen import catalog
from gemmgen.commands import k_groups
from gemmgen.commands.groups import dense, drawn
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec, KGroups

Command = Callable[..., Any]
NAMES = (
    "sm90_m_grouped_fp8_gemm_nt_bf16_64x128_by_ids",
    "sm100_m_grouped_bf16_gemm_nt_bf16_32x128_swap_by_counts",
    "sm120_m_grouped_fp8_gemm_nt_e4m3x128_e4m3x128_bf16_16x128_swap_by_ends",
)


@pytest.mark.parametrize("name", NAMES)
def test_uneven_groups_are_judged_each_by_itself(name: str) -> None:
    """One row in all, too, which the first group has."""
    spec = catalog.grouped_specs()[name]
    for m in (1, 50):
        outcome = execute(spec, Sizes(m, 16, 64), torch.device("cpu"), "random", 3)
        assert not outcome.wrong and outcome.warnings == ()
    assert [count for _, count in drawn(spec, 1).spans] == [1, 0, 0, 0]
    assert dense(spec).groups is None and all(not each.grouped for each in dense(spec).operands)


K_NAMES = (
    "sm90_k_grouped_bf16_gemm_tn_bf16_64x128_by_ends_a128",
    "sm90_k_grouped_fp8_gemm_nt_1d1d_f32_64x32_add_by_counts_a128_apart",
    "sm100_k_grouped_bf16_gemm_tn_f32_64x128_swap_add_by_counts",
    "sm120_k_grouped_fp8_gemm_nt_e4m3x32_e4m3x32_f32_16x128_swap_add_by_counts_a32",
)


@pytest.mark.parametrize("name", K_NAMES)
def test_groups_of_k_are_judged_each_by_itself(name: str) -> None:
    """No k at all, too, where outputs are 0, or what they were."""
    spec = catalog.grouped_specs()[name]
    assert isinstance(spec.groups, KGroups)
    for k in (400, 0):
        outcome = execute(spec, Sizes(72, 40, k), torch.device("cpu"), "random", 3)
        assert not outcome.wrong and outcome.warnings == ()
    counts = [count for _, count in k_groups.drawn(spec, 400).spans]
    assert counts[1] == 0 and min(counts[0], *counts[2:]) > 0
    assert all(begin % spec.groups.alignment == 0 for begin, _ in k_groups.drawn(spec, 400).spans)


@pytest.mark.parametrize("name", K_NAMES)
def test_a_layout_that_says_something_else_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is told of other groups than those that were drawn."""
    spec, honest = catalog.grouped_specs()[name], k_groups.drawn
    assert isinstance(spec.groups, KGroups)

    def lying(spec: KernelSpec, k: int) -> k_groups.KLayout:
        layout = honest(spec, k)
        return replace(layout, given=(0, *layout.given[1:]) if spec.groups.by == "counts" else (16, *layout.given[1:]))

    monkeypatch.setattr(k_groups, "drawn", lying)
    assert execute(spec, Sizes(72, 40, 400), torch.device("cpu"), "early", 3).wrong


def test_a_run_says_what_is_cut_into_groups(gemmgen: Command) -> None:
    done = gemmgen("run", K_NAMES[0], "-m", "72", "-n", "40", "-k", "400")
    assert "m=72 n=40 k=400 in 4 groups, normal random input" in done.out and "right" in done.out
