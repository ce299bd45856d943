"""The mixture-of-experts example: right on every architecture, and one graph under torch.compile."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gemmgen
from gemmgen.ir import Arch

PATH = Path(__file__).parents[2] / "examples" / "moe_mlp.py"


def example() -> ModuleType:
    found = importlib.util.spec_from_file_location("moe_mlp", PATH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arch", list(Arch))
def test_experts_are_right_as_a_module_and_as_one_graph(arch: Arch) -> None:
    """A graph of the whole module gives the same bits; only on Hopper, tracing is the same for all."""
    moe = example()
    mlp = moe.MoeMlp(128, 128, 4, 2, arch, torch.device("cpu"))
    x = torch.randn(6, 128).bfloat16()
    with torch.inference_mode(), gemmgen.simulate(arch, sms=2):
        found = mlp(x)
        if arch == Arch.SM90:
            graph = torch.compile(mlp, fullgraph=True, backend="aot_eager")
            assert torch.equal(graph(x), found)
    wanted = moe.reference(mlp, x).detach()
    assert float((found.double() - wanted).norm() / wanted.norm()) < 0.06
