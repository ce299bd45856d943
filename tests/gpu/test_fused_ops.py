"""Products with an epilogue behind them on a GPU: the quantiser's bits, chains of users, compilers and graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from problems import bf16_problem, fp8_problem
from reference import exact_result
from test_shipped_kernels import operands

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ir import Arch, KernelSpec

CUDA = "cuda"
HOPPER = [name for name, spec in catalog.fused_specs().items() if spec.arch == Arch.SM90]


def quantised(spec: KernelSpec, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = spec.operand("d_sf").dtype == "f32"
    return ops.per_token_cast_to_fp8(sums, use_ue8m0=False) if wide else ops.cast_to_mxfp8(sums)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and torch.equal(raw(found), raw(wanted))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes; a column of one element may have any stride, which a view of other elements does not take."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor).view(torch.uint8)


@pytest.mark.parametrize("name", HOPPER)
def test_every_listed_kernel(name: str) -> None:
    """Ragged in every direction, several tiles, a tail of K: exact sums, quantised bit for bit."""
    spec = catalog.specs()[name]
    tensors = operands(spec, 336, 401, 712)
    d_fp8, d_sf = gemmgen.op(spec)(**tensors)
    plain = catalog.bf16_gemm("nt", catalog.Shape(64, 128), catalog.OUTPUTS[1])
    if "sfa" in tensors:
        plain = catalog.fp8_gemm_nt(catalog.Shape(64, 128, groups=1), catalog.OUTPUTS[1])
    data, scales = quantised(spec, exact_result(plain, tensors))
    assert same(d_fp8, data) and same(d_sf, scales)


SHAPES = [(1, 8, 64), (7, 40, 128), (64, 576, 512), (129, 264, 1000), (300, 2112, 256), (4096, 4096, 512)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("label", ["mxfp8out", "fp8out"])
def test_the_tile_that_is_chosen(label: str, m: int, n: int, k: int) -> None:
    """FP8 and bf16 factors of whole numbers, whose sums every tile gets exactly."""
    cast: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = (
        ops.cast_to_mxfp8 if label == "mxfp8out" else lambda x: ops.per_token_cast_to_fp8(x, use_ue8m0=False)
    )
    a, b = bf16_problem(m, n, -(-k // 8) * 8, CUDA)
    data, scales = cast(ops.bf16_gemm_nt(a, b, out_dtype=torch.float32))
    d_fp8, d_sf = getattr(ops, f"bf16_gemm_nt_{label}")(a, b)
    assert same(d_fp8, data) and same(d_sf, scales)
    p = fp8_problem(m, n, -(-k // 16) * 16, 128, CUDA)
    data, scales = cast(ops.fp8_gemm_nt((p.a, p.sfa), (p.b, p.sfb), out_dtype=torch.float32))
    d_fp8, d_sf = getattr(ops, f"fp8_gemm_nt_{label}")((p.a, p.sfa), (p.b, p.sfb))
    assert same(d_fp8, data) and same(d_sf, scales)


def test_a_layer_under_compile_and_in_a_graph() -> None:
    a, b = (torch.randn(256, 512, device=CUDA).bfloat16() for _ in range(2))
    bias = torch.randn(256, device=CUDA)

    def layer(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = ops.bf16_gemm_nt(a, b, bias=bias, activation="silu")
        return ops.bf16_gemm_nt_mxfp8out(hidden, b[:, :256])

    wanted = layer(a, b, bias)
    compiled = torch.compile(layer, fullgraph=True)(a, b, bias)
    assert all(same(found, each) for found, each in zip(compiled, wanted, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(a, b, bias)
    for tensor in captured:
        tensor.view(torch.uint8).fill_(0xEE)
    graph.replay()
    assert all(same(found, each) for found, each in zip(captured, wanted, strict=True))
    silu = torch.nn.functional.silu(a.float() @ b.float().T + bias)
    torch.testing.assert_close(
        ops.bf16_gemm_nt(a, b, bias=bias, activation="silu").float(), silu, rtol=2**-7, atol=1e-2
    )
