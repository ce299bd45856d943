"""Results on the simulator, bit for bit where sums are exact, against ``reference`` (P05-P09, P11, P13, P16, P18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from problems import bf16_problem, fp8_problem, random_fp8_problem, whole_numbers
from reference import check, exact_result, mn_major

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ir import DType
from gemmgen.ops import copies

FP8 = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1))
FP8_ROWS = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), sfb_columns=1)
BF16 = catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1))


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm90", sms=2):
        yield


def same(d: torch.Tensor, expected: torch.Tensor) -> None:
    assert d.dtype == expected.dtype and torch.equal(d, expected)


# ------------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 128), (7, 24, 320), (65, 40, 64), (17, 136, 192), (130, 16, 128)])
def test_fp8_shapes(m: int, n: int, k: int) -> None:
    """P05, P06, P07, P09: odd M, small N, tails of K, one block of K."""
    problem = fp8_problem(m, n, k)
    same(ops.fp8_gemm_nt(*problem.pairs), exact_result(FP8, problem.tensors))


@pytest.mark.parametrize("columns", [128, 1])
@pytest.mark.parametrize("lie", [torch.Tensor.contiguous, mn_major], ids=["row_major", "mn_major"])
def test_fp8_scales(columns: int, lie: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """P13: fp32 scales that are no powers of two are used exactly; P14: the padding between columns holds NaN."""
    problem = random_fp8_problem(9, 136, 320, columns)
    sfb = lie(problem.sfb) if columns == 1 else problem.sfb
    d = ops.fp8_gemm_nt((problem.a, lie(problem.sfa)), (problem.b, sfb), out_dtype=torch.float32)
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), DType.F32, sfb_columns=columns)
    check(d, spec, problem.tensors)


@pytest.mark.parametrize("columns", [128, 1])
def test_scales_along_k_that_are_turned(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the copy's columns, 9 rows and 12 places of a column, holds whatever was there."""
    monkeypatch.setattr(copies, "LAUNCH", -1e9)
    problem = random_fp8_problem(9, 135, 320, columns)
    d = ops.fp8_gemm_nt(*problem.pairs, out_dtype=torch.float32)
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), DType.F32, sfb_columns=columns)
    check(d, spec, problem.tensors)


def test_scales_that_need_a_copy() -> None:
    problem = fp8_problem(7, 16, 256)
    exact = exact_result(FP8, problem.tensors)
    packed = problem.sfa.T.contiguous().T  # columns 28 bytes apart
    same(ops.fp8_gemm_nt((problem.a, packed), (problem.b, problem.sfb)), exact)
    transposed = problem.sfb.T.contiguous().T
    same(ops.fp8_gemm_nt((problem.a, problem.sfa), (problem.b, transposed)), exact)


@pytest.mark.parametrize("name", ["nt", "nn", "tn", "tt"])
def test_bf16_layouts(name: str) -> None:
    a, b = bf16_problem(16, 72, 104)
    given = (a.T.contiguous() if name[0] == "t" else a, b.T.contiguous() if name[1] == "n" else b)
    c = whole_numbers(16, 72, torch.float32)
    d = getattr(ops, f"bf16_gemm_{name}")(*given, c=c)
    spec = catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1), DType.F32, residual=True)
    same(d, exact_result(spec, {"a": a, "b": b, "c": c}))


def test_list_pairs_and_recipes_are_accepted() -> None:
    problem = fp8_problem(3, 16, 128)
    a, b = problem.pairs
    d = ops.fp8_gemm_nt(list(a), b, None, None, (1, 128, 128), disable_ue8m0_cast=True, compiled_dims="nk")
    same(d, exact_result(FP8, problem.tensors))
    rows = fp8_problem(3, 16, 128, columns=1)
    d = ops.fp8_gemm_nt(*rows.pairs, recipe_a=(1, 128), recipe_b=(1, 128))
    same(d, exact_result(FP8_ROWS, rows.tensors))


# ------------------------------------------------------------------------------------------------ zero and empty


def test_k_of_zero_gives_c_or_zeros() -> None:
    """P11."""
    empty = fp8_problem(5, 16, 0)
    d = torch.full((5, 16), torch.nan, dtype=torch.bfloat16)
    assert not ops.fp8_gemm_nt(*empty.pairs, d).any()
    c = whole_numbers(5, 16, torch.bfloat16)
    same(ops.bf16_gemm_nt(*bf16_problem(5, 16, 0), c=c), c)
    same(ops.bf16_gemm_nt(*bf16_problem(5, 16, 0), c, c), c)


def test_zero_rows_and_blocks() -> None:
    """P16: zero data, zero scales and negative zeros give zeros, never NaN."""
    problem = fp8_problem(8, 16, 256)
    a = problem.a.clone()
    a[3] = torch.tensor(-0.0).to(torch.float8_e4m3fn)
    zeroed = problem.but(a=a, sfa=torch.where(torch.arange(8)[:, None] == 5, 0.0, problem.sfa))
    d = ops.fp8_gemm_nt(*zeroed.pairs)
    same(d, exact_result(FP8, zeroed.tensors))
    assert not d[3].any() and not d[5].any()
    assert not ops.fp8_gemm_nt(*problem.but(sfb=torch.zeros(1, 2)).pairs).any()


# ------------------------------------------------------------------------------------------------ outputs and views


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("columns", "width"), [(16, 16), (16, 40), (12, 12), (15, 21)])
def test_outputs_with_and_without_tma(dtype: torch.dtype, columns: int, width: int) -> None:
    """Any pitch of D works, and nothing outside D is written."""
    a, b = bf16_problem(9, columns, 64)
    buffer = torch.full((11, width), 99.0, dtype=dtype)
    view = buffer[1:10, width - columns :]
    d = ops.bf16_gemm_nt(a, b, view)
    assert d is view
    spec = catalog.bf16_gemm(
        "nt", catalog.Shape(64, 16, groups=1), DType.BF16 if dtype == torch.bfloat16 else DType.F32
    )
    same(view, exact_result(spec, {"a": a, "b": b}))
    view.fill_(99.0)
    assert bool((buffer == 99.0).all())


def test_residual_in_place() -> None:
    problem = fp8_problem(9, 24, 128)
    c = whole_numbers(9, 24, torch.bfloat16)
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), residual=True)
    expected = exact_result(spec, {**problem.tensors, "c": c})
    same(ops.fp8_gemm_nt(*problem.pairs, c=c), expected)
    version = c._version
    same(ops.fp8_gemm_nt(*problem.pairs, c, c), expected)
    assert c._version > version


@pytest.mark.parametrize("columns", [24, 23], ids=["TMA", "lanes"])
def test_rows_of_c_may_be_further_apart_than_those_of_d(columns: int) -> None:
    """P18."""
    a, b = bf16_problem(9, columns, 64)
    c = whole_numbers(9, 40, torch.bfloat16)[:, 8 : 8 + columns]
    spec = catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1), residual=True)
    same(ops.bf16_gemm_nt(a, b, c=c), exact_result(spec, {"a": a, "b": b, "c": c}))


def test_views_are_used_as_they_lie() -> None:
    """P18: padded pitch, every other row, offset by 16 bytes."""
    problem = fp8_problem(8, 16, 128)
    wide = torch.zeros(16, 176, dtype=torch.float8_e4m3fn)
    wide[::2, 16:144] = problem.a
    b = torch.zeros(16, 192, dtype=torch.float8_e4m3fn)
    b[:, :128] = problem.b
    scales = torch.full((16, 5), torch.nan)
    scales[::2, 3:4] = problem.sfa
    d = ops.fp8_gemm_nt((wide[::2, 16:144], scales[::2, 3:4]), (b[:, :128], problem.sfb))
    same(d, exact_result(FP8, problem.tensors))


def test_columns_of_one_buffer_as_input_and_output() -> None:
    a, b = bf16_problem(8, 16, 64)
    buffer = torch.zeros(8, 80, dtype=torch.bfloat16)
    buffer[:, :64] = a
    same(ops.bf16_gemm_nt(buffer[:, :64], b, buffer[:, 64:]), exact_result(BF16, {"a": a, "b": b}))
    assert torch.equal(buffer[:, :64], a)


# ------------------------------------------------------------------------------------------------ modes and specs


def test_no_grad_and_inference_mode() -> None:
    """P30: the same bits as in eager mode; parameters are welcome where no gradient is asked for."""
    a, b = bf16_problem(8, 16, 64)
    expected = exact_result(BF16, {"a": a, "b": b})
    weight = torch.nn.Parameter(b)
    with torch.no_grad():
        same(ops.bf16_gemm_nt(a, weight), expected)
    with torch.inference_mode():
        same(ops.bf16_gemm_nt(a, weight, torch.empty(8, 16, dtype=torch.bfloat16)), expected)


def test_compiled_function_gives_the_same_bits() -> None:
    problem = fp8_problem(6, 16, 128)

    def function(
        a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor, d: torch.Tensor
    ) -> torch.Tensor:
        ops.fp8_gemm_nt((a, sfa), (b, sfb), d)
        return d + 1

    d = torch.zeros(6, 16, dtype=torch.bfloat16)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = exact_result(FP8, problem.tensors)
    same(compiled(problem.a, problem.sfa, problem.b, problem.sfb, d), expected + 1)
    same(d, expected)


def composed_spec() -> gemmgen.KernelSpec:
    """fp8 with a host scale, a bias along n, one along m and beta times a residual."""
    plain = catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1), DType.F32)
    operand = gemmgen.Operand
    extra = (
        operand(name="alpha", dtype=DType.F32, box=()),
        operand(name="bias", dtype=DType.BF16, box=("n",)),
        operand(name="row_bias", dtype=DType.F32, box=("m",)),
        operand(name="c", dtype=DType.BF16, box=("m", "n")),
        operand(name="beta", dtype=DType.F32, box=()),
    )
    steps = (
        gemmgen.Scale(by="alpha"),
        gemmgen.Bias(vector="bias"),
        gemmgen.Bias(vector="row_bias"),
        gemmgen.Residual(matrix="c", beta="beta"),
    )
    return plain.replace(name="composed", operands=(*plain.operands, *extra), epilogue=(*steps, *plain.epilogue))


def test_a_composed_epilogue() -> None:
    spec = composed_spec()
    function = gemmgen.op(spec)
    assert gemmgen.op(spec) is function
    problem = fp8_problem(9, 24, 256)
    tensors = {
        **problem.tensors,
        "sfa": mn_major(problem.sfa),
        "bias": whole_numbers(1, 24, torch.bfloat16)[0],
        "row_bias": whole_numbers(1, 9, torch.float32, seed=8)[0],
        "c": whole_numbers(9, 24, torch.bfloat16, seed=9),
    }
    expected = exact_result(spec, tensors, {"alpha": 0.5, "beta": -2.0})
    same(function(**tensors, alpha=0.5, beta=-2), expected)
    d = torch.empty(9, 24)
    assert function(**tensors, alpha=0.5, beta=-2.0, d=d) is d
    same(d, expected)


@pytest.mark.parametrize("schedule", ["late", "random", "starve"])
def test_every_schedule_gives_the_same_bits(schedule: str) -> None:
    problem = fp8_problem(9, 136, 320)
    with gemmgen.simulate("sm90", schedule, seed=3, sms=2):
        same(ops.fp8_gemm_nt(*problem.pairs), exact_result(FP8, problem.tensors))


@pytest.mark.parametrize(("n", "dtype"), [(100, torch.bfloat16), (98, torch.float32), (9, torch.bfloat16)])
def test_a_store_ends_where_its_rows_end(n: int, dtype: torch.dtype) -> None:
    """TMA writes 16-byte chunks whole: rows that end inside one must be stored otherwise."""
    a, b = bf16_problem(70, n, 64)
    frame = torch.full((72, 112), 7.0, dtype=dtype)
    with gemmgen.simulate("sm90"):
        ops.bf16_gemm_nt(a, b, frame[1:71, :n])
    assert torch.equal(frame[1:71, :n].double(), a.double() @ b.double().T)
    frame[1:71, :n] = 7.0
    assert bool((frame == 7.0).all())
