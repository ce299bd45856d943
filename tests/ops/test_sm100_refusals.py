"""What the operators of datacenter Blackwell refuse, and on which other GPUs: sentences, and nothing is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import fp8_problem
from sm100_problems import Factor, fp4, fp8, nvfp4

import gemmgen
from gemmgen import ops
from gemmgen.ops import scales
from gemmgen.runtime.errors import DeviceError, UnsupportedArchitecture
from gemmgen.runtime.sim_target import SimTarget

A, B = fp8(16, 256, (1, 32), seed=1), fp8(24, 256, (1, 32), seed=2)
FOUR_A, FOUR_B = fp4(16, 256, seed=1), fp4(24, 256, seed=2)
MX: dict[str, Any] = {"recipe": (1, 1, 32)}


@pytest.fixture(autouse=True)
def nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(SimTarget, "launch", refuse)
    with gemmgen.simulate("sm100"):
        yield


def blocks(factor: Factor) -> ops.Blocked128x4:
    return ops.Blocked128x4(ops.to_blocked_128x4(factor.codes.view(torch.float8_e8m0fnu)))


# ------------------------------------------------------------------------------------------------ scales


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.float64])
def test_bytes_of_another_type_are_never_guessed_at(dtype: torch.dtype) -> None:
    sf = A.codes.to(dtype) if dtype != torch.float8_e4m3fn else A.codes.view(dtype)
    text = rf"^sfa: dtype is {dtype}; scales here are powers of two \(UE8M0\) in torch.float8_e8m0fnu or torch.int32 or"
    with pytest.raises(TypeError, match=text):
        ops.fp8_gemm_nt((A.data, sf), B.fp32, **MX)
    with pytest.raises(TypeError, match=text):  # nor is a recipe missing
        ops.fp8_gemm_nt((A.data, sf), B.fp32)


def test_scales_of_another_type_are_cast_to_one_that_is_read() -> None:
    with pytest.raises(TypeError, match=r"^sfb: dtype is torch.float64; .*; pass sfb.to\(torch.float32\)$"):
        ops.fp8_gemm_nt(A.fp32, (B.data, B.fp32[1].double()))
    a, b = nvfp4(16, 256), nvfp4(24, 256)
    with pytest.raises(TypeError, match=r"^sfa: dtype is torch.float32; .*; pass sfa.to\(torch.float8_e4m3fn\)$"):
        ops.nvfp4_gemm_nt(a.fp32, b.words)


def test_blocks_need_their_name() -> None:
    with pytest.raises(ValueError, match=r"^sfa: shape is \(1024,\); one scale per 1 x 32.*or Blocked128x4\(scales\)"):
        ops.fp8_gemm_nt((A.data, blocks(A).scales), B.fp32, **MX)
    with pytest.raises(ValueError, match=r"^sfa: shape is \(128, 8\); one scale per 1 x 32 elements makes \(16, 8\)"):
        ops.fp8_gemm_nt((A.data, blocks(A).scales.view(128, 8)), B.fp32, **MX)
    with pytest.raises(TypeError, match=r"^sfb: dtype is torch.uint8; scales here in 128x4 blocks are powers of two"):
        ops.fp8_gemm_nt(A.fp32, (B.data, ops.Blocked128x4(blocks(B).scales.view(torch.uint8))), **MX)
    with pytest.raises(ValueError, match=r"^sfb: has 512 scales in 128x4 blocks; 24 x 8 of them.* make 1024"):
        ops.fp8_gemm_nt(A.fp32, (B.data, ops.Blocked128x4(blocks(B).scales[:512])), **MX)
    with pytest.raises(ValueError, match=r"^sfb: strides are \(2,\); blocks follow each other in memory"):
        apart = blocks(B).scales.repeat_interleave(2)[::2]
        ops.fp8_gemm_nt(A.fp32, (B.data, ops.Blocked128x4(apart)), **MX)


def test_fp32_scales_that_are_no_powers_of_two() -> None:
    bad = A.fp32[1].clone()
    bad[3, 1] = 1.25
    with pytest.raises(ValueError, match=r"^sfa: scale \(3, 1\) is 1.25, one of 1 that are no power of two"):
        ops.fp8_gemm_nt((A.data, bad), B.fp32, **MX)
    with pytest.raises(
        ValueError, match=r"^disable_ue8m0_cast: is True and sfa is torch.float32, but these tensor cores"
    ):
        ops.fp8_gemm_nt(A.fp32, B.fp32, **MX, disable_ue8m0_cast=True)
    with pytest.raises(ValueError, match=r"^disable_ue8m0_cast: is True and sfb is torch.float32"):
        ops.fp8_fp4_gemm_nt(A.words, FOUR_B.fp32, **MX, disable_ue8m0_cast=True)


def test_a_gpu_s_scales_are_looked_at_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking waits for the GPU, and ends a capture."""
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.delenv(scales.CHECK_VARIABLE, raising=False)
    assert scales.looks_at_content(cpu) and not scales.looks_at_content(cuda)
    monkeypatch.setenv(scales.CHECK_VARIABLE, "1")
    assert scales.looks_at_content(cpu) and scales.looks_at_content(cuda)
    capturing = True
    assert scales.looks_at_content(cpu) and not scales.looks_at_content(cuda)


def test_fp32_scales_without_refusal_still_say_what_is_meant() -> None:
    """The refusal names both ways out, and they work."""
    data, sf = ops.per_token_cast_to_fp8(torch.randn(16, 256), use_ue8m0=False, gran_k=32)
    with pytest.raises(ValueError, match=r"^sfa: .*quantise with use_ue8m0=True, or re-quantise the data with requant"):
        ops.fp8_gemm_nt((data, sf), B.fp32, **MX)
    again, powers = ops.requantise_to_ue8m0(data, sf, gran_k=32)
    ops.check_ue8m0(powers)
    with pytest.raises(AssertionError, match="a kernel was launched"):
        ops.fp8_gemm_nt((again, powers), B.fp32, **MX)


def test_scales_of_another_granularity() -> None:
    with pytest.raises(ValueError, match=r"^sfa: shape is \(16, 8\); one scale per 1 x 128 elements makes \(16, 2\)"):
        ops.fp8_gemm_nt(A.fp32, B.fp32)
    with pytest.raises(ValueError, match=r"^sfb: shape is \(24, 2\); one scale per 1 x 128 elements, four in a word,"):
        ops.fp8_gemm_nt(fp8(16, 256).words, B.words)
    with pytest.raises(ValueError, match=r"^sfa: shape is \(2, 16\)"):
        ops.fp8_gemm_nt((A.data, A.words[1].T), B.words, **MX)


@pytest.mark.parametrize(
    ("recipes", "text"),
    [
        (
            {"recipe": (1, 1, 64)},
            r"^recipe: says one scale per 1 x 64 elements; sm100 and sm120 take any number of rows from 1 and 32",
        ),
        ({"recipe": (1, 0, 32)}, r"^recipe: says one scale per 0 x 32 elements"),
        ({"recipe": (-1, 1, 32)}, r"^recipe: says one scale per -1 x 32 elements"),
        ({"recipe": (1, 2**31, 32)}, r"^recipe: says one scale per 2147483648 x 32 elements"),
        ({"recipe": (1, 16, 32)}, r"^sfb: shape is \(24, 8\); one scale per 16 x 32 elements makes \(2, 8\)"),
        ({"recipe": (1, 32)}, r"^recipe: is \(1, 32\); must be a tuple of 3 whole numbers \(gran_m of a, "),
        ({"recipe_a": (1, 32)}, r"^recipe_b: is missing; pass recipe_a and recipe_b together"),
        (
            {"recipe_a": (1, 32), "recipe_b": (1, 1, 32)},
            r"^recipe_b: is \(1, 1, 32\); must be a tuple of 2 whole numbers",
        ),
        ({"recipe_a": (1, 16), "recipe_b": (1, 32)}, r"^recipe_a \+ recipe_b: says one scale per 1 x 16"),
        ({"recipe": (1, 1, 32), "recipe_a": (1, 32)}, r"^recipe: .*pass either recipe or both others"),
    ],
)
def test_recipes_that_do_not_fit(recipes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ops.fp8_gemm_nt(A.fp32, B.fp32, **recipes)


def test_types_that_say_nothing_about_granularity_need_a_recipe() -> None:
    with pytest.raises(ValueError, match=r"^recipe: is missing; sfa has torch.float8_e8m0fnu, which say nothing"):
        ops.fp8_gemm_nt(A.e8m0, B.e8m0)
    with pytest.raises(ValueError, match=r"^recipe: is missing; sfa has 128x4 blocks, which say nothing"):
        ops.fp8_gemm_nt((A.data, blocks(A)), B.words)


# ------------------------------------------------------------------------------------------------ data


def test_data_of_another_type() -> None:
    with pytest.raises(
        TypeError, match=r"^b: dtype is torch.uint8; fp8_gemm_nt takes torch.float8_e4m3fn or torch.int8"
    ):
        ops.fp8_gemm_nt(A.fp32, (FOUR_B.data.view(torch.uint8), FOUR_B.fp32[1]), **MX)
    with pytest.raises(TypeError, match=r"^a: dtype is torch.float8_e5m2; fp8_fp4_gemm_nt takes .*; quantise a first"):
        ops.fp8_fp4_gemm_nt((A.data.view(torch.float8_e5m2), A.fp32[1]), FOUR_B.fp32, **MX)
    with pytest.raises(TypeError, match=r"^b: dtype is torch.uint8; mxfp4_gemm_nt takes torch.int8 or"):
        ops.mxfp4_gemm_nt(FOUR_A.e8m0, (FOUR_B.data.view(torch.uint8), FOUR_B.e8m0[1]))
    with pytest.raises(TypeError, match=r"^a: dtype is torch.float8_e4m3fn; nvfp4_gemm_nt takes torch.int8 or"):
        ops.nvfp4_gemm_nt(A.fp32, FOUR_B.fp32)


def test_4_bit_data_packed_along_the_wrong_axis() -> None:
    """Trap 41: transposing bytes pairs the wrong halves."""
    turned = FOUR_A.data.T.contiguous().T  # contiguous along m, where pairs are read then: [m/2, k]
    with pytest.raises(ValueError, match=r"^b: k is 256, but k of a is 128; they must be equal"):
        ops.mxfp4_gemm_nt((turned, FOUR_A.e8m0[1]), FOUR_B.e8m0)
    other = FOUR_B.data.T.contiguous().T
    with pytest.raises(ValueError, match=r"^sfa: shape is \(16, 8\); one scale per 1 x 32 elements makes \(32, 4\)"):
        ops.mxfp4_gemm_nt((turned, FOUR_A.e8m0[1]), (other, FOUR_B.e8m0[1]))
    odd = torch.zeros(255, 12, dtype=torch.int8).T, torch.ones(24, 8)
    with pytest.raises(ValueError, match=r"^b: k is 255; 4-bit numbers are turned .* so pad k of both factors to 256"):
        ops.fp8_fp4_gemm_nt((A.data[:, :255], A.fp32[1]), odd, **MX)


def test_4_bit_data_beside_8_bit_data_comes_128_at_a_time() -> None:
    a, b = fp8(16, 160, (1, 32)), fp4(24, 160)
    text = r"^b: k is 160; beside an 8-bit factor, TMA reads 4-bit numbers 128 at a time; pad k of both factors to 256"
    with pytest.raises(ValueError, match=text):
        ops.fp8_fp4_gemm_nt(a.fp32, b.fp32, **MX)
    short = torch.zeros(23 * 128 + 80, dtype=torch.int8).as_strided((24, 80), (128, 1))  # the last row has no room
    with pytest.raises(ValueError, match=text + " with zeros, or cut b from one with rows of 128 bytes"):
        ops.fp8_fp4_gemm_nt(a.fp32, (short, b.fp32[1]), **MX)
    wide = torch.zeros(24, 144, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"^b: row pitch is 144 bytes; TMA needs a multiple of 32 to spread"):
        ops.fp8_fp4_gemm_nt(A.fp32, (wide[:, :128], FOUR_B.fp32[1]), **MX)
    with pytest.raises(ValueError, match=r"^b: address is 16 bytes past a multiple of 32 .* TMA, to spread 4-bit"):
        room = torch.zeros(24 * 128 + 64, dtype=torch.int8)
        past = (16 - room.data_ptr()) % 32
        ops.fp8_fp4_gemm_nt(A.fp32, (room[past : past + 24 * 128].view(24, 128), FOUR_B.fp32[1]), **MX)


@pytest.mark.parametrize("blocks", [(128, 128), (32, 128), (128, 32)])
def test_two_4_bit_factors_that_are_spread_end_with_128(blocks: tuple[int, int]) -> None:
    """Else what is behind both ends would be multiplied, in a copy that lies along k as well."""
    a, b = (fp4(rows, 160, (1, block)) for rows, block in zip((16, 24), blocks, strict=True))
    text = r"^a: k is 160; .* spreads the 4-bit numbers of a and b to bytes, 128 at a time, .* both factors to 256 with"
    for rooms in ((a.data, b.data), tuple(torch.full((f.data.shape[0], 128), 0x77).char()[:, :80] for f in (a, b))):
        pairs = [(data, factor.fp32[1]) for data, factor in zip(rooms, (a, b), strict=True)]
        with pytest.raises(ValueError, match=text):
            ops.fp8_fp4_gemm_nt(*pairs, recipe_a=(1, blocks[0]), recipe_b=(1, blocks[1]))
    turned = ops.transpose_packed_fp4(b.data).mT, b.fp32[1]
    with pytest.raises(ValueError, match=text):
        ops.fp8_fp4_gemm_nt(a.fp32, turned, recipe_a=(1, blocks[0]), recipe_b=(1, blocks[1]))


def test_an_output_that_does_not_lie_by_strides() -> None:
    for call in (ops.fp8_gemm_nt, ops.fp8_fp4_gemm_nt):
        with pytest.raises(TypeError, match=r"^d: layout is torch.sparse_coo; must be strided, so pass d.to_dense\(\)"):
            call(A.fp32, B.fp32, torch.zeros(16, 24).bfloat16().to_sparse(), **MX)


def test_extents_that_disagree() -> None:
    with pytest.raises(ValueError, match=r"^b: k is 256, but k of a is 160; they must be equal"):
        ops.fp8_fp4_gemm_nt(fp8(16, 160, (1, 32)).fp32, FOUR_B.fp32, **MX)
    with pytest.raises(ValueError, match=r"^d: n is 23, but n of b is 24"):
        ops.mxfp4_gemm_nt(FOUR_A.e8m0, FOUR_B.e8m0, torch.empty(16, 23))
    with pytest.raises(TypeError, match=r"^d: dtype is torch.float16; must be one of torch.bfloat16, torch.float32"):
        ops.mxfp4_gemm_nt(FOUR_A.e8m0, FOUR_B.e8m0, torch.empty(16, 24, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"^b: column pitch is 24 elements = 24 bytes; TMA needs a multiple of 16"):
        ops.fp8_gemm_nn(A.fp32, (B.data.T.contiguous(), B.fp32[1].T), **MX)


def test_pairs_and_numbers() -> None:
    with pytest.raises(TypeError, match=r"^a: is a Tensor; must be a pair \(data, scales\)"):
        ops.fp8_fp4_gemm_nt(A.data, FOUR_B.fp32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^sfb: is a NoneType; must be a torch.Tensor"):
        ops.mxfp4_gemm_nt(FOUR_A.e8m0, (FOUR_B.data, None))  # type: ignore[arg-type]
    a, b = nvfp4(16, 256).words, nvfp4(24, 256).words
    with pytest.raises(TypeError, match=r"^a\[2\]: is a tensor of 2 on cpu; it is passed to the kernel as a number"):
        ops.nvfp4_gemm_nt((*a, torch.ones(2)), b)
    with pytest.raises(TypeError, match=r"^alpha: is a tensor of 1 on meta; .* pass float\(scale\), read once"):
        ops.nvfp4_gemm_nt(a, b, alpha=torch.ones((), device="meta"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^alpha: is a str; must be a number"):
        ops.nvfp4_gemm_nt(a, b, alpha="1")  # type: ignore[arg-type]


def test_gradients_and_overlap() -> None:
    sf = A.fp32[1].clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"^sfa: requires_grad is True, but this operator has no backward"):
        ops.fp8_gemm_nt((A.data, sf), B.fp32, **MX)
    memory = torch.zeros(16, 256, dtype=torch.float32)
    a = memory.view(torch.float8_e4m3fn)[:, :256]
    with pytest.raises(ValueError, match=r"^d: its memory .* overlaps a "):
        ops.fp8_gemm_nt((a, A.fp32[1]), B.fp32, memory[:, :24], **MX)


# ------------------------------------------------------------------------------------------------ other GPUs


def test_what_sm90_does_not_multiply() -> None:
    with gemmgen.simulate("sm90"):
        text = "^{}: 4-bit numbers are multiplied on sm100 and sm120 only, this is sm90; run it there, or on a GPU"
        with pytest.raises(UnsupportedArchitecture, match=text.format("a and b")):
            ops.mxfp4_gemm_nt(FOUR_A.e8m0, FOUR_B.e8m0)
        with pytest.raises(UnsupportedArchitecture, match=text.format("b")):
            ops.fp8_fp4_gemm_nt(A.fp32, FOUR_B.fp32, **MX)
        with pytest.raises(UnsupportedArchitecture, match=text.format("a and b")):
            ops.nvfp4_gemm_nt(nvfp4(16, 256).words, nvfp4(24, 256).words)


def test_sm90_has_k_contiguous_fp8_only() -> None:
    problem = fp8_problem(16, 32, 256)
    with gemmgen.simulate("sm90"):
        text = r"^b: strides are \(1, 32\); this kernel needs k \(dimension 1\) contiguous"
        with pytest.raises(ValueError, match=text):
            ops.fp8_gemm_nn((problem.a, problem.sfa), (problem.b.T.contiguous(), problem.sfb.T))
        with pytest.raises(TypeError, match=r"^sfa: is a Blocked128x4; must be a torch.Tensor"):
            ops.fp8_gemm_nt((A.data, blocks(A)), B.fp32)
        with pytest.raises(TypeError, match=r"^sfa: dtype is torch.int32.*UE8M0 scales belong to sm100"):
            ops.fp8_gemm_nt(fp8(16, 256).words, problem.pairs[1])


def test_cpu_tensors_outside_of_simulate() -> None:
    from gemmgen.runtime import simulation

    token = simulation._chosen.set(None)
    try:
        with pytest.raises(DeviceError, match="no simulation was asked for"):
            ops.mxfp4_gemm_nt(FOUR_A.e8m0, FOUR_B.e8m0)
    finally:
        simulation._chosen.reset(token)
