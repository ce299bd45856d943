"""Products with an epilogue behind them: the shipped quantising ones, bias and activation, any chain by ``fuse``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opchecks import opcheck

import gemmgen
from gemmgen import ops
from gemmgen.ir import Activation, Apply, Bias, Cast, DType, Epilogue, Operand, Quantise, Scale, Store

ARCHS = ("sm90", "sm100", "sm120")
M, N, K = 70, 264, 256
A, B = (torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)) for rows in (M, N))
POISON = 0xEE


def factors(operator: str, arch: str) -> tuple[Any, Any]:
    """A and B as the operator takes them."""
    if operator == "bf16_gemm_nt":
        return A.bfloat16(), B.bfloat16()
    exact = {"use_ue8m0": arch != "sm90"}
    return ops.per_token_cast_to_fp8(A, **exact), ops.per_block_cast_to_fp8(B, **exact)


def product(operator: str, arch: str) -> torch.Tensor:
    """The fp32 sums that the kernel has before its epilogue."""
    with gemmgen.simulate(arch, sms=2):
        return getattr(ops, operator)(*factors(operator, arch), out_dtype=torch.float32)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def poisoned(rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A view of that shape inside memory full of a byte, and all of that memory."""
    size = torch.empty(0, dtype=dtype).element_size()
    pitch = -(-columns * size // 16) * 16 + 32
    memory = torch.full((rows + 2, pitch), POISON, dtype=torch.uint8)
    return memory[1 : rows + 1, 16 : 16 + columns * size].view(dtype), memory


def untouched(view: torch.Tensor, memory: torch.Tensor) -> bool:
    """Whether nothing beside the view was written."""
    rest = memory.clone()
    rest[1 : view.shape[0] + 1, 16 : 16 + view.shape[1] * view.element_size()] = POISON
    return bool((rest == POISON).all())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("operator", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_mxfp8out_is_the_quantiser_of_the_sums(operator: str, arch: str) -> None:
    data, scales = ops.cast_to_mxfp8(product(operator, arch))
    d_fp8, memory = poisoned(M, N, torch.float8_e4m3fn)
    d_sf, scale_memory = poisoned(M, -(-N // 32), torch.float8_e8m0fnu)
    with gemmgen.simulate(arch, sms=2, schedule="random", seed=3):
        found = getattr(ops, f"{operator}_mxfp8out")(*factors(operator, arch), d_fp8, d_sf)
    assert found[0] is d_fp8 and found[1] is d_sf
    assert torch.equal(raw(d_fp8), raw(data)) and torch.equal(raw(d_sf), raw(scales))
    assert untouched(d_fp8, memory) and untouched(d_sf, scale_memory)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("along", ["m", "n"])
def test_fp8out_is_the_quantiser_of_the_sums(along: str, arch: str) -> None:
    data, scales = ops.per_token_cast_to_fp8(product("fp8_gemm_nt", arch), use_ue8m0=False)
    d_sf = torch.empty(M, 3) if along == "n" else None
    with gemmgen.simulate(arch, sms=2):
        d_fp8, found = ops.fp8_gemm_nt_fp8out(*factors("fp8_gemm_nt", arch), d_sf=d_sf)
    assert found.stride() == ((3, 1) if along == "n" else (1, 72))
    assert torch.equal(raw(d_fp8), raw(data)) and torch.equal(found, scales)


@pytest.mark.parametrize("arch", ARCHS)
def test_two_products_chain_with_no_kernel_between(arch: str) -> None:
    width, exact = 272, {"use_ue8m0": arch != "sm90"}
    first = ops.per_block_cast_to_fp8(torch.randn(width, K), **exact)
    again = ops.per_block_cast_to_fp8(torch.randn(128, width), **exact)
    a, _ = factors("fp8_gemm_nt", arch)
    with gemmgen.simulate(arch, sms=2):
        if arch == "sm90":
            hidden, block = ops.fp8_gemm_nt_fp8out(a, first), 128
            out = ops.fp8_gemm_nt(hidden, again, out_dtype=torch.float32)
        else:
            hidden, block = ops.fp8_gemm_nt_mxfp8out(a, first), 32
            out = ops.fp8_gemm_nt(hidden, again, recipe_a=(1, 32), recipe_b=(128, 128), out_dtype=torch.float32)
    assert hidden[1].stride() == (1, 72)
    left = ops.cast_back_from_fp8(*hidden, gran_k=block).double()
    right = again[0].double() * again[1].repeat_interleave(128, 1)[:, :width].double()
    wanted = left @ right.T
    assert float((out - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("operator", ["fp8_gemm_nt", "bf16_gemm_nt"])
def test_bias_and_activation(operator: str, arch: str) -> None:
    bias, c = torch.randn(N).bfloat16(), torch.randn(M, N).bfloat16()
    sums = product(operator, arch).double()
    run: Callable[..., torch.Tensor] = getattr(ops, operator)
    given = factors(operator, arch)
    with gemmgen.simulate(arch, sms=2):
        both = run(*given, c=c.clone(), bias=bias, activation="silu")
        added = run(*given, bias=bias.float(), out_dtype=torch.float32)
        in_place = c.clone()
        assert run(*given, in_place, in_place, activation="relu") is in_place
    close = {"rtol": 2**-8, "atol": 1e-5}
    torch.testing.assert_close(both.double(), torch.nn.functional.silu(sums + c.double() + bias.double()), **close)
    torch.testing.assert_close(added.double(), sums + bias.double(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(in_place.double(), torch.relu(sums + c.double()), **close)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("gate", ["interleaved", "halves"])
def test_gate_of_the_plain_products(gate: str, arch: str) -> None:
    a, b = A.bfloat16(), torch.randn(160, K).bfloat16()
    bias = torch.randn(160)
    with gemmgen.simulate(arch, sms=2):
        d = ops.bf16_gemm_nt(a, b, bias=bias, activation="gelu", gate=gate)
    sums = a.double() @ b.double().T + bias.double()
    left, up = sums.chunk(2, 1) if gate == "halves" else sums.unflatten(1, (-1, 2, 8)).unbind(2)
    wanted = torch.nn.functional.gelu(left) * up
    # Far below 0, gelu is a small difference of large terms: fp32 leaves an error in proportion to the terms.
    allowed = 2**-8 * wanted.abs() + 2**-20 * (left * up).abs() + 1e-5
    assert ((d.double() - wanted.reshape(M, 80)).abs() <= allowed.reshape(M, 80)).all()


def gated_epilogue() -> Epilogue:
    """Two inputs, a host number, and two outputs: codes and their scales."""
    operands = (
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="gate", dtype=DType.BF16, box=("m", "n")),
        Operand(name="limit", dtype=DType.F32, box=()),
        Operand(name="h", dtype=DType.E4M3, box=("m", "n")),
        Operand(name="h_sf", dtype=DType.UE8M0, box=("m", "n/32")),
    )
    chain = Apply(expression="minimum(acc + bias, limit) * gate")
    return Epilogue(name="limited", operands=operands, steps=(chain, Quantise(to="h", scales="h_sf")))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_chain_of_the_users(arch: str) -> None:
    fused = gemmgen.fuse("fp8_gemm_nt", gated_epilogue())
    assert fused is gemmgen.fuse("fp8_gemm_nt", gated_epilogue())
    bias, gate = torch.randn(N), torch.randn(M, N).bfloat16()
    with gemmgen.simulate(arch, sms=2):
        h, h_sf = fused(*factors("fp8_gemm_nt", arch), bias=bias, gate=gate, limit=1.5)
    sums = torch.clamp_max(product("fp8_gemm_nt", arch) + bias, 1.5) * gate.float()
    data, scales = ops.cast_to_mxfp8(sums)
    assert torch.equal(raw(h), raw(data)) and torch.equal(raw(h_sf), raw(scales))


def test_operators_are_registered() -> None:
    with gemmgen.simulate("sm90", sms=2):
        fused = gemmgen.fuse("fp8_gemm_nt", gated_epilogue())
        (a, sfa), (b, sfb) = factors("fp8_gemm_nt", "sm90")
        values = (a, sfa, b, sfb, [], [], torch.randn(N), torch.randn(M, N).bfloat16(), 1.5)
        opcheck(fused._returning, *values)
        outputs = torch.empty(M, N, dtype=torch.float8_e4m3fn), torch.empty(M, 9, dtype=torch.float8_e8m0fnu)
        opcheck(fused._writing, *values, *outputs)


def test_fused_operators_compile() -> None:
    def layer(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return ops.bf16_gemm_nt(a, b, bias=bias, activation="gelu") * 2

    a, b = factors("bf16_gemm_nt", "sm90")
    bias = torch.randn(N)
    with gemmgen.simulate("sm90", sms=2):
        compiled = torch.compile(layer, fullgraph=True, backend="eager")(a, b, bias)
        assert torch.equal(compiled, layer(a, b, bias))
        quantise = torch.compile(ops.bf16_gemm_nt_mxfp8out, fullgraph=True, backend="eager")
        for found, wanted in zip(quantise(a, b), ops.bf16_gemm_nt_mxfp8out(a, b), strict=True):
            assert torch.equal(raw(found), raw(wanted))


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: gemmgen.fuse("fp8_gemm", gated_epilogue()), ValueError, "operator: 'fp8_gemm' takes no epilogue"),
    (lambda: gemmgen.fuse("fp8_gemm_nt", ()), TypeError, "epilogue: is a tuple"),  # type: ignore[arg-type]
    (
        lambda: gemmgen.fuse("bf16_gemm_nt", gated_epilogue())(A.bfloat16(), B.bfloat16(), bias=A),
        TypeError,
        "gate: missing",
    ),
    (lambda: ops.bf16_gemm_nt(A.bfloat16(), B.bfloat16(), activation="mish"), ValueError, "activation: 'mish'"),
    (lambda: ops.bf16_gemm_nt(A.bfloat16(), B.bfloat16(), gate="thirds"), ValueError, "gate: 'thirds' is no order"),
    (lambda: ops.bf16_gemm_nt(A.bfloat16(), B.bfloat16(), c=A, gate="halves"), ValueError, "c: comes with gate"),
    (lambda: ops.bf16_gemm_nt(A.bfloat16(), B.bfloat16(), bias=torch.ones(7)), ValueError, "bias: n is 7, but n of b"),
    (lambda: ops.bf16_gemm_nt(A.bfloat16(), B.bfloat16(), bias=B[:, 0].half()), TypeError, "bias: dtype is torch.flo"),
    (
        lambda: ops.bf16_gemm_nt_mxfp8out(A.bfloat16(), B.bfloat16(), d_sf=torch.empty(M, 5).to(torch.float8_e8m0fnu)),
        ValueError,
        r"d_sf: shape is \(70, 5\); must be \(70, 9\)",
    ),
    (
        lambda: Epilogue(name="open", operands=(), steps=(Activation(function="relu"),)),
        ValueError,
        "must end with a store",
    ),
    (
        lambda: Epilogue(name="lost", operands=(), steps=(Cast(to=DType.BF16), Store(to="d"))),
        ValueError,
        "names operand 'd', which it does not define",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with gemmgen.simulate("sm90"), pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("arch", "operator"), [("sm90", "bf16"), ("sm100", "bf16"), ("sm100", "fp8"), ("sm120", "bf16")]
)
def test_halves_of_b_that_is_contiguous_along_n(arch: str, operator: str) -> None:
    """Said of the caller's tensor and argument, not of the fields of a spec."""
    a, b = torch.ones(16, 64), torch.ones(64, 32).T
    message = (
        r"^b: is contiguous along n, and gate is 'halves', whose .*; pass b contiguous along k, as b.contiguous\(\) "
        r"is, or with rows of gate and up in turn, 8 of each, and gate 'interleaved'$"
    )
    with gemmgen.simulate(arch, sms=2), pytest.raises(ValueError, match=message):
        if operator == "bf16":
            ops.bf16_gemm_nt(a.bfloat16(), b.bfloat16(), gate="halves")
        else:
            pairs = [(each.to(torch.float8_e4m3fn), torch.ones(each.shape[0], 1)) for each in (a, b)]
            ops.fp8_gemm_nt(*pairs, gate="halves")


def test_an_epilogue_that_no_tile_can_have() -> None:
    operands = (
        Operand(name="d", dtype=DType.E2M1, box=("m", "n")),
        Operand(name="d_sf", dtype=DType.UE8M0, box=("m", "n/32")),
    )
    fused = gemmgen.fuse(
        "bf16_gemm_nt", Epilogue(name="four", operands=operands, steps=(Quantise(to="d", scales="d_sf"),))
    )
    with gemmgen.simulate("sm90"), pytest.raises(ValueError, match=r"'four' fits no tile of this operator.*e2m1"):
        fused(A.bfloat16(), B.bfloat16())


SCALED_BIAS = Epilogue(
    name="scaled_bias",
    operands=(
        Operand(name="alpha", dtype=DType.F32, box=()),
        Operand(name="bias", dtype=DType.F32, box=("n",)),
        Operand(name="d", dtype=DType.F32, box=("m", "n")),
    ),
    steps=(Scale(by="alpha"), Bias(vector="bias"), Store(to="d")),
)


def test_a_number_that_changes_compiles() -> None:
    """From its second value on compilers know it as a symbol."""
    layer = gemmgen.fuse("bf16_gemm_nt", SCALED_BIAS)
    a, b, bias = torch.ones(8, 32).bfloat16(), torch.ones(16, 32).bfloat16(), torch.arange(16.0)
    compiled = torch.compile(lambda alpha: layer(a, b, bias=bias, alpha=alpha), fullgraph=True, backend="aot_eager")
    with gemmgen.simulate("sm90", sms=2):
        for alpha in (0.5, 0.25, 2.0, 3):
            assert torch.equal(compiled(alpha), 32 * alpha + bias.expand(8, 16))


@pytest.mark.parametrize("strides", [(9, 7), (1, 3), (2, 2)], ids=str)
def test_a_single_column_of_scales_may_have_any_stride(strides: tuple[int, int]) -> None:
    a, b = torch.randn(8, 32).bfloat16(), torch.randn(16, 32).bfloat16()
    room = torch.full((80,), -1.0)
    with gemmgen.simulate("sm90", sms=2):
        _, found = ops.bf16_gemm_nt_fp8out(a, b, d_sf=room.as_strided((8, 1), strides))
        assert torch.equal(found, ops.bf16_gemm_nt_fp8out(a, b)[1])
    assert int((room != -1).sum()) == 8


@pytest.mark.parametrize("along", ["n", "m"])
def test_scales_to_write_to_compile(along: str) -> None:
    a, b = torch.randn(8, 32).bfloat16(), torch.randn(160, 32).bfloat16()

    def scales() -> torch.Tensor:
        return torch.empty(8, 2) if along == "n" else torch.empty(2, 8).T

    compiled = torch.compile(lambda sf: ops.bf16_gemm_nt_fp8out(a, b, d_sf=sf), fullgraph=True, backend="aot_eager")
    with gemmgen.simulate("sm90", sms=2):
        (data, sf), (wanted, wanted_sf) = compiled(scales()), ops.bf16_gemm_nt_fp8out(a, b, d_sf=scales())
    assert torch.equal(data.view(torch.uint8), wanted.view(torch.uint8)) and torch.equal(sf, wanted_sf)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("bf16_gemm_nt", "a"),
        ("fp8_gemm_nt", "sfb"),
        ("m_grouped_bf16_gemm_nt_masked", "masked_m"),
        ("m_grouped_fp8_gemm_nt_contiguous", "sfa"),
    ],
)
def test_operands_are_not_called_as_what_the_product_takes(operator: str, name: str) -> None:
    bias, d = Operand(name=name, dtype=DType.F32, box=("n",)), Operand(name="d", dtype=DType.F32, box=("m", "n"))
    with pytest.raises(ValueError, match=f"has an operand '{name}', which {operator} takes itself"):
        gemmgen.fuse(operator, Epilogue(name="bad", operands=(bias, d), steps=(Bias(vector=name), Store(to="d"))))


@pytest.mark.parametrize("arch", ["sm100", "sm120"])
@pytest.mark.parametrize("given", [{}, {"activation": "relu"}, {"bias": torch.zeros(256)}])
def test_scales_that_are_to_stay_fp32_are_refused_whatever_follows(arch: str, given: dict[str, Any]) -> None:
    a = ops.per_token_cast_to_fp8(torch.randn(8, 256), use_ue8m0=True)
    b = ops.per_block_cast_to_fp8(torch.randn(256, 256), use_ue8m0=True)
    with gemmgen.simulate(arch), pytest.raises(ValueError, match="sfa"):
        ops.fp8_gemm_nt(a, b, disable_ue8m0_cast=True, **given)


@pytest.mark.parametrize("alpha", [1e39, 10**39, 10**400])
def test_numbers_that_fp32_cannot_hold_are_refused(alpha: float) -> None:
    layer, bias = gemmgen.fuse("bf16_gemm_nt", SCALED_BIAS), torch.zeros(16)
    a, b = torch.ones(8, 32).bfloat16(), torch.ones(16, 32).bfloat16()
    with gemmgen.simulate("sm90", sms=2):
        with pytest.raises(ValueError, match=r"alpha: is .*; pass at most 3.4e38"):
            layer(a, b, bias=bias, alpha=alpha)
        assert (layer(a, b, bias=bias, alpha=float("inf")) == float("inf")).all()
