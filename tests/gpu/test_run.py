"""What ``gemmgen run`` does on a GPU: one kernel of each kind, judged on the CPU with all of its outputs' memory."""

from __future__ import annotations

import pytest
import torch

from gemmgen import catalog
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import KernelSpec

K_GROUPED = {spec.name: spec for spec in catalog.k_grouped()}
SPECS = [
    catalog.specs()["sm90_fp8_gemm_nt_bf16_128x256"],
    catalog.grouped_specs()["sm90_m_grouped_fp8_gemm_nt_bf16_192x128_by_ends"],
    catalog.grouped_specs()["sm90_m_grouped_bf16_gemm_nt_bf16_128x256_by_ids"],
    *(spec for name, spec in K_GROUPED.items() if name.startswith("sm90") and "_add_" in name),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_run_is_judged_on_the_cpu(spec: KernelSpec) -> None:
    outcome = execute(spec, Sizes(m=296, n=200, k=1280), torch.device("cuda"), "early", seed=3)
    assert not outcome.wrong, outcome.errors
    assert not outcome.warnings
    assert all(each.device.type == "cpu" for each in outcome.results)
