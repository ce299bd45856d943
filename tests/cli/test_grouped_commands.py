"""``gemmgen run`` and what ``check`` is made of, on kernels of groups."""

from __future__ import annotations

import pytest
import torch

from gemmgen import catalog
from gemmgen.commands.groups import dense, drawn
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KGroups

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


def test_groups_of_k_are_not_drawn() -> None:
    spec = next(spec for spec in catalog.grouped_specs().values() if isinstance(spec.groups, KGroups))
    with pytest.raises(ValueError, match="has no groups of rows; random operands are drawn for those"):
        execute(spec, Sizes(64, 64, 64), torch.device("cpu"), "early", 0)
