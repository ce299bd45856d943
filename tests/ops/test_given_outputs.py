"""Calls that give some of an operator's outputs and have it allocate the others, as compilers see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chains
import pytest
import torch
from opchecks import opcheck
from test_several_outputs import with_pre

import gemmgen
from gemmgen import ops
from gemmgen.ir import Cast, DType, Epilogue, Keep, Operand, Store

M, N, K = 24, 160, 32
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
A, B = torch.randn(M, K).to(E4M3), torch.randn(N, K).to(E4M3)
FACTORS = (A, torch.ones(M, 1)), (B, torch.ones(N, 1))
OF_GROUPS = FACTORS[0], (torch.stack([B, B]), torch.ones(2, N, 1))
ENDS = torch.tensor([10, M], dtype=torch.int32)


def narrow(columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(M, columns, dtype=torch.uint8).view(dtype)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def grouped(d_fp8: torch.Tensor | None = None, d_sf: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return ops.m_grouped_fp8_gemm_nt_contiguous_mxfp8out(*OF_GROUPS, d_fp8, d_sf, ENDS, offsets=True)


Quantising = Callable[..., tuple[torch.Tensor, torch.Tensor]]
CALLS: dict[str, tuple[Quantising, Callable[[], torch.Tensor]]] = {
    "mxfp8": (lambda **given: ops.fp8_gemm_nt_mxfp8out(*FACTORS, **given), lambda: narrow(5, E8M0)),
    "fp8": (lambda **given: ops.fp8_gemm_nt_fp8out(*FACTORS, **given), lambda: torch.zeros(M, 2)),
    "grouped": (grouped, lambda: narrow(5, E8M0)),
}


@pytest.mark.parametrize("arch", ["sm90", "sm120"])
@pytest.mark.parametrize("name", ["d_fp8", "d_sf"])
@pytest.mark.parametrize("call", CALLS)
def test_one_of_two_is_given_to_a_compiled_call(call: str, name: str, arch: str) -> None:
    run, scales = CALLS[call]

    def given() -> dict[str, torch.Tensor]:
        return {name: narrow(N, E4M3) if name == "d_fp8" else scales()}

    torch._dynamo.reset()  # a compiled graph is for one architecture
    compiled = torch.compile(lambda **given: run(**given), fullgraph=True, backend="aot_eager")
    with gemmgen.simulate(arch, sms=2):
        wanted, passed = run(**given()), given()
        found = compiled(**passed)
    assert found[name == "d_sf"] is passed[name]
    for each, other in zip(found, wanted, strict=True):
        assert torch.equal(raw(each), raw(other)) and each.stride() == other.stride()


def kept() -> Any:
    """An FP8 product that stores three forms of its sums."""
    low, pre, d = (
        Operand(name=name, dtype=dtype, box=("m", "n"))
        for name, dtype in (("low", DType.F16), ("pre", DType.F32), ("d", DType.BF16))
    )
    steps = (Keep(to="pre"), Keep(to="low"), Cast(to=DType.BF16), Store(to="d"))
    return gemmgen.fuse("fp8_gemm_nt", Epilogue(name="three", operands=(low, pre, d), steps=steps))


def test_one_of_three_is_given_to_a_fused_operator() -> None:
    run, pre = kept(), torch.zeros(M, N)
    compiled = torch.compile(lambda pre: run(*FACTORS, pre=pre), fullgraph=True, backend="aot_eager")
    with gemmgen.simulate("sm90", sms=2):
        wanted, found = run(*FACTORS), compiled(pre)
    assert any(each is pre for each in found)
    assert all(torch.equal(each, other) for each, other in zip(found, wanted, strict=True))


def test_one_of_two_is_given_to_an_operator_of_a_spec() -> None:
    spec = with_pre(chains.BASES["sm90"](DType.BF16))
    tensors, _ = chains.data(spec, {"m": 5, "n": 24, "k": 16}, seed=1)
    op, pre = gemmgen.op(spec), torch.zeros(5, 24)
    compiled = torch.compile(lambda **given: op(**given), fullgraph=True, backend="aot_eager")
    with gemmgen.simulate("sm90", sms=2):
        (wanted, _), (found, second) = op(**tensors), compiled(**tensors, pre=pre)
    assert second is pre and torch.equal(found, wanted)


def test_what_allocates_the_others_is_a_registered_operator() -> None:
    (a, sfa), (b, sfb) = FACTORS
    with gemmgen.simulate("sm90", sms=2):
        allocate = kept()._allocating
        new = allocate(a, sfa, b, sfb, [], [], [True, False, True])
        assert [each.shape for each in new] == [(M, N)]
        opcheck(allocate, a, sfa, b, sfb, [], [], [True, True, True])
