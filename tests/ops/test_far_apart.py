"""P12 on the device: elements whose index times the stride passes 2^32 are read and written where they lie.

Memory between them is never touched, so views of many GiB cost what their elements do.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import grouped_problems as groups
import pytest
import torch
from problems import bf16_problem, fp8_problem, whole_numbers
from reference import exact_result, mn_major

import gemmgen
from gemmgen import catalog, ops
from gemmgen.catalog.grouped import in_row_groups
from gemmgen.ir import Apply, Arch, Cast, DType, Epilogue, Keep, Operand, Store
from gemmgen.ops import relayout
from gemmgen.ops.quantise import per_token_cast_to_fp8

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
FAR = 2**33
"""So far that elements from the middle on pass 2^32, and not just those of the last row or group."""
NO_RESERVE = 0x4000  # machines with less memory than a view spans map it, too; a name of mmap since Python 3.13
SHAPE = catalog.Shape(64, 16, groups=1)


@pytest.fixture(params=["sm90", "sm100", "sm120"], autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    with gemmgen.simulate(request.param, sms=2):
        yield request.param


def far(near: torch.Tensor, dim: int = 0, more: int = 0) -> torch.Tensor:
    """The same numbers; along ``dim``, the last one's index times the stride is 2^33 or more."""
    strides = list(near.stride())
    strides[dim] = -(-FAR // (near.shape[dim] - 1) // 64) * 64 + more
    last = sum((size - 1) * stride for size, stride in zip(near.shape, strides, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    room = torch.frombuffer(mmap.mmap(-1, (last + 1) * near.element_size(), flags), dtype=near.dtype)
    return room.as_strided(near.shape, strides).copy_(near)


def same(d: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(d.double(), expected.to(d.dtype).double())


def same_bytes(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def apart(outputs: tuple[torch.Tensor, torch.Tensor], more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty outputs like these, a row and its scales far from the next, or a column of scales."""
    d, scales = (torch.zeros_like(each) for each in outputs)
    return far(d, 0, more), far(scales, 0 if scales.stride(1) == 1 else 1)


# ------------------------------------------------------------------------------------------------ single products


@pytest.mark.parametrize(("columns", "dtype"), [(16, BF16), (15, BF16), (15, F32)], ids=["TMA", "lanes", "lanes_f32"])
def test_rows_of_outputs_and_of_what_is_added(columns: int, dtype: torch.dtype) -> None:
    a, b = bf16_problem(9, columns, 64)
    d, c = far(torch.zeros(9, columns, dtype=dtype)), far(whole_numbers(9, columns, dtype))
    product = a.double() @ b.double().T
    same(ops.bf16_gemm_nt(a, b, d), product)
    same(ops.bf16_gemm_nt(a, b, d, c), product + c.double())


def test_rows_of_factors() -> None:
    a, b = bf16_problem(8, 24, 64)
    product = a.double() @ b.double().T
    same(ops.bf16_gemm_nt(far(a), far(b)), product)
    same(ops.bf16_gemm_tn(far(a.T.contiguous()), far(b.T.contiguous())), product)


def test_rows_and_columns_of_scales() -> None:
    problem = fp8_problem(9, 136, 320, columns=1)
    expected = exact_result(catalog.fp8_gemm_nt(SHAPE, sfb_columns=1), problem.tensors)
    for lie in (far, lambda scales: far(mn_major(scales), 1)):
        pairs = problem.but(sfa=lie(problem.sfa), sfb=lie(problem.sfb)).pairs
        same(ops.fp8_gemm_nt(*pairs, recipe=(1, 1, 128)), expected)


def test_blocks_of_scales() -> None:
    problem = fp8_problem(9, 264, 320)
    expected = exact_result(catalog.fp8_gemm_nt(SHAPE), problem.tensors)
    for sfb in (far(problem.sfb), far(problem.sfb.T.contiguous()).T):
        same(ops.fp8_gemm_nt(*problem.but(sfb=sfb).pairs), expected)


@pytest.mark.parametrize("arch", ["sm90"], indirect=True)
def test_blocks_of_scales_that_lanes_read() -> None:
    spec, problem = catalog.fp8_gemm_nt(catalog.Shape(64, 32, groups=1, lanes=True)), fp8_problem(9, 264, 320)
    given = {**problem.tensors, "sfa": mn_major(problem.sfa), "sfb": far(problem.sfb)}
    same(gemmgen.op(spec)(**given), exact_result(spec, problem.tensors))


def test_heads() -> None:
    problem = fp8_problem(9, 24, 256)
    d, columns = far(torch.zeros(9, 30, dtype=BF16)), torch.arange(24)
    ops.fp8_gemm_nt_skip_head_mid(*problem.pairs, d, (4, 3, 8))
    same(d[:, columns + (columns + 8) // 12 * 3], exact_result(catalog.fp8_gemm_nt(SHAPE), problem.tensors))


def test_rows_that_are_kept_and_read_beside() -> None:
    operands = tuple(
        Operand(name=name, dtype=dtype, box=("m", "n"))
        for name, dtype in (("pre", DType.F32), ("gate", DType.F32), ("d", DType.BF16))
    )
    steps = (Keep(to="pre"), Apply(lambda acc, gate: acc * gate), Cast(to=DType.BF16), Store(to="d"))
    gated = gemmgen.fuse("bf16_gemm_nt", Epilogue(name="gated_far", operands=operands, steps=steps))
    a, b = bf16_problem(9, 24, 64)
    product = a.double() @ b.double().T
    gate, pre, d = far(whole_numbers(9, 24, F32)), far(torch.zeros(9, 24)), far(torch.zeros(9, 24, dtype=BF16))
    gated(a, b, gate=gate, pre=pre, d=d)
    same(pre, product)
    same(d, product * gate.double())


@pytest.mark.parametrize("more", [0, 4], ids=["TMA", "lanes"])
@pytest.mark.parametrize("name", ["mxfp8", "fp8"])
def test_rows_of_quantised_outputs_and_their_scales(name: str, more: int) -> None:
    problem = fp8_problem(9, 256, 256)
    called = getattr(ops, f"fp8_gemm_nt_{name}out")
    near = called(*problem.pairs)
    same_bytes(called(*problem.pairs, *apart(near, more)), near)


# ------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("columns", [72, 71], ids=["TMA", "lanes"])
def test_masked_groups(columns: int) -> None:
    """Matrices that lie apart, rows of an output that do, and a bias for each group."""
    layout = groups.counts_of((3, 0, 5), 8)
    problem = groups.bf16_problem(layout, n=columns)
    bias = whole_numbers(3, columns, F32)
    for a, b, d, more in (
        (problem.a, problem.b, far(problem.output()), {"bias": far(bias)}),
        (far(problem.a), far(problem.b), far(problem.output(), 1), {"bias": bias}),
    ):
        ops.m_grouped_bf16_gemm_nt_masked(a, b, d, layout.given, 4, **more)
        for group in range(3):
            same(layout.rows_of(d, group), layout.rows_of(problem.product, group) + bias[group].double())


@pytest.mark.parametrize(("sfa", "columns"), [("k", 128), ("m", 1)])
def test_scales_of_masked_groups(sfa: str, columns: int) -> None:
    layout = groups.counts_of((3, 0, 5), 8)
    problem = groups.fp8_problem(layout, n=136, sfa=sfa, columns=columns)
    (a, a_sf), (b, b_sf) = problem.a, problem.b
    d = problem.output()
    ops.m_grouped_fp8_gemm_nt_masked((a, far(a_sf)), (b, far(b_sf)), d, layout.given, 4, recipe=(1, columns, 128))
    for group in range(3):
        same(layout.rows_of(d, group), layout.rows_of(problem.product, group))


@pytest.fixture
def aligned_to_16() -> Iterator[None]:
    before = ops.get_mk_alignment_for_contiguous_layout()
    ops.set_mk_alignment_for_contiguous_layout(16)
    yield
    ops.set_mk_alignment_for_contiguous_layout(before)


PADDED = groups.ends((5, 6), 16, tail=10)
"""The last row, which is 2^32 away, is one of those that become zero."""


@pytest.mark.usefixtures("aligned_to_16")
@pytest.mark.parametrize("columns", [16, 15], ids=["TMA", "lanes"])
def test_rows_of_groups_and_zeros_behind_them(columns: int) -> None:
    problem = groups.bf16_problem(PADDED, n=columns)
    d = far(problem.output())
    ops.m_grouped_bf16_gemm_nt_contiguous(problem.a, problem.b, d, PADDED.given, use_psum_layout=True)
    same(d[:5], problem.product[:5])
    same(d[16:22], problem.product[16:22])
    assert not d[5:16].any() and not d[22:].any()


def test_columns_of_scales_and_zeros_in_them(arch: str) -> None:
    """Of rows between groups, which hold zeros as soon as a spec promises that."""
    dense = {
        "sm90": lambda: catalog.bf16_gemm("nt", catalog.Shape(64, 128, groups=1)),
        "sm100": lambda: catalog.bf16_gemm_sm100("nt", catalog.PairShape(128)),
        "sm120": lambda: catalog.bf16_gemm_sm120("nt", catalog.WarpShape(64, 128, warps=(4, 1))),
    }[arch]()
    spec = in_row_groups(catalog.fp8_output("m").of(dense), "ends", 16, zero_padding=True)
    problem = groups.bf16_problem(PADDED, n=256)
    d, scales = far(torch.ones(32, 256).to(E4M3)), far(torch.full((2, 32), torch.nan)).T
    gemmgen.op(spec)(a=problem.a, b=problem.b, layout=PADDED.given, d_fp8=d, d_sf=scales)
    for rows in (slice(5), slice(16, 22)):
        same_bytes((d[rows], scales[rows]), per_token_cast_to_fp8(problem.product[rows].float(), False, 128))
    for rows in (slice(5, 16), slice(22, 32)):
        assert not d[rows].float().any() and not scales[rows].any()


@pytest.mark.parametrize("dim", [0, 1], ids=["groups", "rows"])
@pytest.mark.parametrize("columns", [40, 39], ids=["TMA", "lanes"])
def test_groups_of_k(columns: int, dim: int) -> None:
    """Outputs, a C of their own, and outputs that are added to."""
    ks = [40, 24]
    a, b = whole_numbers(64, 64, BF16, seed=1) / 8, (whole_numbers(64, 40, BF16, seed=2) / 8)[:, :columns]
    product = torch.stack([a[span].double().T @ b[span].double() for span in (slice(40), slice(40, 64))])
    layout = torch.tensor(ks, dtype=torch.int32)
    d, c = far(torch.zeros(2, 64, columns), dim), far(torch.ones(2, 64, columns), dim)
    same(ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, layout, c), product + 1)
    same(ops.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, layout, d), 2 * product + 1)


# ------------------------------------------------------------------------------------------------ layout kernels


def test_lines_of_layout_kernels(arch: str) -> None:
    """Whole chunks of 16 bytes and the ends of lines; scales are read 64 bytes at a time."""
    source = torch.randint(0, 256, (36, 18), dtype=torch.uint8)
    destination = far(torch.zeros(18, 36, dtype=torch.uint8).view(E4M3))
    gemmgen.op(catalog.to_k_major(Arch(arch), DType.E4M3))(source=far(source).T.view(E4M3), destination=destination)
    assert torch.equal(destination.view(torch.uint8), source.T)
    scales = 2.0 ** torch.randint(-3, 4, (9, 16))
    found, near = (relayout.pack_ue8m0(each, 9, 1, Arch(arch)) for each in (far(scales), scales))
    assert torch.equal(found, near) and near.any()
