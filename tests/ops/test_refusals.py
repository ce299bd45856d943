"""Bad input: one refusal each, before any launch, whose message names argument, value, rule and fix (P04, P13, P18)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import bf16_problem, fp8_problem, whole_numbers

import gemmgen
from gemmgen import catalog, ops
from gemmgen.ir import DType, Epilogue, Operand, Quantise
from gemmgen.ops import dispatch
from gemmgen.ops.choice_prenorm import prenorm_spec
from gemmgen.runtime.errors import CompileError, DeviceError, NvrtcNotFound, UnsupportedArchitecture


@pytest.fixture(autouse=True)
def simulator() -> Iterator[None]:
    with gemmgen.simulate("sm90"):
        yield


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr("gemmgen.runtime.sim_target.SimTarget.launch", refuse)


GOOD = fp8_problem(8, 16, 256)


def fp8(**changes: torch.Tensor) -> torch.Tensor:
    return ops.fp8_gemm_nt(*GOOD.but(**changes).pairs)


def message(error: pytest.ExceptionInfo[Exception]) -> str:
    return str(error.value)


# ------------------------------------------------------------------------------------------------ types and shapes


def test_wrong_dtype_of_data() -> None:
    with pytest.raises(TypeError, match=r"^a: dtype is torch.bfloat16; must be torch.float8_e4m3fn; quantise a first$"):
        fp8(a=GOOD.a.to(torch.bfloat16))
    with pytest.raises(TypeError, match=r"^b: dtype is torch.float8_e5m2; must be torch.float8_e4m3fn"):
        fp8(b=GOOD.b.to(torch.float8_e5m2))
    a, b = bf16_problem(8, 16, 64)
    with pytest.raises(
        TypeError, match=r"^a: dtype is torch.float16; must be torch.bfloat16; pass a.to\(torch.bfloat16\)"
    ):
        ops.bf16_gemm_nt(a.half(), b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float8_e8m0fnu])
def test_packed_scales_are_never_guessed(dtype: torch.dtype) -> None:
    """P13: the dtype decides the meaning of scales."""
    scales = torch.zeros(GOOD.sfa.shape, dtype=dtype)
    with pytest.raises(
        TypeError, match=r"^sfa: dtype is .*; must be torch.float32; UE8M0 scales belong to sm100 and sm120"
    ):
        fp8(sfa=scales)


def test_wrong_output_type() -> None:
    with pytest.raises(TypeError, match=r"^d: dtype is torch.float16; must be one of torch.bfloat16, torch.float32"):
        ops.fp8_gemm_nt(*GOOD.pairs, torch.empty(8, 16, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"^out_dtype: is torch.float32, but d has dtype torch.bfloat16"):
        ops.fp8_gemm_nt(*GOOD.pairs, torch.empty(8, 16, dtype=torch.bfloat16), out_dtype=torch.float32)


def test_residual_of_another_type_than_the_output() -> None:
    with pytest.raises(
        TypeError, match=r"^c: dtype is torch.float32; must be torch.bfloat16; pass c.to\(torch.bfloat16\)"
    ):
        ops.fp8_gemm_nt(*GOOD.pairs, torch.empty(8, 16, dtype=torch.bfloat16), torch.zeros(8, 16))


def test_extents_that_disagree() -> None:
    with pytest.raises(ValueError, match=r"^b: k is 128, but k of a is 256; they must be equal"):
        fp8(b=GOOD.b[:, :128])
    with pytest.raises(ValueError, match=r"^d: m is 9, but m of a is 8"):
        ops.fp8_gemm_nt(*GOOD.pairs, torch.empty(9, 16, dtype=torch.bfloat16))


def test_wrong_rank() -> None:
    with pytest.raises(ValueError, match=r"^a: shape \(1, 8, 256\) has 3 dimensions; must have 2: \(m, k\)"):
        fp8(a=GOOD.a[None])
    with pytest.raises(ValueError, match=r"^b: has 1 dimensions; must be a matrix"):
        ops.bf16_gemm_nn(torch.zeros(8, 16, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.bfloat16))


def test_scales_without_the_tail_of_k() -> None:
    """P07: K // 128 columns would lose the tail."""
    problem = fp8_problem(8, 16, 320)
    with pytest.raises(
        ValueError, match=r"^sfa: shape is \(8, 2\); must be \(8, 3\) = \(m, k/128\), rounded up for m=8, k=320"
    ):
        ops.fp8_gemm_nt((problem.a, problem.sfa[:, :2]), (problem.b, problem.sfb))
    with pytest.raises(ValueError, match=r"^sfb: shape is \(2, 3\); must be \(1, 3\) = \(n/128, k/128\)"):
        ops.fp8_gemm_nt((problem.a, problem.sfa), (problem.b, problem.sfb.repeat(2, 1)))


def test_scales_taller_than_m() -> None:
    with pytest.raises(ValueError, match=r"^sfa: m is 12, but m of a is 8; they must be equal"):
        fp8(sfa=torch.ones(12, 2))


def test_arguments_that_are_no_tensors() -> None:
    with pytest.raises(TypeError, match=r"^a: is a Tensor; must be a pair \(data, scales\), such as a=\(data, sfa\)"):
        ops.fp8_gemm_nt(GOOD.a, (GOOD.b, GOOD.sfb))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^sfb: is a list; must be a torch.Tensor"):
        ops.fp8_gemm_nt((GOOD.a, GOOD.sfa), (GOOD.b, [1.0]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"recipe": (1, 1, 32)}, r"^recipe: \(1, 1, 32\) is not supported on sm90; use one of \(1, 128, 128\)"),
        ({"recipe": (1, 1, 128)}, r"^sfb: shape is \(1, 2\).*the recipe \(1, 1, 128\) says one scale per 1 x 128"),
        ({"recipe_a": (1, 128)}, r"^recipe_b: is missing; pass recipe_a and recipe_b together"),
        ({"recipe": (1, 128, 128), "recipe_a": (1, 128)}, r"^recipe: .*pass either recipe or both others"),
        ({"recipe_a": (1, 32), "recipe_b": (1, 32)}, r"^recipe_a \+ recipe_b: \(1, 32, 1, 32\) is not supported"),
        (
            {"recipe": (1, 128)},
            r"^recipe: is \(1, 128\); must be a tuple of 3 whole numbers \(gran_m of a, gran_n of b, ",
        ),
        ({"compiled_dims": "nq"}, r"^compiled_dims: 'nq' names more than m, n and k"),
    ],
)
def test_recipes_that_do_not_fit(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ops.fp8_gemm_nt(*GOOD.pairs, **arguments)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ memory


def test_pitch_that_tma_cannot_walk() -> None:
    """P18: the message of the design, with the padded extent."""
    a, b = bf16_problem(8, 16, 65)
    with pytest.raises(ValueError) as error:
        ops.bf16_gemm_nt(a, b)
    assert message(error) == (
        "a: row pitch is 65 elements = 130 bytes; TMA needs a multiple of 16 bytes; "
        "pad k to 72, or cut the tensor from one with rows of 72 elements"
    )
    wide = torch.zeros(8, 264, dtype=torch.float8_e4m3fn)[:, :256]
    with pytest.raises(ValueError, match=r"^a: row pitch is 264 elements = 264 bytes; .*; pass a.contiguous\(\)$"):
        fp8(a=wide)


def test_column_pitch_of_a_transposed_operand() -> None:
    a = torch.zeros(64, 12, dtype=torch.bfloat16)
    b = torch.zeros(16, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"^a: column pitch is 12 elements = 24 bytes; .*pad m to 16"):
        ops.bf16_gemm_tt(a, b)


def test_address_that_is_not_aligned() -> None:
    """P18: contiguous, but one byte off."""
    flat = torch.zeros(16 * 256 + 16, dtype=torch.float8_e4m3fn)
    cut = flat[1 : 1 + 16 * 256].view(16, 256)
    with pytest.raises(
        ValueError, match=r"^b: address is 1 bytes past a multiple of 16 \(storage offset 1 .*pass b.clone"
    ):
        fp8(b=cut)


def test_wrong_dimension_contiguous() -> None:
    """P18: 8-bit operands must have k contiguous on Hopper."""
    with pytest.raises(
        ValueError, match=r"^b: strides are \(1, 16\); this kernel needs k \(dimension 1\) contiguous.*b.contig"
    ):
        fp8(b=GOOD.b.T.contiguous().T)
    _, b = bf16_problem(8, 16, 64)
    with pytest.raises(ValueError, match=r"^a: strides are \(128, 2\); this kernel needs k .*pass a.contiguous\(\)"):
        ops.bf16_gemm_nt(torch.zeros(8, 128, dtype=torch.bfloat16)[:, ::2], b)


def test_rows_that_overlap() -> None:
    expanded = torch.zeros(1, 256, dtype=torch.float8_e4m3fn).expand(8, 256)
    with pytest.raises(
        ValueError, match=r"^a: rows of 256 elements start only 0 elements apart and overlap; .*a.contiguous"
    ):
        fp8(a=expanded)
    d = torch.zeros(1, 16, dtype=torch.bfloat16).expand(8, 16)
    with pytest.raises(ValueError, match=r"^d: rows of 16 elements start only 0 elements apart and overlap"):
        ops.fp8_gemm_nt(*GOOD.pairs, d)


def test_output_with_the_wrong_dimension_contiguous() -> None:
    d = torch.zeros(16, 8, dtype=torch.bfloat16).T
    with pytest.raises(ValueError, match=r"^d: strides are \(1, 8\); this kernel needs n \(dimension 1\) contiguous"):
        ops.fp8_gemm_nt(*GOOD.pairs, d)


def test_outputs_whose_memory_is_negated() -> None:
    a, b = bf16_problem(8, 16, 64)
    message = r"^{}: is a view whose memory holds its values negated; .* pass a new tensor, and copy it to {} then$"
    d = torch._neg_view(torch.zeros(8, 16))
    for call in (lambda: ops.bf16_gemm_nt(a, b, d), lambda: ops.fp8_gemm_nt(*GOOD.pairs, d)):
        with pytest.raises(ValueError, match=message.format("d", "d")):
            call()
    with pytest.raises(ValueError, match=message.format("d_sf", "d_sf")):
        ops.bf16_gemm_nt_fp8out(a, b, d_sf=torch._neg_view(torch.zeros(8, 1)))


def test_output_over_an_input() -> None:
    buffer = torch.zeros(64 * 256, dtype=torch.bfloat16)
    a, d = buffer[: 8 * 64].view(8, 64), buffer[8 * 32 : 8 * 32 + 8 * 16].view(8, 16)
    with pytest.raises(
        ValueError, match=r"^d: its memory \[0x.* bytes\] overlaps a \[0x.*; an output may not share.*a.clone"
    ):
        ops.bf16_gemm_nt(a, bf16_problem(8, 16, 64)[1], d)


def test_residual_that_overlaps_the_output_partly() -> None:
    buffer = whole_numbers(9, 16, torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"^d: .* overlaps c .* with an input unless it is exactly d; pass c.clone\(\)"
    ):
        ops.fp8_gemm_nt(*GOOD.pairs, buffer[:8], buffer[1:])


def test_extent_beyond_32_bits() -> None:
    a = torch.empty(2**31, 16, dtype=torch.bfloat16, device="meta")
    b = torch.empty(8, 16, dtype=torch.bfloat16, device="meta")
    with pytest.raises(
        ValueError, match=r"^a: m is 2147483648; must be at most 2147482624, so split the problem along m"
    ):
        ops.bf16_gemm_nt(a, b)


# ------------------------------------------------------------------------------------------------ devices


def test_tensors_on_several_devices() -> None:
    with pytest.raises(DeviceError, match=r"^sfb: is on meta, but a is on cpu; .*pass sfb.to\('cpu'\)"):
        dispatch.check_problem(
            [*catalog.fp8_gemm_nt(catalog.Shape(64, 16, groups=1)).operands][:4],
            GOOD.but(sfb=GOOD.sfb.to("meta")).tensors,
        )


@pytest.mark.parametrize("finish", [{}, {"activation": "relu"}], ids=["plain", "finished"])
def test_outputs_that_do_not_lie_by_strides(finish: dict[str, Any]) -> None:
    """Torch would say which backend has no such operator."""
    a, b = torch.zeros(8, 64).bfloat16(), torch.zeros(16, 64).bfloat16()
    text = r"^{}: layout is torch.sparse_coo; must be strided, so pass {}.to_dense\(\)$"
    with gemmgen.simulate("sm90"):
        with pytest.raises(TypeError, match=text.format("d", "d")):
            ops.bf16_gemm_nt(a, b, torch.zeros(8, 16).bfloat16().to_sparse(), **finish)
        with pytest.raises(TypeError, match=text.format("b", "b")):
            ops.bf16_gemm_nt(a, b.to_sparse(), **finish)


def test_architecture_without_a_kernel() -> None:
    with (
        gemmgen.simulate("sm90"),
        pytest.raises(UnsupportedArchitecture, match=r"^a and b: 4-bit numbers are multiplied on sm100 and sm120 only"),
    ):
        codes, sf = torch.zeros(16, 64, dtype=torch.int8), torch.ones(16, 4)
        ops.mxfp4_gemm_nt((codes, sf), (codes, sf))


def test_cpu_tensors_outside_of_simulate() -> None:
    with gemmgen.simulate("sm90"):
        pass
    from gemmgen.runtime import simulation

    token = simulation._chosen.set(None)
    try:
        with pytest.raises(DeviceError, match=r'on the CPU and no simulation was asked for.*simulate\("sm90"\)'):
            ops.fp8_gemm_nt(*GOOD.pairs)
    finally:
        simulation._chosen.reset(token)


def test_missing_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise NvrtcNotFound("NVRTC was not found; pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr("gemmgen.runtime.sim_target.cached_ptx", missing)
    monkeypatch.setattr("gemmgen.runtime.sim_target._kernels", {})
    with pytest.raises(NvrtcNotFound, match="pip install nvidia-cuda-nvrtc"):
        ops.fp8_gemm_nt(*GOOD.pairs)


def test_text_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("gemmgen.runtime.sim_target._kernels", {})
    monkeypatch.setattr("gemmgen.ops.kernels.render", lambda plan: f"void {plan.name}() {{ undeclared(); }}")
    spec = catalog.fp8_gemm_nt(catalog.Shape(64, 24, groups=1))
    with pytest.raises(CompileError, match="undeclared"):
        gemmgen.op(spec)(**{**GOOD.tensors, "sfa": GOOD.sfa.T.contiguous().T})


# ------------------------------------------------------------------------------------------------ autograd


def test_inputs_that_require_grad() -> None:
    """P30: no silent zero gradients."""
    a, b = bf16_problem(8, 16, 64)
    with pytest.raises(
        RuntimeError, match=r"^b: requires_grad is True, but this operator has no backward; .*b.detach\(\)"
    ):
        ops.bf16_gemm_nt(a, b.requires_grad_())


# ------------------------------------------------------------------------------------------------ specs


def test_spec_operands_by_name() -> None:
    function = gemmgen.op(catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1)))
    a, b = bf16_problem(8, 16, 64)
    with pytest.raises(TypeError, match=r"^b: missing; sm90_bf16_gemm_nt_bf16_64x16 takes \(\*, a: torch.Tensor"):
        function(a=a)
    with pytest.raises(TypeError, match=r"^bias: unknown argument; sm90_bf16_gemm_nt_bf16_64x16 takes"):
        function(a=a, b=b, bias=a)
    with pytest.raises(TypeError, match=r"^a: is a list; must be a torch.Tensor"):
        function(a=[1], b=b)
    with pytest.raises(TypeError, match=r"^spec: is a dict; pass a gemmgen.KernelSpec"):
        gemmgen.op({})  # type: ignore[arg-type]


def test_output_of_a_spec_that_tma_cannot_store() -> None:
    function = gemmgen.op(catalog.bf16_gemm("nt", catalog.Shape(64, 16, groups=1)))
    a, b = bf16_problem(8, 12, 64)
    with pytest.raises(ValueError, match=r"^d: rows are 12 elements = 24 bytes; .*pad n to 16"):
        function(a=a, b=b)


def test_after_a_refusal_the_next_check_passes() -> None:
    with pytest.raises(ValueError, match="b: k is"):
        fp8(b=GOOD.b[:, :128])
    with pytest.raises(AssertionError, match="a kernel was launched"):
        ops.fp8_gemm_nt(*GOOD.pairs)


def test_what_is_written_is_not_to_be_copied() -> None:
    """Nobody would see what a call writes to a copy that was made for it."""
    a, b = bf16_problem(8, 64, 64)
    with pytest.raises(ValueError, match="pass a new tensor, and copy it to d then"):
        ops.bf16_gemm_nt(a, b, torch.empty(64, 8, dtype=torch.bfloat16).T)
    with pytest.raises(TypeError, match=r"d_sf: dtype is torch.bfloat16; must be .*; pass one of that type"):
        ops.bf16_gemm_nt_fp8out(a, b, d_sf=torch.empty(8, 1, dtype=torch.bfloat16))
    both = torch.empty(2048, dtype=torch.uint8)
    d_fp8, d_sf = both[:512].view(torch.float8_e4m3fn).view(8, 64), both[:32].view(torch.float32).view(8, 1)
    with pytest.raises(ValueError, match="an output may not share memory with another; pass one that lies"):
        ops.bf16_gemm_nt_fp8out(a, b, d_fp8, d_sf)


def test_halves_of_bytes_are_not_written() -> None:
    nibbles = catalog.bf16_gemm_sm100("nt", catalog.PairShape(64))
    d = Operand(name="d", dtype=DType.E2M1, box=("m", "n"))
    sf = Operand(name="sf", dtype=DType.UE8M0, box=("m", "n/32"))
    spec = Epilogue(name="mxfp4", operands=(d, sf), steps=(Quantise(to="d", scales="sf"),)).of(nibbles)
    a, b = bf16_problem(8, 33, 64)
    with (
        gemmgen.simulate("sm100"),
        pytest.raises(
            ValueError, match="b: n is 33; elements of d lie 2 a byte, so n must be a multiple of 2; pad it to 34"
        ),
    ):
        gemmgen.op(spec)(a=a, b=b)


def test_outputs_of_which_no_input_says_how_many_have_to_be_passed() -> None:
    spec = prenorm_spec(64, 8, 132, "sm90", 2)
    with pytest.raises(TypeError, match="no input says how many 's' there are; pass the outputs, too"):
        gemmgen.op(spec)(a=torch.zeros(64, 128).bfloat16(), b=torch.zeros(8, 128))
