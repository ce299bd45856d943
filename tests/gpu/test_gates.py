"""Gated products on a GPU: maps of four dimensions, alone and by multicast, scales by lanes, and a quantiser behind."""

from __future__ import annotations

import pytest
import torch

import gemmgen
from gemmgen import catalog
from gemmgen.commands.running import execute
from gemmgen.commands.targets import Sizes
from gemmgen.ir import Gate, KernelSpec

NAMES = (
    "sm90_bf16_gemm_nt_bf16_64x32",
    "sm90_bf16_gemm_nt_bf16_128x128",
    "sm90_bf16_gemm_nt_bf16_128x256_c21",
    "sm90_bf16_gemm_nt_bf16_direct_64x128",
    "sm90_fp8_gemm_nt_bf16_128x128",
    "sm90_fp8_gemm_nt_bf16_256x128_c21",
    "sm90_fp8_gemm_nt_1d1d_bf16_64x128",
    "sm90_fp8_gemm_nt_1d1d_ksf_bf16_64x32",
)
LAYOUTS = ("interleaved", "halves")
SIZES = (Sizes(1, 16, 64), Sizes(67, 272, 320), Sizes(130, 2 * 4096 + 48, 1040), Sizes(1024, 7168, 2048))


def gated(name: str, layout: str) -> KernelSpec:
    """SwiGLU of a shipped kernel."""
    spec = catalog.specs()[name]
    d = spec.output.replace(box=("m", "n/2"))
    operands = tuple(d if each.name == d.name else each for each in spec.operands)
    return spec.replace(name="gated", operands=operands, epilogue=(Gate(layout=layout), *spec.epilogue))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_gates_are_the_reference_s(name: str, layout: str) -> None:
    spec = gated(name, layout)
    for sizes in SIZES:
        outcome = execute(spec, sizes, torch.device("cuda"), "random", 1)
        assert not outcome.wrong, (sizes, outcome.errors)


@pytest.mark.parametrize("name", NAMES[:4])
def test_both_layouts_give_the_same_bits_again_and_again(name: str) -> None:
    m, n, k = 300, 1040, 520
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    turned = b.view(2, n // 16, 8, k).transpose(0, 1).reshape(n, k)
    wanted = gemmgen.op(gated(name, "interleaved"))(a=a, b=turned)
    for _ in range(20):
        assert torch.equal(gemmgen.op(gated(name, "halves"))(a=a, b=b), wanted)
