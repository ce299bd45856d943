"""Outputs rounded to bf16, f16, e4m3 and e5m2: torch's bits after saturation, on every path that stores."""

from __future__ import annotations

import math
from collections.abc import Callable

import chains
import pytest
import torch
from chains import TORCH

import gemmgen
from gemmgen.backends import emit
from gemmgen.catalog import PairShape, Shape, WarpShape, dense, dense_sm100, dense_sm120
from gemmgen.ir import Activation, Apply, Cast, DType, KernelSpec, Operand, Store

SATURATING = {DType.F16: 65504.0, DType.E4M3: 448.0, DType.E5M2: 57344.0}
"""The largest number of each type that Inf is rounded to."""
PATHS: dict[str, Callable[[DType], KernelSpec]] = {
    "sm90 staged": lambda d: dense.bf16_gemm("nt", Shape(64, 48, groups=1), d),
    "sm90 staged, wide": lambda d: dense.bf16_gemm("nt", Shape(64, 128, groups=1), d),
    "sm90 direct": lambda d: dense.bf16_gemm("nt", Shape(64, 24, groups=1), d, direct_store=True),
    "sm90 swapped": lambda d: dense.bf16_gemm("nt", Shape(16, 64, groups=1, swap=True), d),
    "sm100 rows": lambda d: dense_sm100.bf16_gemm("nt", PairShape(96), d),
    "sm100 rows, direct": lambda d: dense_sm100.bf16_gemm("nt", PairShape(48), d, direct_store=True),
    "sm100 columns": lambda d: dense_sm100.bf16_gemm("nt", PairShape(32, swap=True), d),
    "sm100 columns, direct": lambda d: dense_sm100.bf16_gemm("nt", PairShape(16, swap=True), d, direct_store=True),
    "sm120 staged": lambda d: dense_sm120.bf16_gemm("nt", WarpShape(64, 64), d),
    "sm120 direct": lambda d: dense_sm120.bf16_gemm("nt", WarpShape(64, 32), d, direct_store=True),
    "sm120 swapped": lambda d: dense_sm120.bf16_gemm("nt", WarpShape(16, 64, (4, 1), swap=True), d, direct_store=True),
}


def given(path: str, dtype: DType) -> KernelSpec:
    """The path's kernel, whose result is the fp32 matrix x whatever the factors are."""
    base = PATHS[path](dtype)
    x = Operand(name="x", dtype=DType.F32, box=("m", "n"))
    return base.replace(name="rounded", operands=(*base.operands, x), epilogue=(Apply(expression="x"), *base.epilogue))


def hard_numbers(dtype: DType, rows: int, columns: int) -> torch.Tensor:
    """Numbers of a type, halves between neighbours, what is just beside those, all kinds of overflow and underflow."""
    generator = torch.Generator().manual_seed(int(dtype.bits))
    bits = torch.int8 if dtype.bits == 8 else torch.int16
    codes = torch.randint(-(1 << dtype.bits - 1), 1 << dtype.bits - 1, (rows * columns,), generator=generator)
    low, high = ((codes + step).to(bits).view(TORCH[dtype]).float() for step in (0, 1))
    ties = torch.where((low + high).isfinite(), (low + high) / 2, low)
    beside = torch.nextafter(ties, torch.where(codes % 2 == 0, torch.inf, -torch.inf))
    largest = torch.finfo(TORCH[dtype]).max
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, largest, -largest, 3.4e38, -3.4e38]
    edges += [sign * largest * factor for factor in (1 + 2**-12, 1.03125, 1.0625, 1.125, 1.5) for sign in (1, -1)]
    values = torch.stack((low, ties, beside)).gather(0, codes.abs()[None] % 3)[0]
    values[: len(edges)] = torch.tensor(edges, dtype=torch.float64).float()
    return values[torch.randperm(rows * columns, generator=generator)].view(rows, columns)


def rounded(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """What torch makes of the numbers once they are in range."""
    limit = SATURATING.get(dtype, math.inf)
    return x.clamp(-limit, limit).to(TORCH[dtype])


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same bits, and NaN where it must be."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[wanted.element_size()]
    nan = wanted.float().isnan()
    assert torch.equal(found.float().isnan(), nan)
    assert torch.equal(found.contiguous().view(whole)[~nan], wanted.contiguous().view(whole)[~nan])


@pytest.mark.parametrize(
    ("path", "dtype"), [("sm90 direct", DType.BF16), *((path, dtype) for path in PATHS for dtype in SATURATING)]
)
def test_torchs_bits(path: str, dtype: DType) -> None:
    m, n, k = 67, 144 if "direct" not in path and "swapped" not in path else 137, 16
    spec = given(path, dtype)
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16()
    x = hard_numbers(dtype, m, n)
    whole = torch.full((m + 2, 160), torch.nan).to(TORCH[dtype])
    before = whole.clone()
    with gemmgen.simulate(str(spec.arch), schedule="random", seed=1, sms=2):
        gemmgen.op(spec)(a=a, b=b, x=x, d=whole[1:-1, :n])
    same(whole[1:-1, :n], rounded(x, dtype))
    for beside in (whole[0] == before[0], whole[-1] == before[-1], whole[:, n:] == before[:, n:]):
        assert not beside.any()  # still NaN, which equals nothing


@pytest.mark.parametrize("dtype", [*TORCH])
@pytest.mark.parametrize("path", ["sm90 direct", "sm100 rows, direct", "sm120 direct"])
def test_relu_by_the_instruction_that_casts(path: str, dtype: DType) -> None:
    """As if it came before: NaN stays, everything negative becomes 0."""
    m, n, k = 67, 40, 16
    spec = given(path, dtype)
    steps = (spec.epilogue[0], Activation(function="relu"), Cast(to=dtype), spec.epilogue[-1])
    x = hard_numbers(DType.BF16 if dtype == DType.F32 else dtype, m, n)
    with gemmgen.simulate(str(spec.arch), sms=2):
        found = gemmgen.op(spec.replace(name="relu_cast", epilogue=steps))(
            a=torch.randn(m, k).bfloat16(), b=torch.randn(n, k).bfloat16(), x=x
        )
    assert ("relu_cast<" in emit(spec.replace(epilogue=steps))) and x.isnan().any()
    torch.testing.assert_close(found.float(), rounded(x.relu(), dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [DType.F16, DType.E4M3, DType.E5M2])
@pytest.mark.parametrize("arch", chains.BASES)
def test_narrow_operands_are_read(arch: str, dtype: DType) -> None:
    """A vector and a matrix in the type, which is also the output's: the matrix is the output itself."""
    base = chains.BASES[arch](dtype)
    c, bias = Operand(name="c", dtype=dtype, box=("m", "n")), Operand(name="bias", dtype=dtype, box=("n",))
    links = (Apply(expression="c + bias"), Cast(to=dtype))
    spec = base.replace(name="narrow", operands=(*base.operands, c, bias), epilogue=(*links, base.epilogue[-1]))
    generator = torch.Generator().manual_seed(3)
    d = torch.randn(35, 48, generator=generator).to(TORCH[dtype])
    bias_, before = torch.randn(48, generator=generator).to(TORCH[dtype]), d.clone()
    a, b = torch.randn(35, 16).bfloat16(), torch.randn(48, 16).bfloat16()
    with gemmgen.simulate(arch, sms=2):
        gemmgen.op(spec)(a=a, b=b, c=d, bias=bias_, d=d)
    same(d, rounded(before.float() + bias_.float(), dtype))


def test_a_chain_is_allocated_and_staged_by_whole_chunks() -> None:
    spec = chains.chained("sm90", DType.F16, [chains.activation("relu")])
    a, b = torch.randn(5, 16).bfloat16(), torch.randn(24, 16).bfloat16()
    with gemmgen.simulate("sm90", sms=2):
        d = gemmgen.op(spec)(a=a, b=b)
    assert d.dtype == torch.float16 and d.isfinite().all()
    narrow = dense.bf16_gemm("nt", Shape(64, 24, groups=1), DType.E4M3)
    with pytest.raises(ValueError, match="warps hold 24 bytes of a row of the output; TMA stores whole chunks of 16"):
        gemmgen.op(narrow)
    direct = narrow.replace(rings=narrow.rings[:1], epilogue=(*narrow.epilogue[:-1], Store(to="d")))
    assert gemmgen.op(direct).outputs == ("d",)
