"""The operators on a GPU: shapes, views, modes, graphs, streams (P05-P09, P11, P12, P14, P16, P18, P21, P22, P30)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from opchecks import opcheck
from problems import Fp8Problem, bf16_problem, fp8_problem, random_fp8_problem, whole_numbers
from reference import check, evaluate, exact_result, mn_major

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ir import DType
from gemmgen.ops import block, dense, dispatch, library
from gemmgen.runtime.arguments import Problem, TensorView
from gemmgen.runtime.errors import CaptureError
from gemmgen.runtime.targets import gpu

CUDA = "cuda"
SMALL = catalog.Shape(64, 16, groups=1)
FP8 = catalog.fp8_gemm_nt(SMALL)
FP8_C = catalog.fp8_gemm_nt(SMALL, residual=True)
BF16 = catalog.bf16_gemm("nt", SMALL)
BF16_F32_C = catalog.bf16_gemm("nt", SMALL, DType.F32, residual=True)


def fp8(m: int, n: int, k: int, columns: int = 128) -> Fp8Problem:
    return fp8_problem(m, n, k, columns, CUDA)


def bf16(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return bf16_problem(m, n, k, CUDA)


def same(d: torch.Tensor, expected: torch.Tensor) -> None:
    assert d.dtype == expected.dtype and torch.equal(d, expected)


def framed(m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, Callable[[], bool]]:
    """An output of NaN inside a larger buffer of sentinels, and whether they are all still there."""
    buffer = torch.full((m + 4, n + 16), 77.0, dtype=dtype, device=CUDA)
    d = buffer[2 : m + 2, 8 : n + 8]
    d.fill_(math.nan)

    def intact() -> bool:
        frame = buffer.clone()
        frame[2 : m + 2, 8 : n + 8] = 77.0
        return bool((frame == 77.0).all())

    return d, intact


# ------------------------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize("m", range(1, 18))
def test_small_and_odd_m(m: int) -> None:
    """P05."""
    problem = fp8(m, 576, 1152)
    d, intact = framed(m, 576)
    same(ops.fp8_gemm_nt(*problem.pairs, d), exact_result(FP8, problem.tensors))
    assert intact()
    a, b = bf16(m, 576, 320)
    same(ops.bf16_gemm_nt(a, b), exact_result(BF16, {"a": a, "b": b}))


@pytest.mark.parametrize("n", [8, 16, 24, 40, 576, 2112])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_small_n(n: int, dtype: torch.dtype) -> None:
    """P06: M=576, K=7168."""
    problem = fp8(576, n, 7168)
    spec = catalog.fp8_gemm_nt(SMALL, DType.F32 if dtype == torch.float32 else DType.BF16)
    d, intact = framed(576, n, dtype)
    same(ops.fp8_gemm_nt(*problem.pairs, d), exact_result(spec, problem.tensors))
    assert intact()


@pytest.mark.parametrize("k", [64, 192, 576, 1152, 7168 + 64])
@pytest.mark.parametrize("m", [1, 64, 128])
def test_tails_of_k_and_odd_numbers_of_blocks(m: int, k: int) -> None:
    """P07 and P08 with N=7168."""
    problem = fp8(m, 7168, k)
    same(ops.fp8_gemm_nt(*problem.pairs), exact_result(FP8, problem.tensors))


@pytest.mark.parametrize("k", [128, 256])
def test_fewer_blocks_of_k_than_slots(k: int) -> None:
    """P09: more tiles than multiprocessors."""
    problem = fp8(4096, 4096, k)
    same(ops.fp8_gemm_nt(*problem.pairs), exact_result(FP8, problem.tensors))
    a, b = bf16(4096, 4096, k // 2)
    same(ops.bf16_gemm_nt(a, b), exact_result(BF16, {"a": a, "b": b}))


@pytest.mark.parametrize("name", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(8, 24, 40), (136, 72, 1000), (2048, 1408, 512)])
def test_bf16_layouts(name: str, m: int, n: int, k: int) -> None:
    a, b = bf16(m, n, k)
    given = (a.T.contiguous() if name[0] == "t" else a, b.T.contiguous() if name[1] == "n" else b)
    c = whole_numbers(m, n, torch.float32, CUDA)
    d, intact = framed(m, n, torch.float32)
    getattr(ops, f"bf16_gemm_{name}")(*given, d, c)
    same(d, exact_result(BF16_F32_C, {"a": a, "b": b, "c": c}))
    assert intact()


def test_empty_problems() -> None:
    """P11."""
    for m, n in ((0, 16), (8, 0), (0, 0)):
        assert ops.fp8_gemm_nt(*fp8(m, n, 256).pairs).shape == (m, n)
    c = whole_numbers(5, 16, torch.bfloat16, CUDA)
    same(ops.fp8_gemm_nt(*fp8(5, 16, 0).pairs, c=c), c)
    assert not ops.bf16_gemm_nt(*bf16(5, 16, 0), torch.full_like(c, math.nan)).any()
    same(ops.bf16_gemm_nt(*bf16(5, 16, 0), c, c), c)


def test_outputs_beyond_2_to_the_31_elements() -> None:
    """P12."""
    m, n, k = 525056, 4096, 128
    problem = fp8(m, n, k)
    d = ops.fp8_gemm_nt(*problem.pairs)
    for rows in (slice(0, 128), slice(m // 2 - 64, m // 2 + 64), slice(m - 128, m)):
        part = problem.but(a=problem.a[rows], sfa=problem.sfa[rows])
        same(d[rows], exact_result(FP8, part.tensors))


# ------------------------------------------------------------------------------------------------ scales and contents


@pytest.mark.parametrize("columns", [128, 1])
@pytest.mark.parametrize("lie", [torch.Tensor.contiguous, mn_major], ids=["row_major", "mn_major"])
def test_any_fp32_scales(columns: int, lie: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """P13 and P14: no powers of two; the padding between columns holds NaN."""
    problem = random_fp8_problem(129, 2112, 1088, columns, CUDA)
    sfb = lie(problem.sfb) if columns == 1 else problem.sfb
    d = ops.fp8_gemm_nt((problem.a, lie(problem.sfa)), (problem.b, sfb), out_dtype=torch.float32)
    check(d, catalog.fp8_gemm_nt(SMALL, DType.F32, sfb_columns=columns), problem.tensors)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1.0, 1e38])
def test_garbage_around_the_scales(garbage: float) -> None:
    """P14: a scale buffer taller and wider than the matrix."""
    problem = fp8(65, 136, 320)
    tall = torch.full((96, 8), garbage, device=CUDA)
    tall[:65, 2:5] = problem.sfa
    major = torch.full((3, 96), garbage, device=CUDA)
    major[:, 4:69] = problem.sfa.T
    sfb = torch.full((4, 8), garbage, device=CUDA)
    sfb[1:3, 1:4] = problem.sfb
    for sfa in (tall[:65, 2:5], major[:, 4:69].T):
        d = ops.fp8_gemm_nt((problem.a, sfa), (problem.b, sfb[1:3, 1:4]))
        same(d, exact_result(FP8, problem.tensors))


def test_zeros_give_zeros() -> None:
    """P16, and the warm-up of servers: zero scales over any bytes."""
    problem = fp8(200, 136, 320)
    assert not ops.fp8_gemm_nt(*problem.but(sfa=torch.zeros_like(problem.sfa)).pairs).any()
    finite = torch.randint(0, 127, (200, 320), dtype=torch.uint8, device=CUDA).view(torch.float8_e4m3fn)
    negative_zero = torch.full((136, 320), 128, dtype=torch.uint8, device=CUDA).view(torch.float8_e4m3fn)
    assert not ops.fp8_gemm_nt(*problem.but(a=finite, b=negative_zero).pairs).any()


# ------------------------------------------------------------------------------------------------ memory


def test_views_are_used_as_they_lie() -> None:
    """P18."""
    problem = fp8(128, 256, 512)
    wide = torch.zeros(256, 640, dtype=torch.float8_e4m3fn, device=CUDA)
    wide[::2, 16:528] = problem.a
    b = torch.zeros(256, 576, dtype=torch.float8_e4m3fn, device=CUDA)
    b[:, :512] = problem.b
    d = ops.fp8_gemm_nt((wide[::2, 16:528], problem.sfa), (b[:, :512], problem.sfb))
    same(d, exact_result(FP8, problem.tensors))
    flat = torch.zeros(256 * 512 + 16, dtype=torch.float8_e4m3fn, device=CUDA)
    with pytest.raises(ValueError, match="b: address is 1 bytes past a multiple of 16"):
        ops.fp8_gemm_nt(problem.pairs[0], (flat[1 : 1 + 256 * 512].view(256, 512), problem.sfb))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "start", "width"), [(24, 0, 24), (24, 8, 40), (21, 0, 21), (24, 3, 31), (136, 1, 139)])
def test_outputs_of_any_pitch(dtype: torch.dtype, n: int, start: int, width: int) -> None:
    a, b = bf16(131, n, 200)
    buffer = torch.full((133, width), 77.0, dtype=dtype, device=CUDA)
    d = buffer[1:132, start : start + n]
    c = whole_numbers(131, n, dtype, CUDA)
    spec = catalog.bf16_gemm("nt", SMALL, DType.F32 if dtype == torch.float32 else DType.BF16, residual=True)
    same(ops.bf16_gemm_nt(a, b, d, c), exact_result(spec, {"a": a, "b": b, "c": c}))
    d.fill_(77.0)
    assert bool((buffer == 77.0).all())


def test_residual_in_place() -> None:
    problem = fp8(300, 576, 640)
    c = whole_numbers(300, 576, torch.bfloat16, CUDA)
    expected = exact_result(FP8_C, {**problem.tensors, "c": c})
    same(ops.fp8_gemm_nt(*problem.pairs, c=c), expected)
    same(ops.fp8_gemm_nt(*problem.pairs, c, c), expected)


def test_a_hot_block_equals_packing_anew() -> None:
    """The driver's tensor maps hold addresses where encoding twice says so."""
    target = gpu(0)
    p = fp8(200, 136, 320)
    d = torch.empty(200, 136, dtype=torch.bfloat16, device=CUDA)
    dispatcher, slots = dense.fp8_call(p.a, mn_major(p.sfa), p.b, p.sfb, None, d)
    prepared = dispatcher.prepare(slots, dispatcher.check(slots))
    plan, problem = prepared.launch.kernel.plan, _problem(dispatcher, slots)
    assert block._address_slots(plan, dispatcher.names, problem, dispatch.encoder(target)) is not None
    for moved in (slots, tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=CUDA) for t in slots)):
        fresh = block.whole_block(plan, _problem(dispatcher, moved), dispatch.encoder(target))
        assert prepared.build([tensor.data_ptr() for tensor in moved], ()) == fresh


def _problem(dispatcher: dispatch.Dispatcher, slots: tuple[torch.Tensor, ...]) -> Problem:
    views = {
        name: TensorView(t.data_ptr(), tuple(t.shape), t.stride())
        for name, t in zip(dispatcher.names, slots, strict=True)
    }
    return Problem(dispatcher.check(slots), views, {})


# ------------------------------------------------------------------------------------------------ torch


def test_opcheck() -> None:
    """P29."""
    p, c = fp8(3, 16, 128), whole_numbers(3, 16, torch.float32, CUDA)
    opcheck(library.fp8_gemm_nt, p.a, p.sfa, p.b, p.sfb, None, torch.bfloat16)
    opcheck(library.fp8_gemm_nt_out, p.a, p.sfa, p.b, p.sfb, c, torch.zeros(3, 16, device=CUDA))
    a, b = bf16(3, 16, 64)
    opcheck(library.bf16_gemm_nt, a, b, None, torch.float32)
    opcheck(library.bf16_gemm_nt_out, a, b, c, torch.zeros(3, 16, device=CUDA))


def test_compiled_functions_give_the_same_bits() -> None:
    """P30: one graph for every M, under inference mode too; scales keep their strides."""

    def function(a: torch.Tensor, sfa: torch.Tensor, b: torch.Tensor, sfb: torch.Tensor) -> torch.Tensor:
        return ops.fp8_gemm_nt((a, sfa), (b, sfb)) * 2

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    with torch.inference_mode():
        for m in (9, 65, 130):
            problem = fp8(m, 256, 320)
            expected = exact_result(FP8, problem.tensors) * 2
            same(compiled(problem.a, mn_major(problem.sfa), problem.b, problem.sfb), expected)
            assert counter.frame_count == 1


def test_compiled_writes_in_place() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        ops.bf16_gemm_nt(a, b, d, d)
        return d.float() + 1

    a, b = bf16(65, 72, 128)
    d = whole_numbers(65, 72, torch.bfloat16, CUDA)
    spec = catalog.bf16_gemm("nt", SMALL, residual=True)
    expected = exact_result(spec, {"a": a, "b": b, "c": d.clone()})
    same(torch.compile(function, fullgraph=True)(a, b, d), expected.float() + 1)
    same(d, expected)


def test_autocast_and_inference_mode() -> None:
    """P30."""
    problem = fp8(65, 72, 320)
    expected = exact_result(FP8, problem.tensors)
    with torch.autocast(CUDA, torch.bfloat16), torch.inference_mode():
        same(ops.fp8_gemm_nt(*problem.pairs), expected)
    a, b = bf16(8, 16, 64)
    with pytest.raises(RuntimeError, match="a: requires_grad is True, but this operator has no backward"):
        ops.bf16_gemm_nt(a.requires_grad_(), b)


def test_other_devices_are_refused_and_the_current_one_stays() -> None:
    """P22: mixed devices; the current device is what it was."""
    problem = fp8(8, 16, 128)
    before = torch.cuda.current_device()
    with pytest.raises(RuntimeError, match="sfb: is on cpu, but a is on cuda:0"):
        ops.fp8_gemm_nt(problem.pairs[0], (problem.b, problem.sfb.cpu()))
    for index in range(torch.cuda.device_count()):
        moved = Fp8Problem(*(tensor.to(f"cuda:{index}") for tensor in problem.tensors.values()))
        d = ops.fp8_gemm_nt(*moved.pairs)
        assert d.device.index == index and torch.cuda.current_device() == before
        same(d.to(CUDA), exact_result(FP8, problem.tensors))


# ------------------------------------------------------------------------------------------------ streams and graphs


def test_capture_after_warm_up() -> None:
    """P21: no allocation in the capture; replays see new contents."""
    problem = fp8(65, 576, 1152)
    d = torch.empty(65, 576, dtype=torch.bfloat16, device=CUDA)
    ops.fp8_gemm_nt(*problem.pairs, d)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        ops.fp8_gemm_nt(*problem.pairs, d)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    for factor in (1.0, 2.0, -0.5):
        problem.sfa.mul_(factor)
        d.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        same(d, exact_result(FP8, problem.tensors))


def test_first_call_inside_a_capture() -> None:
    """P21: refused in words before anything is loaded, and the process goes on."""
    spec = catalog.bf16_gemm("nt", SMALL).replace(name="cold_in_capture")
    function = gemmgen.op(spec)
    a, b = bf16(8, 16, 64)
    d = torch.empty(8, 16, dtype=torch.bfloat16, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="warm this shape up first"), torch.cuda.graph(graph):
        function(a=a, b=b, d=d)
    same(function(a=a, b=b, d=d), exact_result(BF16, {"a": a, "b": b}))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        function(a=a, b=b, d=d)


def test_the_current_stream_is_used() -> None:
    problem = fp8(129, 576, 1152)
    expected = exact_result(FP8, problem.tensors)
    d = torch.zeros_like(expected)
    ops.fp8_gemm_nt(*problem.pairs, d)
    d.zero_()
    side = torch.cuda.Stream()
    late = problem.sfa.clone()
    late.zero_()
    assert not d.any()  # loads what looks at d, which takes longer than the sleep
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late.copy_(problem.sfa)
        ops.fp8_gemm_nt((problem.a, late), (problem.b, problem.sfb), d)
    assert not d.any(), "the default stream does not wait for the side stream"
    side.synchronize()
    same(d, expected)


def test_programmatic_launch_waits_for_the_kernel_before() -> None:
    """Chains in which each product reads what the one before wrote."""
    spec = catalog.bf16_gemm("nt", catalog.Shape(128, 128), programmatic_launch=True)
    assert spec.programmatic_launch
    function = gemmgen.op(spec)
    n = 1024
    shift = torch.eye(n, dtype=torch.bfloat16, device=CUDA).roll(1, 0)
    x, y = whole_numbers(n, n, torch.bfloat16, CUDA), torch.empty(n, n, dtype=torch.bfloat16, device=CUDA)
    expected = x.clone()
    for _ in range(50):
        function(a=x, b=shift, d=y)
        function(a=y, b=shift, d=x)
        expected = expected.roll(2, 1)
    same(x, expected)


def test_hundred_repeats_are_bitwise_equal() -> None:
    problem = random_fp8_problem(129, 576, 7168, device=CUDA)
    first = ops.fp8_gemm_nt(*problem.pairs, out_dtype=torch.float32)
    for _ in range(100):
        same(ops.fp8_gemm_nt(*problem.pairs, out_dtype=torch.float32), first)


def test_quantised_product_is_close_to_the_plain_one() -> None:
    """A product of random numbers, scaled and rounded to e4m3 by rows and blocks, against the dequantised inputs."""
    x = torch.randn(256, 1024, device=CUDA)
    scale = x.abs().view(256, 8, 128).amax(2) / 448
    a = (x.view(256, 8, 128) / scale[:, :, None]).view(256, 1024).to(torch.float8_e4m3fn)
    problem = random_fp8_problem(256, 512, 1024, device=CUDA)
    tensors = problem.but(a=a, sfa=scale).tensors
    d = ops.fp8_gemm_nt((a, scale), (problem.b, problem.sfb))
    check(d, FP8, tensors)
    assert evaluate(FP8, tensors).abs().max() > 0
