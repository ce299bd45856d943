"""T52: CTAs that work together come in whole, also where SMs are fewer or no multiple of them."""

from __future__ import annotations

import pytest
import torch
from problems import bf16_problem

import gemmgen
from gemmgen.catalog import PairShape, Shape, bf16_gemm, bf16_gemm_sm100
from gemmgen.ir import KernelSpec

SPECS = {
    "a cluster along m": bf16_gemm("nt", Shape(64, 32, groups=1, cluster=(2, 1))),
    "a cluster along n": bf16_gemm("nt", Shape(64, 32, groups=1, cluster=(1, 2))),
    "a cluster that shares K": bf16_gemm("nt", Shape(64, 32, groups=1, ctas_per_sm=2, splits=4, unroll=1)),
    "a pair": bf16_gemm_sm100("nt", PairShape(64, 2, slots=2)),
}


@pytest.mark.parametrize("sms", [1, 3, 5])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_tile_is_there(spec: KernelSpec, sms: int) -> None:
    a, b = bf16_problem(200, 72, 96)
    with gemmgen.simulate(spec.arch, sms=sms):
        d = gemmgen.op(spec)(a=a, b=b)
    assert torch.equal(d, (a.double() @ b.double().T).bfloat16())
