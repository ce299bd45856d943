"""``fp8_gemm_nt_skip_head_mid`` on each architecture: the bits of ``fp8_gemm_nt`` at their places, gaps left alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from opchecks import opcheck
from problems import fp8_problem, random_fp8_problem

import gemmgen
from gemmgen import ops
from gemmgen.ir import AnySpec, KernelSpec
from gemmgen.ops import api_heads, dispatch
from gemmgen.ops.fused_op import MADE
from gemmgen.ops.kernels import Kernel

ARCHS = ("sm90", "sm100", "sm120")
STAGED, DIRECT = (64, 64, 128), (32, 6, 24)


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    with gemmgen.simulate(request.param, schedule="random", seed=1, sms=2):
        yield request.param


def places(n: int, splits: tuple[int, int, int]) -> torch.Tensor:
    """Where columns go, head by head."""
    left, mid, right = splits
    head = torch.cat((torch.arange(left), left + mid + torch.arange(right)))
    return torch.cat([head + index * (left + mid + right) for index in range(n // (left + right))])


def empty(m: int, n: int, splits: tuple[int, int, int], dtype: torch.dtype, fill: float = torch.nan) -> torch.Tensor:
    """An output in memory with more columns and rows."""
    columns = n + n // (splits[0] + splits[2]) * splits[1]
    return torch.full((m + 1, -(-columns // 16) * 16 + 16), fill, dtype=dtype)[:m, :columns]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("splits", "n"), [(STAGED, 384), (DIRECT, 168)])
def test_columns_move_and_gaps_stay(arch: str, splits: tuple[int, int, int], n: int, dtype: torch.dtype) -> None:
    p = (random_fp8_problem if arch == "sm90" else fp8_problem)(37, n, 272)
    d = empty(37, n, splits, dtype, fill=7.0)
    assert ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d, splits) is d
    wanted = torch.full_like(d, 7.0)
    wanted[:, places(n, splits)] = ops.fp8_gemm_nt(*p.pairs, out_dtype=dtype)
    assert torch.equal(d, wanted)
    memory = torch.empty(0, dtype=dtype).set_(d.untyped_storage()).view(38, -1)
    assert (memory[37] == 7).all() and (memory[:, d.shape[1] :] == 7).all()


def test_heads_of_one_shape_are_told_apart(arch: str) -> None:
    """(64, 64, 128) and (128, 64, 64) need outputs of one shape."""
    p = fp8_problem(5, 192, 128)
    plain = ops.fp8_gemm_nt(*p.pairs)
    for splits in (STAGED, STAGED[::-1], STAGED):
        d = empty(5, 192, splits, torch.bfloat16)
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d, splits)
        assert torch.equal(d[:, places(192, splits)], plain)


def test_scales_a_row_of_b(arch: str) -> None:
    p = fp8_problem(9, 96, 160, columns=1)
    d = empty(9, 96, (32, 32, 16), torch.bfloat16)
    ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d, (32, 32, 16), recipe=(1, 1, 128))
    assert torch.equal(d[:, places(96, (32, 32, 16))], ops.fp8_gemm_nt(*p.pairs))


def test_whole_chunks_go_by_tma_and_others_from_registers(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    plain = dispatch.kernel_of

    def kernel_of(spec: AnySpec) -> Kernel:
        if isinstance(spec, KernelSpec):
            names.append(spec.name)
        return plain(spec)

    monkeypatch.setattr(dispatch, "kernel_of", kernel_of)
    p = fp8_problem(5, 192, 128)
    for splits, direct in ((STAGED, False), ((96, 64, 96), True), ((64, 60, 128), True)):
        names.clear()
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, empty(5, 192, splits, torch.bfloat16), splits)
        assert all("heads_{}_{}_{}".format(*splits) in name and ("direct" in name) == direct for name in names)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"head_splits": (64, 64)}, TypeError, "must be three whole numbers"),
        ({"head_splits": (63, 64, 65)}, ValueError, "left and right must be even"),
        ({"head_splits": (0, 64, 0)}, ValueError, "left and right must be even, none negative and left"),
        ({"head_splits": (64, -8, 128)}, ValueError, "none negative"),
        ({"head_splits": (64, 64, 96)}, ValueError, "d: n is 192 without .* heads of 64 .* zeros to 320, or"),
        ({"head_splits": (64, 64.0, 64)}, TypeError, "must be three whole numbers"),
        ({"head_splits": 64}, TypeError, "must be three whole numbers"),
        ({"d": torch.empty(5, 192).bfloat16()}, ValueError, r"d: shape is \(5, 192\); must be \(5, 256\)"),
        ({"d": None}, TypeError, "d: is missing"),
        ({"d": torch.empty(5, 256).half()}, TypeError, "d: dtype is torch.float16; must be one of"),
        ({"compiled_dims": "xy"}, ValueError, "compiled_dims"),
        ({"recipe": (2, 2, 2)}, ValueError, "recipe"),
    ],
)
def test_refusals(arch: str, changes: dict[str, object], error: type[Exception], message: str) -> None:
    p = fp8_problem(5, 192, 128)
    arguments = {"d": empty(5, 192, STAGED, torch.bfloat16), "head_splits": STAGED, **changes}
    with pytest.raises(error, match=message):
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, **arguments)  # type: ignore[arg-type]


def test_head_splits_of_any_kind(arch: str) -> None:
    p, d, wanted = fp8_problem(5, 192, 128), *(torch.zeros(5, 256).bfloat16() for _ in range(2))
    ops.fp8_gemm_nt_skip_head_mid(*p.pairs, wanted, STAGED)
    for splits in (np.array(STAGED), [np.int64(each) for each in STAGED]):
        ops.fp8_gemm_nt_skip_head_mid(*p.pairs, d.zero_(), splits)  # type: ignore[arg-type]
        assert torch.equal(d, wanted) and d.any()


def test_compilers_see_it(arch: str) -> None:
    p = fp8_problem(5, 192, 128)
    d = empty(5, 192, STAGED, torch.bfloat16, fill=0.0).contiguous()
    operator = MADE[api_heads._operator(False, *STAGED)]
    stated: tuple[list[int], list[bool]] = ([], []) if arch == "sm90" else ([1, 128, 128, 128], [False, False])
    opcheck(operator._writing, p.a, p.sfa, p.b, p.sfb, *stated, d)
    eager = d.clone()
    torch._dynamo.reset()  # a compiled graph is for one architecture

    def call(a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return ops.fp8_gemm_nt_skip_head_mid((a, sfa), (b, sfb), d, STAGED) + 0

    torch.compile(call, fullgraph=True, backend="aot_eager")(p.a, p.sfa, p.b, p.sfb, d)
    call(p.a, p.sfa, p.b, p.sfb, eager)
    assert torch.equal(d, eager) and d.any()
